"""Whatever an upstream does wrong, the client is told in one way that the protocol has for it.

The upstream is the tests' own, everything else is real: sockets, the service, its store.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from engine.scripted import ScriptedEngine
from engine.upstream.engine import UpstreamEngine, UpstreamFleet
from engine.upstream.options import Timeouts, UpstreamOptions
from tests.app.in_process_service import serving
from tests.engine.upstream_server import Answer, upstream_server

WORDS = ("one ", "two ", "three ", "four ", "five ", "six ", "семь")
WHOLE = "".join(WORDS)
OVERFLOW = {"error": {"message": "maximum context length is 8 tokens"}}


class Outcome(NamedTuple):
    """What a client is told: where its turn stood, the text that stays, why it ended."""

    states: tuple[str, ...]
    text: str
    reason: str
    code: str | None = None


def answer(**trouble: Any) -> Answer:
    return Answer(WORDS, **trouble)


LOST = Outcome((), "", "interrupted", "engine_unavailable")
SHED = Outcome((), "", "interrupted", "overloaded")
RETRIED = Outcome(("retrying",), WHOLE, "stop")
FALLBACK = Outcome(("fallback",), WHOLE, "stop")

ALONE: dict[str, tuple[list[Answer], Outcome]] = {
    "stalls before its first token": ([answer(hold_after=0)], RETRIED),
    "stalls after 5 tokens": ([answer(hold_after=5)], LOST._replace(text="".join(WORDS[:5]))),
    "breaks off after 5 tokens": ([answer(cut_after=5)], LOST._replace(text="".join(WORDS[:5]))),
    "500 once": ([answer(status=500)], RETRIED),
    "500 each time": ([answer(status=500)] * 3, LOST._replace(states=("retrying",) * 2)),
    "429": ([answer(status=429, headers={"Retry-After": "9"})], SHED),
    "503": ([answer(status=503)], SHED),
    "401: our key is not its": ([answer(status=401)], LOST),
    "400": ([answer(status=400)], Outcome((), "", "error", "bad_params")),
    "400: too long": ([answer(status=400, error=OVERFLOW)], Outcome((), "", "error", "context_overflow")),
    "never stops": ([Answer(("word ",), endless=True)], Outcome((), "word " * 50, "length")),
}
"""The answers of one upstream in turn, before plain ones."""


async def outcome_of(answers: list[Answer], folder: Path, *, upstreams: int) -> Outcome:
    """Have a client ask a service over some upstreams. Whichever of them is asked first gives the first answer."""
    times = Timeouts(connect_s=10, first_token_s=4, between_tokens_s=2, unavailable_s=20)
    left = list(answers)
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(upstream_server()) for _ in range(upstreams)]
        options = [
            UpstreamOptions(f"up-{number}", server.url, "model", context_tokens=4096, timeouts=times)
            for number, server in enumerate(servers)
        ]
        for server in servers:
            server.answers, server.usual = left, Answer(WORDS)
        engine = (
            UpstreamFleet([(one, None) for one in options]) if upstreams > 1 else UpstreamEngine(options[0])
        )
        await stack.enter_async_context(engine.running())
        for part in engine.parts:
            await part.ready(20)
        running = await stack.enter_async_context(serving(folder, cast("ScriptedEngine", engine)))
        socket = await stack.enter_async_context(running.socket())
        await socket.send(type="send", client_msg_id="1", content="hello", params={"max_new_tokens": 50})
        frames = await socket.until("done")
    states = tuple(frame["state"] for frame in frames if frame["type"] == "status")
    text = "".join(frame["text"] for frame in frames if frame["type"] == "delta")
    return Outcome(states, text, frames[-1]["reason"], frames[-1].get("error", {}).get("code"))


@pytest.mark.parametrize("case", ALONE)
async def test_each_failure_has_its_outcome(case: str, tmp_path: Path) -> None:
    answers, outcome = ALONE[case]
    for one in answers:
        one.go = asyncio.Event()
    assert await outcome_of(answers, tmp_path, upstreams=1) == outcome


@pytest.mark.parametrize("status", [429, 500])
async def test_beside_another_upstream_a_failure_costs_no_reply(status: int, tmp_path: Path) -> None:
    assert await outcome_of([answer(status=status)], tmp_path, upstreams=2) == FALLBACK
