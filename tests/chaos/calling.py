"""What the scripted engine of the chaos calls, the tool that the server runs, and what both note for the ledger."""

from __future__ import annotations

import asyncio
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from engine.messages import Message, Request
from engine.scripted.steps import Call, Step, Thought
from sessions.tools.server_tool import CallContext

STARTED = "CHAOS_STARTED"
"""Variable: the file in which each start of the server's tool has a line, its call's id."""
MALFORMED = "CHAOS_MALFORMED"
"""Variable: the file in which each prompt has a line that no model should read."""
TAKES_S = 0.2
CLIENTS = ({"name": "look"}, {"name": "pay", "approval": "always"})
SERVERS = ({"name": "note", "where": "server"},)
ROUNDS = 2
"""So many replies to a message call at most, whatever the server allows."""


async def note(number: int, context: CallContext) -> str:
    """Notes that it was started, and takes its time."""
    _note(STARTED, context.call_id)
    await asyncio.sleep(TAKES_S)
    return "Noted."


def steps(request: Request, words: Sequence[str]) -> list[Step]:
    """Return what a model says to a prompt: some calls first, words behind their results. By lot, the same for one prompt."""
    _check(request.messages)
    rounds = sum(bool(message.calls) for message in _newest_exchange(request.messages))
    lot = zlib.crc32(repr(request.messages).encode())
    if not request.spec.shown_tools or rounds >= ROUNDS or (rounds and lot % 3 == 0):
        return [Thought("Hm."), *words]
    names = [("look", "pay", "note", "look")[(lot >> shift) % 4] for shift in range(1 + lot % 4)]
    calls = [Call(name, json.dumps({"number": number})) for number, name in enumerate(names)]
    return [Thought("Let me see."), words[0], *calls]


def problems(messages: Sequence[Message]) -> Iterator[str]:
    """Say what of a prompt is not well formed: each call has its one result right behind it, in order."""
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
