"""The operator's policy for conversations."""

from __future__ import annotations

from typing import Literal

import msgspec

from sessions.filters.chain import NO_FILTERS, Filters
from sessions.store.client import Durability


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

    `system_prompt` is used if neither the conversation nor its client sets one; empty: none. `filters`: for messages and replies.
    `durability`: of `accepted` and `done` before they are published. `tools`: the limits of tool calls. `unsupported_tools`: what
    happens to tools that a model can't call, or not any more in this turn, unless a call is required. `titles`: the model writes
    titles of new conversations. `sharing`: people may share conversations by a link. `store_bytes`: how much each of the store's
    servers may hold; None: its own limit.
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
