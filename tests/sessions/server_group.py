"""Several servers of the embedded store's binary: a small cluster, or a master with a replica and a Sentinel."""

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

from sessions.store.embedded import _binary, _die_with_parent

READY_S = 30.0
MASTERS = 3
SLOTS = 16384
MASTER = "mymaster"


class Node(msgspec.Struct):
    """A server on this machine."""

    port: int
    process: Process

    async def ask(self, *command: str | int) -> Any:
        """Sends it a command."""
        async with Redis(port=self.port) as client:
            return await client.execute_command(*command)  # type: ignore[no-untyped-call]

    def kill(self) -> None:
        """As when its machine goes down."""
        self.process.kill()


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
    port = free_port()
    settings = {"port": port, "bind": "127.0.0.1", "dir": folder, "logfile": folder / "log"} | options
    process = await create_subprocess_exec(
        _binary(),
        *arguments,
        *(part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))),
        stdin=DEVNULL,
        stdout=DEVNULL,
        preexec_fn=_die_with_parent,
    )
    try:
        found = Node(port, process)
        await happened(lambda: _answers(found))
        yield found
    finally:
        if process.returncode is None:
            os.kill(process.pid, 9)
        await process.wait()


async def _answers(found: Node) -> bool:
    try:
        return bool(await found.ask("PING"))
    except (RedisError, OSError):
        return False


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[list[Node]]:
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


class Watched(msgspec.Struct):
    """A master with its replica, and the Sentinel that watches them."""

    master: Node
    replica: Node
    sentinel: Node

    async def fail_over(self) -> None:
        """The replica becomes the master, and the master a replica."""
        await happened(self._begins_to_fail_over)
        await happened(lambda: _has_role(self.replica, b"master"))
        await self.master.ask(
            "REPLICAOF", "127.0.0.1", self.replica.port
        )  # the Sentinel takes ten seconds to

    async def _begins_to_fail_over(self) -> bool:
        try:
            await self.sentinel.ask("SENTINEL", "FAILOVER", MASTER)
        except ResponseError:  # it has not asked the replica how that is so far
            return False
        return True


@asynccontextmanager
async def watched_by_sentinel(folder: Path) -> AsyncIterator[Watched]:
    """A master and its replica, of which the Sentinel knows."""
    async with (
        node(folder / "master", save="", repl_diskless_sync_delay=0) as master,
        node(folder / "replica", save="", replicaof=f"127.0.0.1 {master.port}") as replica,
    ):
        await happened(lambda: _is_linked(replica))
        written = folder / "sentinel.conf"
        written.write_text(f"sentinel monitor {MASTER} 127.0.0.1 {master.port} 1\n")
        async with node(folder / "sentinel", str(written), "--sentinel") as sentinel:
            await happened(lambda: _knows_replica(sentinel))
            yield Watched(master, replica, sentinel)


async def _is_linked(replica: Node) -> bool:
    return b"connected" in await replica.ask("ROLE")


async def _has_role(one: Node, role: bytes) -> bool:
    return bool((await one.ask("ROLE"))[0] == role)


async def _knows_replica(sentinel: Node) -> bool:
    return bool(await sentinel.ask("SENTINEL", "REPLICAS", MASTER))
