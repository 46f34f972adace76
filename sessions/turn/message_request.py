"""A client's message: its place in the tree, and its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import msgspec
from msgspec import UNSET, UnsetType

from engine.messages import Format, Params, ReplySpec, Tool, ToolCall, Translation
from engine.vision.image import Detail
from sessions.events import Cause, Needs, Where
from sessions.limits.shares import Subject
from sessions.records import MessageRecord, Owner, SourceState, TurnRecord, digest, user_message
from sessions.store.codec import Keys, now_ms
from sessions.store.images import Images
from sessions.store.ledger import COPIES, MESSAGE_BYTES


class Append(msgspec.Struct, frozen=True, tag="behind"):
    """A new message. `parent_id`: the reply that it follows; None: it is at the root; unset: the active leaf."""

    parent_id: str | UnsetType | None = UNSET


class Edit(msgspec.Struct, frozen=True, tag="beside"):
    """An edited user's message, a new sibling of the original."""

    message_id: str


class Regenerate(msgspec.Struct, frozen=True, tag="again"):
    """An alternative to a reply, answering the same user's message. `is_last`: refused if anything follows that reply."""

    reply_id: str
    is_last: bool = False


class Continue(msgspec.Struct, frozen=True, tag="onward"):
    """The rest of a reply that was stopped or cut: the same message continues."""

    reply_id: str


Placement = Append | Edit | Regenerate | Continue


def digest_of(content: str, placement: Placement, images: Sequence[str] = ()) -> str:
    """Return a digest that distinguishes requests with the same `client_msg_id`. No content has a NUL."""
    content = "\0".join((content, *images))
    match placement:
        case Append():
            return digest(content)
        case Edit(message_id):
            return digest(f"edit\0{message_id}\0{content}")
        case Regenerate(reply_id):
            return digest(f"regenerate\0{reply_id}")
        case Continue(reply_id):
            return digest(f"continue\0{reply_id}")


OnBusy = Literal["reject", "enqueue", "interrupt", "rollback"]


_ENDS: dict[OnBusy, Cause] = {"interrupt": Cause.INTERRUPT, "rollback": Cause.ROLLBACK}

OnDisconnect = Literal["cancel", "continue"]


class MessageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A validated user's message, or a request for another reply, or for the rest of one (then `content` is empty).

    `seen_off`: how much its sender saw of the reply that it interrupts; `seen_turn_id`: that reply's turn; None: whichever runs.

    `grace_s`: seconds that its turn continues while nobody is attached; `client_id`: the sender, whose limits count its tokens;
    `group`: the sender's key or address, whose limits count it, too. `images`: the images that it shows, by digest, stored for
    the owner or in the conversation; `shown`: each image's place in the content, and its detail; empty: all come first.
    `untitled`: a conversation that it begins keeps the message's first words as its title. `source`: how the reply answers a
    message that is empty at first and grows; None: a usual message.
    """

    client_msg_id: str
    conversation_id: str
    content: str
    images: tuple[str, ...] = ()
    shown: tuple[tuple[int, Detail], ...] = ()
    place: Placement = Append()
    on_busy: OnBusy = "reject"
    seen_off: int | None = None
    seen_turn_id: str | None = None
    on_disconnect: OnDisconnect = "cancel"
    grace_s: float = 0
    ref: str | None = None
    group: str = ""
    client_id: str = ""
    untitled: bool = False
    source: SourceState | None = msgspec.field(default=None, name="interprets")

    @property
    def ends(self) -> Cause | None:
        """For what cause turns accepted before are cancelled before the message is accepted; None: they continue."""
        return _ENDS.get(self.on_busy)

    def subject(self, owner: Owner) -> Subject:
        """Return whose limits and ledgers count the message."""
        return Subject(str(owner), self.group)

    def stored_size(self, generation: GenerationConfig) -> int:
        """Return how many bytes the message will take in the store, approximately."""
        given = 0 if generation.given is None else len(msgspec.json.encode(generation.given))
        system = len((generation.system or "").encode())
        return MESSAGE_BYTES + COPIES * (len(self.content.encode()) + given) + system

    @property
    def digest(self) -> str:
        """A digest that distinguishes requests with the same `client_msg_id`."""
        if (source := self.source) is None:
            return digest_of(self.content, self.place, self.images)
        return digest(f"interpret\0{source.source}\0{source.target}\0{source.publish_policy}")


class OfferedTool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool that a reply may call. `where`: what runs it; `needs`: what a call of it waits for."""

    tool: Tool
    where: Where = "client"
    needs: Needs = "none"


class ProvidedReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reply that the client provides: no model writes it. Only the client has the results of its calls."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()


class GenerationConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """How to generate the reply. `system`: the conversation's from now on; empty: none of its own; None: as before.

    `model`: the requested one from now on, by name or alias; None: as before. `tools`: those that this reply and the ones after
    its calls may call; `tool_choice`: `auto`, `none`, `required` or a name, for the first reply. `continues`: the first reply
    continues a cut one. `chars_per_s`: the pace of text; 0: as generated; None: the model's default. `paces_thoughts`: reasoning
    has that pace, too, since the sender sees it. `keeps_all`: the prompt has the whole history. `only`: the models that the
    sender may use; empty: all. `translation`: translate the message. `user`: the application's user who asks; users share no
    cached prompts. `given`: the reply itself, if the client provides it.
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
    user: str = ""
    given: ProvidedReply | None = None

    @property
    def spec(self) -> ReplySpec:
        """Return the engine's spec of the reply."""
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

    @property
    def clients_spec(self) -> ReplySpec:
        """Return the spec without server tools, which the operator describes."""
        theirs = tuple(offered for offered in self.tools if offered.where == "client")
        return msgspec.structs.replace(self, tools=theirs).spec

    def in_round(self, number: int, *, at_most: int, is_requested: bool = False) -> GenerationConfig:
        """Return the configuration of a turn after `number` others that called tools; after `at_most` of them it answers in text.

        `is_requested`: this configuration was sent for this very turn, so its `tool_choice` applies.
        """
        if not number or (is_requested and number < at_most):
            return self
        choice = "none" if number >= at_most else "auto"
        return msgspec.structs.replace(self, tool_choice=choice, continues=False)

    def offered(self, name: str) -> OfferedTool | None:
        """Return the tool of a name, or None."""
        return next((offered for offered in self.tools if offered.tool.name == name), None)


Choice = Literal["auto", "none", "required"]
_CHOICES: tuple[Choice, ...] = ("auto", "none", "required")


async def stored_message(
    images: Images, owner: Owner, keys: Keys, record: TurnRecord, send: MessageRequest
) -> MessageRecord:
    """Return a user's message as it will be stored, and put its images into the conversation. Raises Refused."""
    shown = await images.show(owner, keys, send.images, group=send.group) if send.images else ()
    if send.shown:
        positions = zip(shown, send.shown, strict=True)
        shown = tuple(msgspec.structs.replace(one, at=at, detail=detail) for one, (at, detail) in positions)
    return user_message(record, send.content, at_ms=now_ms(), images=shown)
