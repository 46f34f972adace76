"""Whether messages would be refused, as `/readyz` asks it: of real clusters, and of real replicas."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from sessions.errors import StoreDown
from sessions.store.client import Durability, connect
from sessions.store.server_config import WriteProbe, WritesRefused, config_warnings, server_configs
from tests.sessions.server_group import Node, cluster, happened, node
from tests.store_faults import stalled

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def nodes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[Node]]:
    """A cluster for all tests, of which the last one takes a node down."""
    async with cluster(tmp_path_factory.mktemp("nodes") / "cluster") as nodes:
        yield nodes


@pytest_asyncio.fixture(loop_scope="module")
async def clustered(nodes: list[Node]) -> AsyncIterator[Redis]:
    async with connect(f"redis+cluster://127.0.0.1:{nodes[0].port}") as client:
        yield client


async def test_a_cluster_is_asked_once_for_each_of_its_masters(nodes: list[Node], clustered: Redis) -> None:
    await WriteProbe(clustered, Durability.MEMORY).check()
    probes = [await one.ask("KEYS", "ms:probe:*") for one in nodes]
    assert [len(keys) for keys in probes] == [1, 1, 1]


async def test_a_master_that_takes_no_writes_is_found(nodes: list[Node], clustered: Redis) -> None:
    writable = WriteProbe(clustered, Durability.MEMORY)
    for one in nodes:
        await one.ask("CONFIG", "SET", "min-replicas-to-write", 1)
        with pytest.raises(WritesRefused, match="takes no writes on one of its 3 masters"):
            await writable.check()
        await one.ask("CONFIG", "SET", "min-replicas-to-write", 0)
        await writable.check()


async def test_the_setup_of_every_master_of_a_cluster_is_read(nodes: list[Node], clustered: Redis) -> None:
    for one in nodes:
        await one.ask("CONFIG", "SET", "appendonly", "yes")
    await nodes[2].ask("CONFIG", "SET", "appendfsync", "no")
    configs = await server_configs(clustered)
    assert len(configs) == len(nodes)
    assert "lose the last half minute" in " ".join(config_warnings(configs, Durability.MEMORY))


async def test_a_write_that_no_replica_confirms_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where messages wait for a replica."""
    async with (
        node(tmp_path / "master", save="", repl_diskless_sync_delay=0) as master,
        node(tmp_path / "replica", save="", replicaof=f"127.0.0.1 {master.port}") as replica,
        connect(f"redis://127.0.0.1:{master.port}") as store,
    ):

        async def is_linked() -> bool:
            return b"connected" in await replica.ask("ROLE")

        await happened(is_linked)
        writable = WriteProbe(store, Durability.REPLICATED)
        await writable.check()
        with stalled(replica.process.pid), monkeypatch.context() as patched:
            patched.setattr("sessions.store.client.WAIT_MS", 50)
            with pytest.raises(WritesRefused, match="takes no writes"):
                await writable.check()
            await WriteProbe(store, Durability.MEMORY).check()
        await writable.check()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_master_that_is_gone_is_found(nodes: list[Node]) -> None:
    """The client forgets connections where a server is gone; they are closed when they are collected."""
    async with connect(f"redis+cluster://127.0.0.1:{nodes[0].port}") as client:
        writable = WriteProbe(client, Durability.MEMORY)
        await writable.check()
        nodes[2].kill()
        with pytest.raises(StoreDown):
            await writable.check()
    del writable, client
    gc.collect()
