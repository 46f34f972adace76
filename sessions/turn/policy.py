"""What an operator decides about conversations, and which system prompt that gives a turn. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Literal

import msgspec

from engine.door import has_feature
from engine.messages import Message, ModelFacts
from engine.reply_spec import ReplySpec
from sessions.errors import BadParams
from sessions.filters.chain import NO_FILTERS, Filters
from sessions.store.redis.durability import Durability


class ToolLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`max_rounds`: replies to one message that may call tools. `wait_s`: seconds that a call waits for a client.

    `max_chars`: of a result.
    """

    max_rounds: int = 64
    wait_s: float = 3600.0
    max_chars: int = 32_000


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """`ttl_s`: seconds that a conversation is kept after its last turn; `max_turns`: running or waiting at once.

    `max_queued`: messages that wait behind a running reply in one conversation.

    `system_prompt` is used where neither the conversation nor its client names one; empty: none. `filters`: what
    messages and replies go through. `durability`: how safe `accepted` and `done` are when they are told. `tools`: what
    calls of tools are held to. `unsupported_tools`: what becomes of tools that a model can't be shown, or not any more,
    where it need not call one. `titles`: the model writes those of new conversations.
    `sharing`: people may share what they said by a link. `interpret_prompt`: how a chat model is asked for a translation.
    """

    ttl_s: float
    max_turns: int
    max_queued: int = 16
    system_prompt: str = ""
    filters: Filters = NO_FILTERS
    durability: Durability = Durability.EVERYSEC
    tools: ToolLimits = ToolLimits()
    unsupported_tools: Literal["refuse", "ignore"] = "ignore"
    titles: bool = False
    sharing: bool = False
    interpret_prompt: str = "Translate into {target}: {text}"

    def followed(self, spec: ReplySpec, facts: ModelFacts) -> ReplySpec:
        """The spec as a model is asked to follow it: without tools that it can't be shown, where that is ignored.

        One that leaves the model no choice keeps them, and is refused where it is looked at.
        """
        can_not = spec.tool_choice == "auto" and not has_feature(facts, "tools", "auto")
        if spec.tools and can_not and self.unsupported_tools == "ignore":
            return msgspec.structs.replace(spec, tools=())
        return spec

    def in_round(self, spec: ReplySpec, messages: Sequence[Message]) -> ReplySpec:
        """The spec behind messages of a client's own: in words, where as many replies to one message called as may.

        Raises BadParams where the reply has to call, or where the operator has tools refused that are not served.
        """
        if not spec.shown_tools or _rounds(messages) < self.tools.max_rounds:
            return spec
        if spec.tool_choice != "auto" or self.unsupported_tools == "refuse":
            raise BadParams(
                f"`tools` can't be called any more: {self.tools.max_rounds} replies to the last message of the user "
                "did, and this server allows no more (`max_tool_rounds`).",
                field="tools",
            )
        return msgspec.structs.replace(spec, tool_choice="none")


class SystemPrompt(msgspec.Struct, frozen=True):
    """The system prompt of a turn. `named`: what the conversation keeps as its own; empty: it names none."""

    named: str
    operators: str

    @property
    def text(self) -> str:
        """What the model reads; empty: nothing."""
        return self.named or self.operators

    @property
    def is_shared(self) -> bool:
        """Whether these are the operator's words, and not a client's, be they the same ones."""
        return bool(self.operators) and not self.named


def _rounds(messages: Sequence[Message]) -> int:
    """How many replies to the last message of the user call tools."""
    replies = takewhile(lambda message: message.role != "user", reversed(messages))
    return sum(bool(message.calls) for message in replies)
