"""The chaos tests' scripted tool calls, the tool that the server runs, and their notes for the ledger."""

from __future__ import annotations

import asyncio
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from engine.messages import Message, Request
from engine.scripted import Call, Step, Thought
from sessions.tools.tool_registry import CallContext

STARTED = "CHAOS_STARTED"
"""Variable with the path of a file; each start of the server's tool adds the call's id as a line."""
MALFORMED = "CHAOS_MALFORMED"
"""Variable with the path of a file; each malformed prompt adds a line."""
TAKES_S = 0.2
CLIENTS = ({"name": "look"}, {"name": "pay", "approval": "always"})
SERVERS = ({"name": "note", "where": "server"},)
ROUNDS = 2
"""The most replies to one message that call tools, whatever the server allows."""


async def note(number: int, context: CallContext) -> str:
    """Note the start of the tool, and take some time."""
    _note(STARTED, context.call_id)
    await asyncio.sleep(TAKES_S)
    return "Noted."


def steps(request: Request, words: Sequence[str]) -> list[Step]:
    """Return the scripted reply to a prompt: calls first, text after their results. A prompt always draws the same."""
    _check(request.messages)
    rounds = sum(bool(message.calls) for message in _newest_exchange(request.messages))
    lot = zlib.crc32(repr(request.messages).encode())
    if not request.spec.shown_tools or rounds >= ROUNDS or (rounds and lot % 3 == 0):
        return [Thought("Hm."), *words]
    names = [("look", "pay", "note", "look")[(lot >> shift) % 4] for shift in range(1 + lot % 4)]
    calls = [Call(name, json.dumps({"number": number})) for number, name in enumerate(names)]
    return [Thought("Let me see."), words[0], *calls]


def problems(messages: Sequence[Message]) -> Iterator[str]:
    """Return what is malformed in a prompt: each call must have exactly one result directly after it, in order."""
    owed: list[str] = []
    for message in messages:
        if message.role == "tool":
            if not owed or owed.pop(0) != message.call_id:
                yield f"a result of {message.call_id} that was not called for there"
        elif owed:
            yield f"no result of {owed}"
        if message.role == "assistant":
            owed = [call.call_id for call in message.calls]
    if owed:
        yield f"no result of {owed}"


def _newest_exchange(messages: Sequence[Message]) -> Sequence[Message]:
    last = max((place for place, one in enumerate(messages) if one.role == "user"), default=0)
    return messages[last:]


def _check(messages: Sequence[Message]) -> None:
    for problem in problems(messages):
        _note(MALFORMED, problem)


def _note(variable: str, line: str) -> None:
    with Path(os.environ[variable]).open("a") as file:
        file.write(f"{line}\n")
