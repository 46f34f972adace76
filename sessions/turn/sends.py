"""What a client asks for when it sends a message, and what speaks the reply to it."""

from __future__ import annotations

from typing import Literal, Protocol, cast

import msgspec

from engine.messages import Params
from engine.reply_spec import Format, ReplySpec, Tool, Translation
from sessions.events import Delta, Needs, Where
from sessions.records import Interpreting, digest
from sessions.turn.positions import Behind, Place, digest_of

OnBusy = Literal["reject", "enqueue", "interrupt", "rollback"]
OnDisconnect = Literal["cancel", "continue"]


class Send(msgspec.Struct, frozen=True, kw_only=True):
    """A user's message, or the wish for another reply to one, or for more of one (`content` is empty then), valid in itself.

    `grace_s`: seconds that its turn goes on while nobody is attached to its conversation; `client_id`: of the client that
    sends it, whom its tokens count for; `group`: the key or the address that it came by, for which it is counted besides.
    `images`: those that it shows, by their digests: kept for the owner, or in the conversation. `untitled`: a conversation
    that it begins keeps its first words as a title. `interprets`: the message is empty so far; it grows, and its reply is a
    translation.
    """

    client_msg_id: str
    conversation_id: str
    content: str
    images: tuple[str, ...] = ()
    place: Place = Behind()
    on_busy: OnBusy = "reject"
    on_disconnect: OnDisconnect = "cancel"
    grace_s: float = 0
    ref: str | None = None
    group: str = ""
    client_id: str = ""
    untitled: bool = False
    interprets: Interpreting | None = None

    @property
    def digest(self) -> str:
        """Tells requests apart that came under one `client_msg_id`."""
        if (asked := self.interprets) is None:
            return digest_of(self.content, self.place, self.images)
        return digest(f"interpret\0{asked.source}\0{asked.target}\0{asked.told}\0{asked.wait}")


class OfferedTool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool that a reply may call, and who runs it. `needs`: what a call of it waits for."""

    tool: Tool
    where: Where = "client"
    needs: Needs = "none"


class Generation(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the reply is made. `system` unset: the conversation's; empty: none of its own from now on.

    `model`: which one is asked, by its name or an alias, from now on; unset: the one that was asked before. `tools`: what this
    reply and those that follow its calls may call; `tool_choice`: `auto`, `none`, `required` or a name, for the first of them.
    `continues`: the first of them goes on where it was cut. `chars_per_s`: how fast text is let out; None: as it is made.
    `paces_thoughts`: thoughts, too, since the sender is told them. `keeps_all`: nothing of the history is left out of the prompt.
    `only`: the models that the sender may ask; empty: all. `translation`: the message is to be translated.
    """

    params: Params = Params()
    system: str | None = None
    model: str | None = None
    tools: tuple[OfferedTool, ...] = ()
    tool_choice: str = "auto"
    format: Format | None = None
    reasoning: str = "auto"
    continues: bool = False
    chars_per_s: float | None = None
    paces_thoughts: bool = False
    keeps_all: bool = False
    only: tuple[str, ...] = ()
    translation: Translation | None = None

    @property
    def spec(self) -> ReplySpec:
        """What the reply may be, as the engine is told."""
        named = self.tool_choice not in _CHOICES
        return ReplySpec(
            tools=tuple(offered.tool for offered in self.tools),
            tool_choice="named" if named else cast("Choice", self.tool_choice),
            tool_name=self.tool_choice if named else "",
            format=self.format,
            reasoning=self.reasoning,
            continues=self.continues,
            translation=self.translation,
        )

    def in_round(self, number: int, *, at_most: int) -> Generation:
        """The same for a turn that follows `number` others that called; behind `at_most` of them it answers in words."""
        if not number:
            return self
        choice = "none" if number >= at_most else "auto"
        return msgspec.structs.replace(self, tool_choice=choice, continues=False)

    def offered(self, name: str) -> OfferedTool | None:
        """The tool of a name; None where there is no such."""
        return next((offered for offered in self.tools if offered.tool.name == name), None)


Choice = Literal["auto", "none", "required"]
_CHOICES: tuple[Choice, ...] = ("auto", "none", "required")


Precision = Literal["word", "chunk"]


class Playback(Protocol):
    """Speaks the reply of one turn. The turn ends when it was played, and a cut keeps what was heard. Only `over` waits."""

    @property
    def heard(self) -> int:
        """How much of the text was heard."""
        ...

    @property
    def precision(self) -> Precision:
        """To what that is exact."""
        ...

    def begin(self, turn_id: str) -> None:
        """The message was taken in; its turn has this name."""
        ...

    def say(self, text: Delta) -> None:
        """More text that is told."""
        ...

    async def over(self) -> None:
        """The text is complete: return once all of it was played, or it was stopped."""
        ...

    def stop(self) -> None:
        """The turn's end is decided: nothing is played any more. May be called again."""
        ...
