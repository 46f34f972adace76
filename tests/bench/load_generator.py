"""Clients that run a job, in a process of their own: no server shares an interpreter with its readers.

`observe` starts that process, which reads a job on its standard input and writes its observations. Times are in seconds of one
monotonic clock.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise, repeat
from statistics import median

import msgspec

from tests.bench.clients import (
    Kind,
    ServerApi,
    ServerClient,
    ServerMisbehaved,
    SseClient,
    WebSocketClient,
)
from tests.bench.report import MeasurementFailed, percentile_ms

PROMPT = "Count from 1 to 500."
"""A prompt whose reply is longer than any that is measured. All clients send it, in conversations of their own: no server
shares the work of equal prompts that are this short."""
CLIENTS_START_S = 30.0


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement. `url` is the server's http address. Replies are greedy, unless `more` says otherwise."""

    api: ServerApi
    url: str
    model: str
    clients: int
    replies: int = 1
    max_new_tokens: int
    cancel_after_texts: int | None = None
    """How many texts a reader has seen when it cancels; each of several waits a little longer. None: all are read to the end."""
    limit_s: float
    prompts: tuple[str, ...] = ()
    """One for each reply, client by client, where they are not all `PROMPT`."""
    more: dict[str, object] = {}
    """Further fields of a chat completion's request."""
    anew: bool = False
    """Whether each chat completion goes over a connection of its own."""


class Reply(msgspec.Struct, frozen=True):
    """A reply as its reader saw it. `accepted`: when the server said so, if it does; `arrivals`: when each piece of text
    came; `tokens`: as the server counts.
    """

    sent: float
    accepted: float
    arrivals: tuple[float, ...]
    ended: float
    tokens: int


class Stop(msgspec.Struct, frozen=True):
    """A cancel as its sender saw it: seconds until `cancelled` and `done` came."""

    cancelled_s: float
    done_s: float
    steps_after: int | None


class Observed(msgspec.Struct, frozen=True):
    """The outcome of a job."""

    replies: tuple[Reply, ...] = ()
    stops: tuple[Stop, ...] = ()


TOKENS_PER_S, TOKENS_PER_REPLY = "tokens/s, all clients", "tokens of the shortest reply"
FIRST_TOKEN = "first token p50, ms"
Figures = dict[str, float]
"""Figures of one server at one level, by what they are; those that were not measured are missing."""


def figures(seen: Observed) -> Figures:
    """Return the figures of replies, or of cancels. Pure.

    Tokens/s count from the first prompt sent to the last end. More than one token in a text: the server merges, holds back or
    sends in bursts. `steps after a cancel` are the most that a reply took after its cancel was read.
    """
    found: Figures = {}
    if replies := seen.replies:
        tokens = [reply.tokens for reply in replies]
        took_s = max(reply.ended for reply in replies) - min(reply.sent for reply in replies)
        found[TOKENS_PER_S] = sum(tokens) / took_s
        found[TOKENS_PER_REPLY] = min(tokens)
        found["tokens per text"] = sum(tokens) / sum(len(reply.arrivals) for reply in replies)
    if steps := [stop.steps_after for stop in seen.stops if stop.steps_after is not None]:
        found["steps after a cancel, most"] = max(steps)
    times = {
        FIRST_TOKEN.partition(" p50")[0]: [reply.arrivals[0] - reply.sent for reply in replies],
        "between texts": [b - a for reply in replies for a, b in pairwise(reply.arrivals)],
        "cancel → cancelled": [stop.cancelled_s for stop in seen.stops],
        "cancel → done": [stop.done_s for stop in seen.stops],
    }
    for name, seconds in times.items():
        if seconds:
            found |= {f"{name} p{share}, ms": percentile_ms(seconds, share / 100) for share in (50, 99)}
    return found


def medians(turns: Sequence[Figures]) -> Figures:
    """Return the median of each figure over the turns that have it."""
    names = dict.fromkeys(name for turn in turns for name in turn)
    return {name: median(turn[name] for turn in turns if name in turn) for name in names}


def observe(job: Job) -> Observed:
    """Have clients run a job in a process of their own. Raises MeasurementFailed."""
    try:
        clients = subprocess.run(
            [sys.executable, "-m", "tests.bench.load_generator"],
            input=msgspec.json.encode(job),
            capture_output=True,
            timeout=job.limit_s + CLIENTS_START_S,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        raise MeasurementFailed(error.stderr.decode().strip().splitlines()[-1]) from error
    except subprocess.TimeoutExpired as error:
        raise MeasurementFailed(f"the clients were not done in {error.timeout} s") from error
    return msgspec.json.decode(clients.stdout, type=Observed)


async def do(job: Job) -> Observed:
    """Run a job. Raises ServerMisbehaved, OSError, TimeoutError."""
    async with asyncio.timeout(job.limit_s), _peers(job) as peers:
        if job.cancel_after_texts is None:
            replies = await asyncio.gather(*(_read(peer, number, job) for number, peer in enumerate(peers)))
            return Observed(replies=tuple(reply for some in replies for reply in some))
        native = [peer for peer in peers if isinstance(peer, WebSocketClient)]
        waits = (job.cancel_after_texts + number // 2 for number in range(len(native)))
        stops = await asyncio.gather(*map(_stop_one, native, waits, repeat(job.max_new_tokens)))
        return Observed(stops=tuple(stops))


@asynccontextmanager
async def _peers(job: Job) -> AsyncIterator[list[ServerClient]]:
    peers = [await _connect(job) for _ in range(job.clients)]
    try:
        yield peers
    finally:
        await asyncio.gather(*(peer.close() for peer in peers))


async def _connect(job: Job) -> ServerClient:
    if job.api is ServerApi.WEBSOCKET:
        return await WebSocketClient.open(job.url)
    return await SseClient.open(job.url, job.api, job.model, job.more, anew=job.anew)


async def _read(peer: ServerClient, number: int, job: Job) -> list[Reply]:
    """Ask for one client's replies, one after the other."""
    prompts = job.prompts[number * job.replies :][: job.replies] or (PROMPT,) * job.replies
    return [await _reply(peer, prompt, job) for prompt in prompts]


async def _reply(peer: ServerClient, prompt: str, job: Job) -> Reply:
    sent = time.perf_counter()
    await peer.ask(prompt, job.max_new_tokens)
    accepted, arrivals = time.perf_counter(), []
    while (heard := await peer.receive()).kind is not Kind.END:
        arrivals.append(time.perf_counter())
    if not arrivals:
        raise ServerMisbehaved("a reply had no text")
    return Reply(sent, accepted, tuple(arrivals), time.perf_counter(), heard.tokens)


async def _stop_one(peer: WebSocketClient, texts: int, max_new_tokens: int) -> Stop:
    """Cancel a reply after so many texts, while the others are read; skip text that was on its way."""
    await peer.ask(PROMPT, max_new_tokens)
    for _ in range(texts):
        if (heard := await peer.receive()).kind is not Kind.TEXT:
            raise ServerMisbehaved(f"a reply ended before it was cancelled: {heard}")
    started = cancelled = time.perf_counter()
    await peer.cancel()
    while (heard := await peer.receive()).kind is not Kind.END:
        if heard.kind is Kind.CANCELLED:
            cancelled = time.perf_counter()
    return Stop(cancelled - started, time.perf_counter() - started, heard.steps_after)


def main() -> None:
    """Run the job on standard input."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(do(job))))


if __name__ == "__main__":
    main()
