"""Each way in which an upstream fails, and what a client of ours is told then.

The upstream is the tests' own, everything else is real: sockets, the service, its store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec

from engine.scripted import ScriptedEngine
from engine.upstream.engine import UpstreamEngine, UpstreamFleet
from engine.upstream.options import Timeouts, UpstreamOptions
from tests.app.in_process_service import InProcessService, serving
from tests.engine.upstream_server import Answer, UpstreamServer, upstream_server

WORDS = ("one ", "two ", "three ", "four ", "five ", "six ", "семь")
WHOLE = "".join(WORDS)
FIVE = "".join(WORDS[:5])
SHORT = Timeouts(connect_s=10, first_token_s=4, between_tokens_s=2, unavailable_s=20)
PATIENT = Timeouts()


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a client is told: where its turn stood, why it ended, and the text that stays."""

    states: tuple[str, ...] = ()
    reason: str = "stop"
    code: str | None = None
    text: str = WHOLE

    def __str__(self) -> str:
        words = [f"status {' '.join(self.states)}"] if self.states else []
        words.append(f"{self.reason} ({self.code})" if self.code else self.reason)
        return ", ".join([*words, f"{len(self.text)} characters" if self.text else "no text"])


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A failure: the `answers` of one upstream in turn, before plain ones. `beside`: whether there is another one."""

    name: str
    answers: tuple[Answer, ...]
    outcome: Outcome
    times: Timeouts = PATIENT
    beside: bool = False
    max_new_tokens: int = 400


def answer(**trouble: Any) -> Answer:
    return Answer(WORDS, **trouble)


LOST = Outcome(reason="interrupted", code="engine_unavailable", text="")
CUT = msgspec.structs.replace(LOST, text=FIVE)
SHED = Outcome(reason="interrupted", code="overloaded", text="")
OVERFLOW = {"error": {"message": "maximum context length is 8 tokens"}}

CASES: Sequence[Case] = (
    Case(
        name="stalls before its first token",
        answers=(answer(hold_after=0),),
        outcome=Outcome(states=("retrying",)),
        times=SHORT,
    ),
    Case(
        name="stalls after 5 tokens",
        answers=(answer(hold_after=5),),
        outcome=CUT,
        times=SHORT,
    ),
    Case(name="sends in bursts", answers=(answer(burst=100),), outcome=Outcome()),
    Case(name="sends byte by byte", answers=(answer(size=1),), outcome=Outcome()),
    Case(
        name="breaks off within a token",
        answers=(answer(torn_after=6),),
        outcome=msgspec.structs.replace(CUT, text=FIVE + "six "),
    ),
    Case(name="breaks off after 5 tokens", answers=(answer(cut_after=5),), outcome=CUT),
    Case(name="just ends after 5 tokens", answers=(answer(end_after=5),), outcome=CUT),
    Case(
        name="500 after 5 tokens",
        answers=(answer(fail_after=5, error={"message": "CUDA error", "code": 500}),),
        outcome=CUT,
    ),
    Case(
        name="nonsense after 5 tokens", answers=(answer(fail_after=5, raw="data: <html>\n\n"),), outcome=CUT
    ),
    Case(name="500 once", answers=(answer(status=500),), outcome=Outcome(states=("retrying",))),
    Case(
        name="500 each time",
        answers=(answer(status=500),) * 3,
        outcome=msgspec.structs.replace(LOST, states=("retrying", "retrying")),
    ),
    Case(
        name="500, beside another upstream",
        answers=(answer(status=500),),
        outcome=Outcome(states=("fallback",)),
        beside=True,
    ),
    Case(
        name="429, beside another upstream",
        answers=(answer(status=429),),
        outcome=Outcome(states=("fallback",)),
        beside=True,
    ),
    Case(name="429", answers=(answer(status=429, headers={"Retry-After": "9"}),), outcome=SHED),
    Case(name="503", answers=(answer(status=503),), outcome=SHED),
    Case(name="401: our key is not its", answers=(answer(status=401),), outcome=LOST),
    Case(
        name="400", answers=(answer(status=400),), outcome=Outcome(reason="error", code="bad_params", text="")
    ),
    Case(
        name="400: the prompt is too long",
        answers=(answer(status=400, error=OVERFLOW),),
        outcome=Outcome(reason="error", code="context_overflow", text=""),
    ),
    Case(
        name="never stops",
        answers=(Answer(("word ",), endless=True),),
        outcome=Outcome(reason="length", text="word " * 5),
        max_new_tokens=5,
    ),
)


async def outcome_of(case: Case, folder: Path) -> Outcome:
    """Have a client go through it."""
    async with upstream_server() as bad, upstream_server() as good:
        bad.answers = [replace(one, go=asyncio.Event()) for one in case.answers]
        good.answers = bad.answers  # whichever of two is asked first fails
        bad.usual = good.usual = Answer(WORDS)
        async with service_over([bad, good] if case.beside else [bad], case.times, folder) as running:
            return await _turn(running, case.max_new_tokens)


@asynccontextmanager
async def service_over(
    servers: Sequence[UpstreamServer], times: Timeouts, folder: Path
) -> AsyncIterator[InProcessService]:
    """A service whose replies are made by these upstreams, all of which are ready."""
    options = [
        UpstreamOptions(f"up-{number}", server.url, "model", context_tokens=4096, timeouts=times)
        for number, server in enumerate(servers)
    ]
    engine = (
        UpstreamFleet([(one, None) for one in options]) if len(options) > 1 else UpstreamEngine(options[0])
    )
    async with engine.running():
        for part in engine.parts:
            await part.ready(20)
        async with serving(folder, cast("ScriptedEngine", engine)) as running:
            yield running


async def _turn(running: InProcessService, max_new_tokens: int) -> Outcome:
    async with running.socket() as socket:
        params = {"max_new_tokens": max_new_tokens}
        await socket.send(type="send", client_msg_id="1", content="hello", params=params)
        frames = await socket.until("done")
    done = frames[-1]
    return Outcome(
        states=tuple(frame["state"] for frame in frames if frame["type"] == "status"),
        reason=done["reason"],
        code=done.get("error", {}).get("code"),
        text="".join(frame["text"] for frame in frames if frame["type"] == "delta"),
    )
