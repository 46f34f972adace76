"""Several servers: a small cluster, or a master with a replica and Sentinels.

They run the embedded store's binary, or the one that `STORE_BINARY` names.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import DEVNULL, Process, create_subprocess_exec
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from socket import socket
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from sessions.store.embedded import _die_with_parent, binary

READY_S = 60.0
MASTERS = 3
SLOTS = 16384
MASTER = "mymaster"


class Node(msgspec.Struct):
    """A server on this machine."""

    port: int
    process: Process
    command: tuple[str, ...]

    async def ask(self, *command: str | int) -> Any:
        """Sends it a command."""
        async with Redis(port=self.port) as client:
            return await client.execute_command(*command)  # type: ignore[no-untyped-call]

    def kill(self) -> None:
        """As when its machine goes down."""
        self.process.kill()

    async def restart(self) -> None:
        """As when that comes up again: with what it had written to its disk."""
        await self.process.wait()
        self.process = await _start(self.command)
        await happened(lambda: _answers(self))


def free_port() -> int:
    with socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


async def happened(so: Callable[[], Awaitable[bool]]) -> None:
    """Waits for other processes, of which nothing tells when they are so far."""
    async with asyncio.timeout(READY_S):
        while not await so():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.02)


@asynccontextmanager
async def node(folder: Path, *arguments: str, **options: str | int) -> AsyncIterator[Node]:
    """A server while the context lasts. `arguments` come before the options."""
    folder.mkdir(parents=True)  # noqa: ASYNC240 - one small folder
    port = int(options.get("port") or free_port())
    settings = options | {"port": port, "bind": "127.0.0.1", "dir": folder, "logfile": folder / "log"}
    named = (part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value)))
    command = (os.environ.get("STORE_BINARY") or binary(), *arguments, *named)
    found = Node(port, await _start(command), command)
    try:
        await happened(lambda: _answers(found))
        yield found
    finally:
        if found.process.returncode is None:
            os.kill(found.process.pid, 9)
        await found.process.wait()


@asynccontextmanager
async def restarted(ended: Node) -> AsyncIterator[None]:
    """The same server, which has ended, once more."""
    process = await _start(ended.command)
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def _start(command: tuple[str, ...]) -> Process:
    return await create_subprocess_exec(*command, stdin=DEVNULL, stdout=DEVNULL, preexec_fn=_die_with_parent)


async def _answers(found: Node) -> bool:
    try:
        return bool(await found.ask("PING"))
    except (RedisError, OSError):
        return False


@asynccontextmanager
async def cluster(folder: Path, **options: str | int) -> AsyncIterator[list[Node]]:
    """Three masters that share all slots; what is left of them serves on where one is down."""
    async with AsyncExitStack() as stack:
        nodes, buses = [], []
        for number in range(MASTERS):
            buses.append(free_port())
            starting = node(
                folder / str(number),
                save="",
                cluster_enabled="yes",
                cluster_port=buses[-1],
                cluster_require_full_coverage="no",
                cluster_node_timeout=2000,
                **options,
            )
            nodes.append(await stack.enter_async_context(starting))
        for number, one in enumerate(nodes):
            first, behind = (SLOTS * part // MASTERS for part in (number, number + 1))
            await one.ask("CLUSTER", "ADDSLOTSRANGE", first, behind - 1)
            await one.ask("CLUSTER", "MEET", "127.0.0.1", nodes[0].port, buses[0])
        for one in nodes:
            await happened(lambda one=one: _knows_all(one))  # type: ignore[misc]
        yield nodes


async def _knows_all(one: Node) -> bool:
    facts = await one.ask("CLUSTER", "INFO")
    return b"cluster_state:ok" in facts and b"cluster_slots_ok:%d\r" % SLOTS in facts


@asynccontextmanager
async def with_replicas(masters: list[Node], folder: Path, **options: str | int) -> AsyncIterator[list[Node]]:
    """A replica of each master, which takes its place when it is down."""
    async with AsyncExitStack() as stack:
        replicas = []
        for number, master in enumerate(masters):
            starting = node(
                folder / str(number),
                save="",
                cluster_enabled="yes",
                cluster_port=free_port(),
                cluster_require_full_coverage="no",
                cluster_node_timeout=2000,
                cluster_allow_replica_migration="no",
                **options,
            )
            replicas.append(replica := await stack.enter_async_context(starting))
            bus = _option(master, "--cluster-port")
            await replica.ask("CLUSTER", "MEET", "127.0.0.1", master.port, bus)
            await happened(lambda master=master, replica=replica: _replicates(replica, master))  # type: ignore[misc]
        for one in (*masters, *replicas):
            await happened(lambda one=one: _knows_all(one))  # type: ignore[misc]
        for replica in replicas:
            await happened(lambda replica=replica: _is_linked(replica))  # type: ignore[misc]
        yield replicas


def _option(one: Node, name: str) -> str:
    return one.command[one.command.index(name) + 1]


async def _replicates(replica: Node, master: Node) -> bool:
    try:
        await replica.ask("CLUSTER", "REPLICATE", (await master.ask("CLUSTER", "MYID")).decode())
    except ResponseError:  # it has not met it so far
        return False
    return True


async def take_over(master: Node, replica: Node) -> None:
    """The master dies, its replica takes its place, and it restarts as that one's replica."""
    master.kill()
    await happened(lambda: _has_role(replica, b"master"))
    await master.restart()
    await happened(lambda: _follows(master))


async def switch_roles(master: Node, replica: Node, *how: str) -> None:
    """The replica takes its master's place as an operator asks for it, and the master becomes its replica."""
    await replica.ask("CLUSTER", "FAILOVER", *how)
    await happened(lambda: _has_role(replica, b"master"))
    await happened(lambda: _follows(master))


async def _follows(one: Node) -> bool:
    role = await one.ask("ROLE")
    return bool(role[0] == b"slave" and role[3] == b"connected")


class Watched(msgspec.Struct):
    """A master with its replica, and the Sentinels that watch them."""

    master: Node
    replica: Node
    sentinels: list[Node]

    @property
    def sentinel(self) -> Node:
        """The first Sentinel."""
        return self.sentinels[0]

    @property
    def url(self) -> str:
        """The store's URL, with all Sentinels."""
        return f"redis+sentinel://{','.join(f'127.0.0.1:{one.port}' for one in self.sentinels)}/{MASTER}"

    async def switch(self) -> None:
        """Fail over as an operator does, and wait until the Sentinels have made the old master a replica.

        That one takes writes for about ten seconds after the promotion.
        """
        await self.promote()
        await happened(lambda: _follows(self.master))
        self.master, self.replica = self.replica, self.master

    async def fail_over(self) -> None:
        """The replica becomes the master, and the master a replica."""
        await self.promote()
        await self.demote()

    async def promote(self) -> None:
        """The last Sentinel makes the replica a master."""
        await happened(self.begins_to_fail_over)
        await happened(lambda: _has_role(self.replica, b"master"))

    async def demote(self) -> None:
        """Make the old master a replica: the Sentinels take ten seconds to."""
        await self.master.ask("REPLICAOF", "127.0.0.1", self.replica.port)

    async def begins_to_fail_over(self) -> bool:
        """Ask the last Sentinel for a failover; return whether it begins."""
        try:
            await self.sentinels[-1].ask("SENTINEL", "FAILOVER", MASTER)
        except ResponseError:  # it has not asked the replica how that is so far
            return False
        return True


@asynccontextmanager
async def watched_by_sentinel(
    folder: Path, *, watch: tuple[str, ...] = (), sentinels: int = 1, **options: str | int
) -> AsyncIterator[Watched]:
    """A master and its replica, of which the Sentinels know. `watch`: lines of their configuration, `{}` being the master's name."""
    options |= {"save": "", "repl_diskless_sync_delay": 0}
    async with (
        node(folder / "master", **options) as master,
        node(folder / "replica", replicaof=f"127.0.0.1 {master.port}", **options) as replica,
    ):
        await happened(lambda: _is_linked(replica))
        # They know one another and the replica from the start, as after a restart; else they take seconds to meet.
        ports = [free_port() for _ in range(sentinels)]
        names = {port: f"{port:040x}" for port in ports}
        lines = [
            f"monitor {MASTER} 127.0.0.1 {master.port} {sentinels // 2 + 1}",
            *(line.format(MASTER) for line in watch),
            f"known-replica {MASTER} 127.0.0.1 {replica.port}",
        ]
        watching = []
        async with AsyncExitStack() as stack:
            for port, name in names.items():
                others = [one for one in ports if one != port]
                known = [f"known-sentinel {MASTER} 127.0.0.1 {one} {names[one]}" for one in others]
                written = folder / f"sentinel-{port}.conf"
                written.write_text("".join(f"sentinel {line}\n" for line in [f"myid {name}", *lines, *known]))
                starting = node(folder / f"sentinel-{port}", str(written), "--sentinel", port=port)
                watching.append(await stack.enter_async_context(starting))
            for one in watching:
                await happened(lambda one=one: _knows_group(one, sentinels - 1))  # type: ignore[misc]
            yield Watched(master, replica, watching)


async def _is_linked(replica: Node) -> bool:
    return b"connected" in await replica.ask("ROLE")


async def _has_role(one: Node, role: bytes) -> bool:
    return bool((await one.ask("ROLE"))[0] == role)


async def _knows_group(sentinel: Node, others: int) -> bool:
    known = await sentinel.ask("SENTINEL", "SENTINELS", MASTER)
    return bool(await sentinel.ask("SENTINEL", "REPLICAS", MASTER)) and len(known) == others
