"""The clients' process: it reads a job on its standard input, runs it, and writes its observations.

It is a separate process, so that no server shares an interpreter with its readers.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from tests.bench.client import Kind, ServerClient, ServerMisbehaved
from tests.bench.formats import speech_of
from tests.bench.idle_detection import ProcessTree, can_watch, watch
from tests.bench.realtime_client import RealtimeClient
from tests.bench.records import Job, Measure, Observed, Reply, ServerApi, Stop
from tests.bench.sse_client import SseClient, of_openai, of_transformers
from tests.bench.websocket_client import WebSocketClient


def main() -> None:
    """Run the job on standard input."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    observed = asyncio.run(do(job))
    sys.stdout.buffer.write(msgspec.json.encode(observed))


async def do(job: Job) -> Observed:
    """Run a job. Raises ServerMisbehaved, OSError, TimeoutError."""
    async with asyncio.timeout(job.limit_s), _peers(job) as peers:
        match job.measure:
            case Measure.LOAD:
                return await _load(peers, job)
            case Measure.STOP_ONE:
                return await _stop_each(peers, job)
            case Measure.STOP_ALL:
                return await _stop_all(peers, job)


@asynccontextmanager
async def _peers(job: Job) -> AsyncIterator[list[ServerClient]]:
    peers = [await _open(job) for _ in range(job.clients)]
    try:
        yield peers
    finally:
        await asyncio.gather(*(peer.close() for peer in peers))


async def _open(job: Job) -> ServerClient:
    peer = await _connect(job)
    if job.greets and isinstance(peer, SseClient):
        await peer.send_hello()
    return peer


async def _connect(job: Job) -> ServerClient:
    match job.api:
        case ServerApi.WEBSOCKET:
            return await WebSocketClient.open(job.url, temperature=job.temperature, top_p=job.top_p)
        case ServerApi.SSE:
            return await SseClient.open(job.url, of_transformers(job.model))
        case ServerApi.CHAT:
            return await SseClient.open(job.url, of_openai(job.model, job.more), anew=job.anew)
        case ServerApi.REALTIME:
            return await RealtimeClient.open(job.url, model=job.model)
        case ServerApi.RESPONSES | ServerApi.MESSAGES | ServerApi.AI_SDK:
            speech = speech_of(job.api, job.model)
            return await SseClient.open(job.url, of_openai(job.model), speech=speech)


async def _load(peers: list[ServerClient], job: Job) -> Observed:
    replies = await asyncio.gather(*(_read(peer, number, job) for number, peer in enumerate(peers)))
    return Observed(replies=tuple(reply for some in replies for reply in some))


async def _read(peer: ServerClient, number: int, job: Job) -> list[Reply]:
    """Ask for one client's replies, one after the other."""
    prompts = job.prompts[number * job.replies :][: job.replies] or (job.prompt,) * job.replies
    return [await _reply(peer, prompt, job) for prompt in prompts]


async def _reply(peer: ServerClient, prompt: str, job: Job) -> Reply:
    sent = time.perf_counter()
    await peer.ask(prompt, job.max_new_tokens)
    arrivals = []
    while (heard := await peer.receive()).kind is not Kind.END:
        arrivals.append(time.perf_counter())
    if not arrivals:
        raise ServerMisbehaved("a reply had no text")
    return Reply(sent, tuple(arrivals), time.perf_counter(), heard.tokens)


async def _stop_each(peers: list[ServerClient], job: Job) -> Observed:
    """Cancel the replies at different times, so that each is cancelled while others are written."""
    stops = await asyncio.gather(*(_stop_one(peer, number, job) for number, peer in enumerate(peers)))
    return Observed(stops=tuple(stops))


async def _stop_one(peer: ServerClient, number: int, job: Job) -> Stop:
    await peer.ask(job.prompt, job.max_new_tokens)
    for _ in range(job.cancel_after_texts + number // 2):
        await _expect_text(peer)
    return await _cancel(peer)


async def _cancel(peer: ServerClient) -> Stop:
    """Cancel, and wait for both answers; skip text that was on its way."""
    started = cancelled = time.perf_counter()
    await peer.cancel()
    while (heard := await peer.receive()).kind is not Kind.END:
        if heard.kind is Kind.CANCELLED:
            cancelled = time.perf_counter()
    return Stop(cancelled - started, time.perf_counter() - started, heard.steps_after)


async def _stop_all(peers: list[ServerClient], job: Job) -> Observed:
    """Cancel all replies as soon as one reader has seen enough, and watch the server's CPU time."""
    enough = asyncio.Event()
    readers = [asyncio.create_task(_read_on(peer, enough, job)) for peer in peers]
    await _first(enough, readers)
    tree = ProcessTree(job.pid) if can_watch() else None
    started = tree.sample() if tree else None
    if job.api is ServerApi.SSE:  # a closed connection can't be read
        for reader in readers:
            reader.cancel()
    await asyncio.gather(*(peer.cancel() for peer in peers))
    silence = await watch(tree, started, limit_s=job.limit_s / 2) if tree and started else None
    await _ended(readers)
    return Observed(silence=silence)


async def _first(enough: asyncio.Event, readers: list[asyncio.Task[None]]) -> None:
    """Wait for one reader that has seen enough. Raises ServerMisbehaved, or the error of a reader."""
    waiting = asyncio.create_task(enough.wait())
    done, _ = await asyncio.wait((waiting, *readers), return_when=asyncio.FIRST_COMPLETED)
    if waiting not in done:
        waiting.cancel()
        done.pop().result()
        raise ServerMisbehaved("a reply ended before it was cancelled")


async def _ended(readers: list[asyncio.Task[None]]) -> None:
    """Wait for all readers. Raises the error of one of them."""
    await asyncio.wait(readers)
    for reader in readers:
        if not reader.cancelled():
            reader.result()


async def _read_on(peer: ServerClient, enough: asyncio.Event, job: Job) -> None:
    await peer.ask(job.prompt, job.max_new_tokens)
    texts = 0
    while (await peer.receive()).kind is not Kind.END:
        texts += 1
        if texts == job.cancel_after_texts:
            enough.set()


async def _expect_text(peer: ServerClient) -> None:
    heard = await peer.receive()
    if heard.kind is not Kind.TEXT:
        raise ServerMisbehaved(f"a reply ended before it was cancelled: {heard}")


if __name__ == "__main__":
    main()
