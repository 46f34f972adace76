"""A rolling upgrade while clients talk: replicas of an earlier version are replaced by today's, one after the other.

Both versions come from this repository; the earlier one is taken from its history. Each conversation is also watched
through another replica, of either version. Versions that can't be mixed are refused at their start.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from io import BytesIO
from itertools import count
from pathlib import Path

import msgspec

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
TOO_OLD = "fa49edf33b57f060fcfd8cc7a351891ef9d9fa19"
"""A commit that can't read what today's version writes."""
DRAIN = {"MIDSTREAM_DRAIN_TIMEOUT": "20"}
"""Seconds in which each reply ends by itself: an upgrade may cut none off."""
REFUSED = "replicas of an older version still serve from this store"


class NoHistory(Exception):
    """The earlier versions are missing: there is no git, or a clone without its history."""


def measure(scenario: Scenario) -> Sequence[Measured]:
    """Replace all replicas, then try a mix that must be refused. Raises NoHistory."""
    before, too_old = (checked_out(commit, scenario.folder / commit[:8]) for commit in (BEFORE, TOO_OLD))
    return [*asyncio.run(_rolled(scenario, before)), _refused(scenario, too_old)]


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
    """The proxy's list of running replicas. Each is started in a folder of its own."""

    def __init__(self, scenario: Scenario, store_url: str, settings: Mapping[str, str]) -> None:
        self.urls: list[str] = []
        self.all: list[ServerProcess] = []
        self._stage = scenario
        self._environ = {"MIDSTREAM_REDIS_URL": store_url, "MIDSTREAM_LOG_LEVEL": "warning", **settings}

    def start(self, root: Path) -> ServerProcess:
        """Start one more replica, of the version whose tree is in `root`."""
        folder = self._stage.folder / f"replica-{len(self.all)}"
        folder.mkdir()
        script = gateway.Script(words=20, pace_s=PACE_S, hurry=self._stage.scale.hurry)
        server = ServerProcess(folder, self._environ, command=gateway.command(script), root=root)
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
    watching: list[_Watcher] = []
    async with AsyncExitStack() as stack:
        store = stack.enter_context(store_server(scenario.folder / "store"))
        replicas = _Replicas(scenario, store.url, DRAIN)
        stack.callback(replicas.end)
        earlier = [await asyncio.to_thread(replicas.start, before) for _ in range(scenario.scale.upgrades)]

        async def upgrade(client_group: ClientGroup) -> None:
            for chat_client in client_group.chat_clients:
                watcher = _Watcher(chat_client.device.client_id, replicas.urls)
                watching.append(watcher)
                stack.push_async_callback(watcher.stop)
            for number, server in enumerate(earlier):
                await asyncio.to_thread(replicas.start, ROOT)
                await client_group.go_on()
                statuses.append(await asyncio.to_thread(replicas.drain, server))
                await client_group.go_on()
                scenario.log(f"  {number + 1}: a replica was replaced, {client_group.ended} replies")

        client_group, accounts = await run_clients(scenario, replicas.urls, upgrade)
        seen = [one.device.event_checker for one in watching]
        logged = [error for server in replicas.all for error in unhandled(server.log)]
    cut = [turn_id for turn_id, done in client_group.ends.items() if done["reason"] not in ("length", "stop")]
    label = "a rolling upgrade"
    return [
        *client_group.findings(label, accounts, scenario.scale.upgrades),
        none(f"{label}: replies that it cut off", cut),
        none(f"{label}: broken promises to who watches", [one for its in seen for one in its.faults]),
        none(f"{label}: who watches and saw nothing", [its.conversation_id for its in seen if not its.turns]),
        none(f"{label}: drains that did not end well", [str(status) for status in statuses if status]),
        none(f"{label}: errors in the logs", logged),
    ]


class _Watcher:
    """Another device of a talker: it reconnects whenever there is a replica, to the newest first."""

    def __init__(self, client_id: str, urls: Sequence[str]) -> None:
        self.device = Device(client_id)
        self._urls = urls
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Leave for good."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.device.leave()

    async def _watch(self) -> None:
        for number in count():
            try:
                await self.device.come(self._urls[-1 - number % len(self._urls)])
                while await self.device.until(lambda: False, within_s=60.0):
                    pass
            except (Lost, IndexError):  # the next replica will do
                await asyncio.sleep(PAUSE_S)


def _refused(scenario: Scenario, too_old: Path) -> Measured:
    """Start today's version beside one that can't read what it writes."""
    folder = scenario.folder / "mix"
    folder.mkdir()
    with store_server(folder / "store") as store:
        replicas = _Replicas(msgspec.structs.replace(scenario, folder=folder), store.url, {})
        try:
            replicas.start(too_old)
            replicas.start(ROOT)
        except AssertionError as ended:
            wrong = [] if REFUSED in str(ended) else [str(ended)[-300:]]
        else:
            wrong = ["it serves"]
        finally:
            replicas.end()
    return none("beside a version that is too old: starts that are not refused", wrong)
