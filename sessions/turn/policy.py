"""The operator's policy for conversations, and the system prompt that results for a turn. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Literal

import msgspec

from engine.api import has_feature
from engine.messages import Message, ModelFacts
from engine.reply_spec import ReplySpec
from sessions.errors import BadParams
from sessions.filters.chain import NO_FILTERS, Filters
from sessions.store.redis.servers import Durability


class ToolLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`max_rounds`: replies to one message that may call tools. `wait_s`: seconds that a call waits for a client.

    `max_chars`: characters of a result.
    """

    max_rounds: int = 64
    wait_s: float = 3600.0
    max_chars: int = 32_000


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """`ttl_s`: seconds for which a conversation is kept after its last turn; `max_turns`: turns that run or wait at once.

    `max_queued`: messages that wait behind a running reply in one conversation.

    `system_prompt` is used if neither the conversation nor its client sets one; empty: none. `filters`: for messages and
    replies. `durability`: of `accepted` and `done` before they are published. `tools`: the limits of tool calls.
    `unsupported_tools`: what happens to tools that a model can't call, or no longer may, if it need not call one. `titles`: the
    model writes titles of new conversations. `sharing`: people may share conversations by a link. `interpret_prompt`: asks a
    chat model for a translation. `store_bytes`: how much each of the store's servers may hold; None: its own limit.
    """

    ttl_s: float
    max_turns: int
    max_queued: int = 16
    system_prompt: str = ""
    filters: Filters = NO_FILTERS
    durability: Durability = Durability.MEMORY
    tools: ToolLimits = ToolLimits()
    unsupported_tools: Literal["refuse", "ignore"] = "ignore"
    titles: bool = False
    sharing: bool = False
    store_bytes: int | None = None
    interpret_prompt: str = "Translate into {target}: {text}"

    def followed(self, spec: ReplySpec, facts: ModelFacts) -> ReplySpec:
        """Return the spec for a model: without tools that it can't call, if the operator ignores those.

        A spec that requires a call keeps them, and is refused by its check.
        """
        can_not = spec.tool_choice == "auto" and not has_feature(facts, "tools", "auto")
        if spec.tools and can_not and self.unsupported_tools == "ignore":
            return msgspec.structs.replace(spec, tools=())
        return spec

    def in_round(self, spec: ReplySpec, messages: Sequence[Message]) -> ReplySpec:
        """Return the spec after a client's own messages: without tools if the limit of calling replies is reached.

        Raises BadParams if the reply has to call, or the operator refuses unsupported tools.
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
    """The system prompt of a turn. `named`: the conversation's own; empty: none."""

    named: str
    operators: str

    @property
    def text(self) -> str:
        """The text for the model; may be empty."""
        return self.named or self.operators

    @property
    def is_shared(self) -> bool:
        """Whether it is the operator's, even if a client's text is the same."""
        return bool(self.operators) and not self.named


def _rounds(messages: Sequence[Message]) -> int:
    """Return the number of replies to the user's last message that call tools."""
    replies = takewhile(lambda message: message.role != "user", reversed(messages))
    return sum(bool(message.calls) for message in replies)
