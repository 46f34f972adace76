"""Which messages of a conversation the model is shown, so that they fit its window.

The oldest exchanges are dropped whole, down to three quarters of the room at once: the prompt then keeps its
beginning over many turns, and with it the engine's KV prefix. The system prompt always stays.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from engine.messages import Message
from sessions.errors import ContextOverflow
from sessions.records import MessageRecord

Count = Callable[[Sequence[Message]], Awaitable[int]]


class Room(msgspec.Struct, frozen=True):
    """Tokens of the window, and how many of them a prompt with history leaves to the reply."""

    window: int
    reply: int

    @classmethod
    def of(cls, window: int, max_new_tokens: int) -> Room:
        """At most a quarter of the window is kept free: a longer reply may end with `length`."""
        return cls(window, min(max_new_tokens, window // 4))


class Prompt(msgspec.Struct, frozen=True):
    """Messages that fit. `context_from`: the user message that they begin with."""

    messages: tuple[Message, ...]
    context_from: str


def exchanges(records: Sequence[MessageRecord]) -> list[list[MessageRecord]]:
    """Groups a branch into user messages, each with its reply."""
    groups: list[list[MessageRecord]] = []
    for record in records:
        if record.role == "user" or not groups:
            groups.append([])
        groups[-1].append(record)
    return groups


def prompt_messages(system: str, records: Sequence[MessageRecord]) -> tuple[Message, ...]:
    """A branch as the model reads it: empty replies are left out, and the user messages around one are joined."""
    messages = [Message("system", system)] if system else []
    for record in records:
        if record.role == "user" and messages and messages[-1].role == "user":
            messages[-1] = Message("user", f"{messages[-1].content}\n{record.content}")
        elif record.content:
            messages.append(Message(record.role, record.content))
    return tuple(messages)


async def fit(system: str, records: Sequence[MessageRecord], *, room: Room, count: Count) -> Prompt:
    """The newest exchanges of a branch, its new user message last, that fit the room.

    Raises ContextOverflow where the new message alone does not fit the window.
    """
    groups = exchanges(records)

    async def tokens_without(dropped: int) -> int:
        return await count(prompt_messages(system, _flat(groups[dropped:])))

    limit = room.window - room.reply
    dropped = 0
    if await tokens_without(0) > limit:
        dropped = await _fewest(tokens_without, limit * 3 // 4, len(groups) - 1)
        if dropped == len(groups) - 1 and (alone := await tokens_without(dropped)) >= room.window:
            raise ContextOverflow(tokens=alone, limit=room.window - 1)
    return Prompt(prompt_messages(system, _flat(groups[dropped:])), groups[dropped][0].message_id)


async def _fewest(tokens_without: Callable[[int], Awaitable[int]], limit: int, most: int) -> int:
    """The least number of dropped exchanges that leaves at most `limit` tokens, or `most`; by bisection."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        if await tokens_without(middle) <= limit:
            high = middle
        else:
            low = middle + 1
    return low


def _flat(groups: Sequence[Sequence[MessageRecord]]) -> list[MessageRecord]:
    return [record for group in groups for record in group]
