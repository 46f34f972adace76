"""A real service on the device: a reply that a client cancels, the turn after it, and many clients at once."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import midstream
from tests.gpu.results import DEVICE, ON_CUDA, expect, keep, print_line, quantile
from tests.server_process import serving

CROWD = 32 if ON_CUDA else 3
NUMBERS = 200 if ON_CUDA else 20
TALK_S = 60.0


def main() -> None:
    command = ("midstream_server", "serve", "--device", DEVICE, "--max-batch", "32")
    environ = {"MIDSTREAM_DATA_DIR": tempfile.mkdtemp()}
    began = time.perf_counter()
    with serving(Path(os.environ["OUT"]), environ, command=command) as server:
        print_line(f"the service is ready on {DEVICE} after {time.perf_counter() - began:.1f} s")
        asyncio.run(asyncio.wait_for(run_chat(server.ws_url), TALK_S))
        code = server.stop()
    expect(code == 0, f"the service ends with exit code 0, not {code}")
    ready = next(line for line in map(json.loads, records_of(server.log)) if line["event"] == "ready")
    expect(ready["device"].startswith(DEVICE), f"the model is on {DEVICE}, not {ready['device']}")


def records_of(log: Path) -> list[str]:
    """Return the lines of a log that are JSON; Python's own warnings are not."""
    return [line for line in log.read_text().splitlines() if line.startswith("{")]


async def run_chat(url: str) -> None:
    async with midstream.connect(url) as client:
        await cancelled_turn(client)
        sent = time.perf_counter()
        reply = await client.send("What is 3 + 4?")
        await reply.wait()
        print_line(f"next turn: {reply.text!r} after {1e3 * (time.perf_counter() - sent):.0f} ms")
        expect("7" in reply.text, f"3 + 4 is 7, not {reply.text!r}")
    for clients in (1, CROWD):
        await run_clients(url, clients)


async def cancelled_turn(client: midstream.Client) -> None:
    """Cancel a reply in its middle."""
    sent, first, cancel_ms = time.perf_counter(), None, None
    reply = await client.send("Count from 1 to 300.")
    async for _ in reply:
        first = first or time.perf_counter()
        if " 12," in reply.text and cancel_ms is None:
            requested = time.perf_counter()
            await reply.cancel()
            cancel_ms = 1e3 * (time.perf_counter() - requested)
    assert first is not None
    assert cancel_ms is not None, f"no 12 in {reply.text!r}"
    facts = {"first text ms": 1e3 * (first - sent), "cancel ms": cancel_ms, "done": reply.done}
    keep("service.json", facts)
    print_line(
        f"first text after {facts['first text ms']:.0f} ms, cancelled in {cancel_ms:.1f} ms: …{reply.text[-24:]!r}"
    )
    expect(ending(reply) == "cancelled", f"the turn ends as cancelled: {reply.done}")
    expect(" 300" not in reply.text, f"a cancelled reply stops before its end: {reply.text[-24:]!r}")


async def run_clients(url: str, clients: int) -> None:
    """Count side by side, each in a conversation of its own."""
    gaps: list[float] = []
    began = time.perf_counter()
    replies = await asyncio.gather(*(counted(url, gaps) for _ in range(clients)))
    took = time.perf_counter() - began
    rate = sum(len(text) for text in replies) / took
    facts = {"characters/s": rate, "gap ms p50": quantile(gaps, 0.5), "gap ms p99": quantile(gaps, 0.99)}
    keep("service.json", {f"{clients} clients": facts})
    print_line(
        f"{clients} clients: {rate:,.0f} characters/s, gaps p50 {facts['gap ms p50']:.1f} p99 {facts['gap ms p99']:.1f} ms"
    )


async def counted(url: str, gaps: list[float]) -> str:
    async with midstream.connect(url) as client:
        reply = await client.send(f"Count from 1 to {NUMBERS}.")
        last = time.perf_counter()
        async for _ in reply:
            now = time.perf_counter()
            gaps.append(1e3 * (now - last))
            last = now
        expect(ending(reply) == "stop", f"a reply ends by itself: {reply.done}")
        return reply.text


def ending(reply: midstream.Reply) -> Any:
    return (reply.done or {}).get("reason")


if __name__ == "__main__":
    main()
