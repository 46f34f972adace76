"""A rolling upgrade while clients talk: replicas of an earlier version are replaced by today's, one after the other.

Both versions come from this repository; the earlier one is taken from its history. Each conversation is also watched
through another replica, of either version.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from io import BytesIO
from itertools import count
from pathlib import Path

from tests.bench.report import Measured, none
from tests.chaos import gateway
from tests.chaos.chat_client import PACE_S, PAUSE_S, ClientGroup, Device, Lost, run_clients
from tests.chaos.scenario import Scenario
from tests.chaos.server_log import unhandled
from tests.chaos.store_server import store_server
from tests.server_process import ServerProcess

ROOT = Path(__file__).parents[2]
BEFORE = "f7da1b7184a4c826d055ae88bb6803c20e874c99"
"""The first commit that writes what today's version reads."""
DRAIN = {"MIDSTREAM_DRAIN_TIMEOUT": "20"}
"""Seconds in which each reply ends by itself: an upgrade may cut none off."""


class NoHistory(Exception):
    """The earlier versions are missing: there is no git, or a clone without its history."""


def measure(scenario: Scenario) -> Sequence[Measured]:
    """Replace all replicas. Raises NoHistory."""
    return asyncio.run(_rolled(scenario, checked_out(BEFORE, scenario.folder / BEFORE[:8])))


def checked_out(commit: str, folder: Path) -> Path:
    """Write out the tree of a commit; return its folder. Raises NoHistory."""
    if shutil.which("git") is None:
        raise NoHistory("git is not installed")
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode != 0:
        raise NoHistory(f"the history has no {commit[:8]}: {packed.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


class _Replicas:
    """The list of running replicas, each in a folder of its own."""

    def __init__(self, folder: Path, store_url: str, *, hurry: float) -> None:
        self.urls: list[str] = []
        self.all: list[ServerProcess] = []
        self._folder = folder
        self._environ = {"MIDSTREAM_REDIS_URL": store_url, "MIDSTREAM_LOG_LEVEL": "warning"} | DRAIN
        self._command = gateway.command(gateway.Script(words=20, pace_s=PACE_S, hurry=hurry))

    def start(self, root: Path) -> ServerProcess:
        """Start one more replica, of the version whose tree is in `root`. Raises AssertionError if it does not serve."""
        (folder := self._folder / f"replica-{len(self.all)}").mkdir()
        server = ServerProcess(folder, self._environ, command=self._command, root=root)
        self.all.append(server)
        server.start()
        self.urls.append(server.ws_url)
        return server

    def drain(self, server: ServerProcess) -> int:
        """Send it no new clients; then let it end by itself. Return its exit status."""
        self.urls.remove(server.ws_url)
        return server.stop()

    def end(self) -> None:
        """End the replicas that still run."""
        for server in self.all:
            if server.process is not None and server.process.poll() is None:
                server.stop()


async def _rolled(scenario: Scenario, before: Path) -> list[Measured]:
    statuses: list[int] = []
    watching: list[Device] = []
    async with AsyncExitStack() as stack:
        store = stack.enter_context(store_server(scenario.folder / "store"))
        replicas = _Replicas(scenario.folder, store.url, hurry=scenario.scale.hurry)
        stack.callback(replicas.end)
        earlier = [await asyncio.to_thread(replicas.start, before) for _ in range(scenario.scale.upgrades)]

        async def upgrade(group: ClientGroup) -> None:
            watching.extend(Device(one.device.client_id) for one in group.chat_clients)
            tasks = [asyncio.create_task(_watch(device, replicas.urls)) for device in watching]
            for number, server in enumerate(earlier):
                await asyncio.to_thread(replicas.start, ROOT)
                await group.go_on()
                statuses.append(await asyncio.to_thread(replicas.drain, server))
                await group.go_on()
                scenario.log(f"  {number + 1}: a replica was replaced, {group.ended} replies")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        group, accounts = await run_clients(scenario, replicas.urls, upgrade)
        seen = [device.event_checker for device in watching]
        logged = [error for server in replicas.all for error in unhandled(server.log)]
    cut = [turn_id for turn_id, done in group.ends.items() if done["reason"] not in ("length", "stop")]
    label = "a rolling upgrade"
    return [
        *group.findings(label, accounts, scenario.scale.upgrades),
        none(f"{label}: replies that it cut off", cut),
        none(f"{label}: broken promises to who watches", [one for its in seen for one in its.faults]),
        none(f"{label}: who watches and saw nothing", [its.conversation_id for its in seen if not its.turns]),
        none(f"{label}: drains that did not end well", [str(status) for status in statuses if status]),
        none(f"{label}: errors in the logs", logged),
    ]


async def _watch(device: Device, urls: Sequence[str]) -> None:
    """Watch a talker as another device of it: reconnect whenever there is a replica, to the newest first, until cancelled."""
    try:
        for number in count():
            try:
                await device.come(urls[-1 - number % len(urls)])
                while await device.until(lambda: False, within_s=60.0):
                    pass
            except (Lost, IndexError):  # the next replica will do
                await asyncio.sleep(PAUSE_S)
    finally:
        await device.leave()
