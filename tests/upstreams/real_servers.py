"""Real servers as upstreams: what a reply by each is like, and how long after a cancel it has nothing to do."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import count
from pathlib import Path

import httpx
import msgspec

from engine.api import Streamer
from engine.messages import Chunk, Finished, FinishReason, Message, Params, Request
from engine.upstream.engine import UpstreamEngine
from engine.upstream.options import UpstreamOptions
from tests.bench.servers import SERVE, ServerLocation
from tests.engine.upstream_server import Answer, upstream_server
from tests.server_process import ServerProcess, free_port, serving

ROOT = Path(__file__).parents[2]
CHECKPOINT = str(ROOT / "demo_model" / "checkpoint")
CANCELS = 5
TRIES = 3
"""A reply that ended before anybody looked, on a busy machine, shows nothing: another one is asked for."""
IDLE_WITHIN_S = 20.0
READY_S = 180.0
HELLO = (Message("user", "Hello! How are you?"),)
LONG = (Message("user", "Count from 1 to 300."),)
Idle = Callable[[], Awaitable[bool]]
_ids = count()


class Peer(msgspec.Struct, frozen=True):
    """A server that runs. `is_idle`: whether it has nothing to do, by its own word or by the time that it computes."""

    options: UpstreamOptions
    is_idle: Idle


class PeerResult(msgspec.Struct, frozen=True):
    """What a peer did: the text of a greedy reply, its tokens as it told them, and the seconds from cancels to rest.

    `lay_ms`: what its pieces of text lay between arrival and reader, on average over that reply.
    """

    text: str
    tokens: int
    idle_s: tuple[float, ...]
    lay_ms: float


async def measure_peer(peer: Peer) -> PeerResult:
    """Ask it, and cancel it some times."""
    async with UpstreamEngine(peer.options).running() as engine:
        await engine.ready(READY_S)
        text, end = await _reply(engine)
        reported = engine.statistics()
        idle_s = [await _cancelled(engine, peer.is_idle) for _ in range(CANCELS)]
    return PeerResult(
        text, end.generated_tokens, tuple(idle_s), 1000 * reported.delivery_seconds / reported.deliveries
    )


async def _reply(engine: UpstreamEngine) -> tuple[str, Finished]:
    params = Params(max_new_tokens=24, do_sample=False)
    outputs = [output async for output in engine.generate(Request(f"r{next(_ids)}", HELLO, params))]
    end = outputs[-1]
    assert isinstance(end, Finished)
    return "".join(output.text for output in outputs if isinstance(output, Chunk)), end


async def _cancelled(engine: UpstreamEngine, is_idle: Idle) -> float:
    """Cancel a long reply at its third piece; return the seconds until the upstream has nothing to do."""
    for _ in range(TRIES):
        stream = engine.generate(
            Request(f"r{next(_ids)}", LONG, Params(max_new_tokens=1500, do_sample=False))
        )
        pieces = 0
        while pieces < 3:
            pieces += isinstance(await anext(stream), Chunk)
        if not await is_idle():
            return await _idle_after_cancel(stream, is_idle)
        assert isinstance([output async for output in stream][-1], Finished)
    raise AssertionError("it looks idle at any time")


async def _idle_after_cancel(stream: Streamer, is_idle: Idle) -> float:
    began = time.perf_counter()
    stream.cancel()
    *_, end = [output async for output in stream]
    assert isinstance(end, Finished)
    assert end.reason is FinishReason.CANCELLED
    async with asyncio.timeout(IDLE_WITHIN_S):
        while not await is_idle():  # noqa: ASYNC110 - another process has no event for it
            await asyncio.sleep(0.01)
    return time.perf_counter() - began


@asynccontextmanager
async def misbehaving(folder: Path) -> AsyncIterator[Peer]:
    """The tests' own upstream, which never stops by itself."""
    async with upstream_server() as server:
        server.answers = [Answer(("Hello",))] + [Answer(("word ",), endless=True) for _ in range(CANCELS)]

        async def is_idle() -> bool:
            return server.closed.is_set()

        yield Peer(UpstreamOptions("misbehaving", server.url, "model", context_tokens=4096), is_idle)


@asynccontextmanager
async def midstream(folder: Path) -> AsyncIterator[Peer]:
    """Another process of this service, with the demo model."""
    with serving(folder, {"MIDSTREAM_DTYPE": "float32"}) as server:
        yield peer_of(server)


def peer_of(server: ServerProcess) -> Peer:
    """A process of this service as an upstream of another. A turn is live there until its engine has ended it."""

    async def is_idle() -> bool:
        return await _figure(f"{server.url}/metrics", r"^midstream_turns_live (\S+)") == 0

    return Peer(
        UpstreamOptions("midstream", f"{server.url}/v1", "midstream-demo", context_tokens=2048), is_idle
    )


@asynccontextmanager
async def transformers_serve(folder: Path) -> AsyncIterator[Peer]:
    """transformers' own server, with the demo model. It tells nobody whether it is at work: its processor time does."""
    place = ServerLocation(
        port=free_port(), folder=str(folder), model=CHECKPOINT, device="cpu", dtype="float32"
    )
    environ = SERVE.environment(place)
    with running(SERVE.command(place), environ, place.url + SERVE.ready, folder / "serve.log") as pid:
        options = UpstreamOptions(
            "transformers serve", f"{place.url}/v1", CHECKPOINT, context_tokens=2048, health="../health"
        )
        yield Peer(options, lambda: _computes_nothing(pid))


PEERS = {
    "misbehaving": misbehaving,
    "midstream": midstream,
    "serve": transformers_serve,
}


@contextmanager
def running(command: Sequence[str], environ: Mapping[str, str], ready: str, log: Path) -> Iterator[int]:
    """Run a server inside the block, once `ready` answers; gives its process id."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environ, cwd=ROOT, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + READY_S
        while not _answers(ready):
            last_words = log.read_text(errors="replace")[-2000:]
            assert process.poll() is None, f"it ended at its start:\n{last_words}"
            assert time.monotonic() < deadline, f"it was not ready in {READY_S:.0f} s:\n{last_words}"
            time.sleep(0.1)  # another process's readiness has no event to wait for
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


async def _figure(url: str, pattern: str) -> float:
    async with httpx.AsyncClient(trust_env=False) as client:
        text = (await client.get(url, timeout=30)).text
    found = re.search(pattern, text, re.MULTILINE)
    return float(found[1]) if found else 0.0


async def _computes_nothing(pid: int) -> bool:
    """Whether a process wanted less than a tenth of a processor for a while."""
    began, wanted = time.perf_counter(), _wanted_s(pid)
    await asyncio.sleep(0.1)
    return _wanted_s(pid) - wanted < 0.1 * (time.perf_counter() - began)


def _wanted_s(pid: int) -> float:
    """Seconds in which its threads computed, or waited for a processor: on a busy machine who waits looks idle."""
    wanted = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # threads end
            computed, waited, _ = (thread / "schedstat").read_text().split()
            wanted += int(computed) + int(waited)
    return wanted / 1e9
