"""Alerts for slow disasters: each runs on real parts under the shipped thresholds, with windows of seconds, not minutes.

The fast ones are in `tests/deploy/test_monitoring.py`. Needs Debian's package `prometheus`.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from redis.asyncio import Redis

from tests.bench.report import Measured, at_most
from tests.chaos.gateway import UNHURRIED, Script, command
from tests.chaos.minimal_websocket import Dropped, MinimalWebSocket, Refused
from tests.chaos.scenario import Scenario
from tests.chaos.store_server import StoreServer
from tests.deploy.prometheus import PROMETHEUS, Prometheus, running_prometheus
from tests.server_process import ServerProcess, serving

FIRES_S = at_most(45.0)
SCRIPT = Script(words=20_000, word="x" * 4_000, pace_s=0.02, max_batch=2)
BATCH_AND_MORE = 6
MOST_CONNECTIONS = 30
LATE_S = 3.0
FIRST_TOKEN_S = 7.0
FILES_SHARE = 0.75
"""Share of the remaining files that is taken, so that 7 in 8 are open."""
STALL_S = 0.4
STALLS = 8


class _Scene(NamedTuple):
    """Two replicas of one store, and the Prometheus that watches them."""

    prometheus: Prometheus
    store: StoreServer
    doomed: ServerProcess
    other: ServerProcess


def measure(scenario: Scenario) -> Sequence[Measured]:
    """Run each disaster; report how soon its alert fired. Raises RuntimeError if there is no Prometheus."""
    if PROMETHEUS is None:
        raise RuntimeError("prometheus is not installed (apt install prometheus)")
    with ExitStack() as stack:
        store = StoreServer(_folder(scenario, "store"))
        store.start()
        stack.callback(store.kill)
        settings = UNHURRIED | {
            "MIDSTREAM_REDIS_URL": store.url,
            "MIDSTREAM_MAX_CONNECTIONS": str(MOST_CONNECTIONS),
            "MIDSTREAM_MAX_CLIENT_CONNECTIONS": str(2 * MOST_CONNECTIONS),
        }
        doomed, other = (
            stack.enter_context(serving(_folder(scenario, name), settings, command=command(SCRIPT)))
            for name in ("doomed", "other")
        )
        targets = [f"127.0.0.1:{one.port}" for one in (doomed, other)]
        prometheus = stack.enter_context(running_prometheus(_folder(scenario, "prometheus"), targets))
        prometheus.until(lambda: len(prometheus.query("up offset 3s")) == len(targets), "nothing was scraped")
        scene = _Scene(prometheus, store, doomed, other)
        findings = [asyncio.run(_fires(scenario, scene, *one)) for one in DISASTERS.items()]
        other.kill()
    return findings


def _folder(scenario: Scenario, name: str) -> Path:
    folder = scenario.folder / name
    folder.mkdir()
    return folder


async def _fires(
    scenario: Scenario, scene: _Scene, alert: str, disaster: Callable[[_Scene], Awaitable[None]]
) -> Measured:
    started = time.monotonic()
    await disaster(scene)
    await asyncio.to_thread(scene.prometheus.until_fires, alert)
    took = time.monotonic() - started
    scenario.log(f"{alert} fired after {took:.1f} s")
    return Measured(label=f"{alert}: fired after", value=took, unit="s", target=FIRES_S)


async def _too_many_connections(scene: _Scene) -> None:
    opened = []
    for number in range(2 * MOST_CONNECTIONS):
        opened.append(one := await MinimalWebSocket.connect(("127.0.0.1", scene.doomed.port)))
        try:
            await one.send_hello(client_id=f"one-of-many-{number}")
        except (Refused, Dropped):
            continue
    await asyncio.sleep(LATE_S)  # Prometheus scrapes once while they are there
    for one in opened:
        one.close()


async def _replies_wait(scene: _Scene) -> None:
    talking = await _talking(scene)
    await asyncio.to_thread(scene.prometheus.until_fires, "MidstreamRepliesWait")
    for one in talking:
        one.close()


async def _first_tokens_are_late(scene: _Scene) -> None:
    """Fill the batch with replies; others were accepted long before, and begin once these are stopped."""
    talking = await _talking(scene)

    async def read(one: MinimalWebSocket) -> None:
        while True:
            await one.get()

    reading = [asyncio.create_task(read(one)) for one in talking]
    await asyncio.sleep(FIRST_TOKEN_S)
    for one in talking[: SCRIPT.max_batch]:
        await one.put(type="cancel")
    await asyncio.to_thread(scene.prometheus.until_fires, "MidstreamFirstTokenLate")
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    for one in talking:
        one.close()


async def _few_files_are_left(scene: _Scene) -> None:
    """Take the sockets that a limit allows which is set too low."""
    assert scene.doomed.process is not None
    pid = scene.doomed.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    most = 2 * _open_files(pid)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, before[1]))
    opened = [
        await MinimalWebSocket.connect(("127.0.0.1", scene.doomed.port))
        for _ in range(int(most / 2 * FILES_SHARE))
    ]
    await asyncio.to_thread(scene.prometheus.until_fires, "MidstreamFewFilesLeft")
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    for one in opened:
        one.close()


def _open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def _readers_are_late(scene: _Scene) -> None:
    """Let a reader pause: what waited for it is sent when it reads again, and counts with its age."""
    one = (await _talking(scene, replies=1))[0]
    await asyncio.sleep(LATE_S)
    for _ in range(200):
        await one.get()
    one.close()


async def _store_is_slow(scene: _Scene) -> None:
    for _ in range(STALLS):
        scene.store.stall()
        await asyncio.sleep(STALL_S)
        scene.store.wake()
        await asyncio.sleep(STALL_S / 2)


async def _store_is_full_to(scene: _Scene, part: float, alert: str) -> None:
    """Give the store so little memory that this part of it is in use."""
    async with Redis.from_url(scene.store.url) as store:
        used = (await store.info("memory"))["used_memory"]
        await store.config_set("maxmemory", int(used / part))
        await asyncio.to_thread(scene.prometheus.until_fires, alert)
        await store.config_set("maxmemory", 0)


async def _store_dies(scene: _Scene) -> None:
    scene.store.kill()
    await asyncio.to_thread(scene.prometheus.until_fires, "MidstreamStoreFails")
    scene.store.start()


async def _replica_dies(scene: _Scene) -> None:
    await _talking(scene, replies=2)
    scene.doomed.send(signal.SIGKILL)


async def _talking(scene: _Scene, *, replies: int = BATCH_AND_MORE) -> list[MinimalWebSocket]:
    """Open sockets, each with a reply that is endless or waits in the queue."""
    opened = []
    for number in range(replies):
        address = ("127.0.0.1", scene.doomed.port)
        opened.append(one := await MinimalWebSocket.connect(address, receive_buffer=8 * 1024))
        await one.send_hello(client_id=f"talker-{number}-{time.monotonic_ns()}")
        params = {"max_new_tokens": SCRIPT.words}
        await one.put(type="send", client_msg_id="long", content="Go.", params=params)
        while (await one.get())["type"] != "accepted":
            pass
    return opened


DISASTERS: dict[str, Callable[[_Scene], Awaitable[None]]] = {
    "MidstreamTurnsConnectionsAway": _too_many_connections,
    "MidstreamRepliesWait": _replies_wait,
    "MidstreamFirstTokenLate": _first_tokens_are_late,
    "MidstreamFewFilesLeft": _few_files_are_left,
    "MidstreamDeltasLate": _readers_are_late,
    "MidstreamStoreSlow": _store_is_slow,
    "MidstreamStoreFills": partial(_store_is_full_to, part=0.7, alert="MidstreamStoreFills"),
    "MidstreamStoreFull": partial(_store_is_full_to, part=0.9, alert="MidstreamStoreFull"),
    "MidstreamStoreFails": _store_dies,
    "MidstreamTurnsReaped": _replica_dies,
}
"""The disasters, in the order in which they run. The last one ends a replica."""
