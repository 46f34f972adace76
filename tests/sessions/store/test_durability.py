"""What is waited for before an `accepted` or a `done` is told, with real disks and real replicas."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from shutil import which
from typing import cast

import pytest
import pytest_asyncio
from redis.asyncio import Redis, RedisCluster
from redis.exceptions import RedisError

from sessions.errors import StoreDown
from sessions.events import Accepted, Done
from sessions.store import embedded, history
from sessions.store.client import Durability, DurabilityUnsupported, WriteConfirmer, connect
from sessions.store.embedded import embedded_store
from sessions.store.server_config import WriteProbe, WritesRefused, checked_server_configs
from tests.faulty_disk import disk
from tests.sessions.chat_driver import Chat, serving
from tests.sessions.recorder import continuous
from tests.sessions.server_group import Node, cluster, happened, node, switch_roles, with_replicas
from tests.store_faults import pid_of, stalled

pytestmark = pytest.mark.asyncio(loop_scope="module")


@asynccontextmanager
async def chatting(url: str, durability: Durability) -> AsyncIterator[Chat]:
    async with connect(url) as store, serving(store, alone=False, durability=durability) as chat:
        yield chat
        chat.leave()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Node, Node]]:
    """A server and its replica, of which the last test makes each other's replicas."""
    folder = tmp_path_factory.mktemp("pair")
    async with (
        node(folder / "master", save="", repl_diskless_sync_delay=0) as master,
        node(folder / "replica", save="", replicaof=f"127.0.0.1 {master.port}") as replica,
    ):

        async def is_linked() -> bool:
            return b"connected" in await replica.ask("ROLE")

        await happened(is_linked)
        yield master, replica


@pytest_asyncio.fixture(loop_scope="module")
async def pair(servers: tuple[Node, Node]) -> tuple[Node, Node]:
    """The same, empty."""
    await servers[0].ask("FLUSHALL")
    await servers[0].ask("CONFIG", "RESETSTAT")
    return servers


def lossy(monkeypatch: pytest.MonkeyPatch, folder: Path, *, sync_s: float = 0.0) -> None:
    """The embedded store's disk loses at a kill what was not synced."""
    if which("cc") is None:
        pytest.skip("needs gcc and libc6-dev")
    for name, value in disk(folder, store=folder / "store", sync_s=sync_s).items():
        monkeypatch.setenv(name, value)
    if sync_s:
        monkeypatch.setattr(embedded, "STOP_S", 0.2)  # it syncs when it is stopped


async def answering(store: Redis) -> None:
    """Wait until a store that was killed answers again."""

    async def answers() -> bool:
        try:
            return bool(await store.ping())
        except (RedisError, OSError):
            return False

    await happened(answers)


@contextmanager
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server that does not confirm is not waited for long."""
    with monkeypatch.context() as patched:
        patched.setattr("sessions.store.client.WAIT_MS", 50)
        yield


async def test_what_is_told_a_replica_has_too(pair: tuple[Node, Node]) -> None:
    master, replica = pair
    async with chatting(f"redis://127.0.0.1:{master.port}", Durability.REPLICATED) as chat:
        accepted = await chat.send("Hello?")
        assert await replica.ask("HEXISTS", chat.keys.conversation, f"turn:{accepted.turn_id}")
        chat.engine.step(20)
        done = await chat.reader.next(Done)
        assert done.saved
        assert await replica.ask("HEXISTS", chat.keys.conversation, f"message:{done.message_id}")
    await master.ask("CONFIG", "RESETSTAT")
    async with chatting(f"redis://127.0.0.1:{master.port}", Durability.MEMORY) as chat:
        with stalled(replica.process.pid):
            await chat.exchange("And now?", "Now.", client_msg_id="two")
    assert b"cmdstat_wait" not in await master.ask("INFO", "commandstats")


async def test_a_message_that_no_replica_takes_is_refused_and_leaves_nothing(
    pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated one, too: its sender takes the answer for an acknowledgement, and the first one may never have been given."""
    master, replica = pair
    with hasty(monkeypatch):
        async with chatting(f"redis://127.0.0.1:{master.port}", Durability.REPLICATED) as chat:
            with stalled(replica.process.pid), pytest.raises(StoreDown, match="did not confirm"):
                await chat.send("Hello?", client_msg_id="one")
            await chat.reap()
            assert await chat.messages() == []
            await chat.exchange("Hello?", "Hello.", client_msg_id="one")
            assert await chat.texts() == ["Hello?", "Hello."]
            with stalled(replica.process.pid), pytest.raises(StoreDown, match="did not confirm"):
                await chat.send("Hello?", client_msg_id="one")
            assert (await chat.send("Hello?", client_msg_id="one")).duplicate


async def test_a_queued_message_that_no_replica_takes_is_refused_and_leaves_nothing(
    pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is its place in the queue left, nor its id taken; the reply before it goes on."""
    master, replica = pair
    with hasty(monkeypatch):
        async with chatting(f"redis://127.0.0.1:{master.port}", Durability.REPLICATED) as chat:
            await chat.running("One?", "This")
            with stalled(replica.process.pid), pytest.raises(StoreDown, match="did not confirm"):
                await chat.send("Two?", on_busy="enqueue", client_msg_id="two")
            assert len(chat.reader.of(Accepted)) == 1
            accepted = await chat.enqueue("Two?", client_msg_id="two")
            assert await replica.ask("HEXISTS", chat.keys.conversation, f"turn:{accepted.turn_id}")
            chat.cancel(accepted.turn_id)
            assert (await chat.reader.next(Done)).saved
            chat.engine.step(20)
            await chat.wait_idle()
            contents = await chat.texts()
            assert contents == ["One?", chat.engine._reply, "Two?", ""]
            assert continuous(chat.reader.events)


async def test_a_reply_waits_for_the_message_behind_it_so_long_at_most(
    pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on while the replica stands still, which is asked for a second."""
    master, replica = pair
    monkeypatch.setattr(history, "CONFIRMED_WITHIN_S", 0.05)
    async with chatting(f"redis://127.0.0.1:{master.port}", Durability.REPLICATED) as chat:
        accepted = await chat.running("One?", "This")
        with stalled(replica.process.pid):
            with pytest.raises(StoreDown, match="in time"):
                await chat.send("Two?", on_busy="enqueue")
            await chat.step()
        chat.engine.step(20)
        done = await chat.reader.next(Done)
        assert (done.turn_id, done.saved) == (accepted.turn_id, True)
        await chat.wait_idle()
        assert continuous(chat.reader.events)


async def test_a_write_that_no_replica_confirms_is_none(
    pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where messages wait for a replica: `/readyz` says that there are no writes."""
    master, replica = pair
    async with connect(f"redis://127.0.0.1:{master.port}") as store:
        writable = WriteProbe(store, Durability.REPLICATED)
        await writable.check()
        with stalled(replica.process.pid), hasty(monkeypatch):
            with pytest.raises(WritesRefused, match="takes no writes"):
                await writable.check()
            await WriteProbe(store, Durability.MEMORY).check()
        await writable.check()


async def test_what_is_told_survives_a_power_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store answers once its disk has the write, so nothing else is asked of it."""
    lossy(monkeypatch, tmp_path)
    async with (
        embedded_store(tmp_path) as url,
        connect(url) as store,
        chatting(url, Durability.DISK) as chat,
    ):
        await chat.exchange("Hello?", "Hello.")
        assert (await chat.reader.next(Done)).saved
        os.kill(await pid_of(store), signal.SIGKILL)
        await answering(store)
        assert await chat.messages() == [("user", "Hello?"), ("assistant", "Hello.")]


async def test_a_store_that_writes_each_second_loses_what_it_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lossy(monkeypatch, tmp_path, sync_s=60)
    async with embedded_store(tmp_path, fsync="everysec") as url, connect(url) as store:
        await store.set("acknowledged", "in memory")
        os.kill(await pid_of(store), signal.SIGKILL)
        await answering(store)
        assert await store.get("acknowledged") is None


async def test_a_server_that_answers_before_its_disk_is_not_asked_for_it(tmp_path: Path) -> None:
    async with (
        node(tmp_path / "one", save="", appendonly="yes") as one,
        connect(f"redis://127.0.0.1:{one.port}") as store,
    ):
        for durability in (Durability.MEMORY, Durability.REPLICATED):
            await checked_server_configs(store, durability)
        for name, value in (("appendfsync", "everysec"), ("appendfsync", "no"), ("appendonly", "no")):
            await store.config_set(name, value)
            with pytest.raises(DurabilityUnsupported, match="appendfsync always"):
                await checked_server_configs(store, Durability.DISK)
            await store.config_set("appendfsync", "always")
        with pytest.raises(DurabilityUnsupported, match="appendonly yes"):
            await checked_server_configs(store, Durability.DISK)
        await store.config_set("appendonly", "yes")
        await checked_server_configs(store, Durability.DISK)


async def test_a_cluster_is_asked_where_the_conversation_is(tmp_path: Path) -> None:
    """A write to a master that was replaced is not confirmed: the new one may not have it, whatever its replicas have."""
    async with (
        cluster(tmp_path / "masters", repl_diskless_sync_delay=0) as masters,
        connect(f"redis+cluster://127.0.0.1:{masters[0].port}") as store,
    ):
        confirming = WriteConfirmer(store, Durability.REPLICATED)
        await confirming.check()
        await store.set("key", "written")
        with pytest.raises(StoreDown, match="did not confirm"):
            await confirming.confirm("key", ttl_ms=60_000, term=0)
        owner = cast("RedisCluster", store).get_node_from_key("key")
        master = next(one for one in masters if owner is not None and one.port == owner.port)
        folder = tmp_path / "replicas"
        async with with_replicas([master], folder, repl_diskless_sync_delay=0) as (replica,):
            await confirming.confirm("key", ttl_ms=60_000, term=0)
            await switch_roles(master, replica, "TAKEOVER")
            with pytest.raises(StoreDown):
                await confirming.confirm("key", ttl_ms=60_000, term=0)
            await confirming.confirm("key", ttl_ms=60_000, term=0)


async def test_a_primary_that_becomes_a_replica_while_it_is_asked_is_an_outage(
    pair: tuple[Node, Node],
) -> None:
    """Were it taken for damaged data, the turn would be given up."""
    master, replica = pair

    async def is_blocked() -> bool:
        return bool((await master.ask("INFO", "clients"))["blocked_clients"])

    async with connect(f"redis://127.0.0.1:{master.port}") as store:
        confirming = WriteConfirmer(store, Durability.REPLICATED)
        with stalled(replica.process.pid):
            await store.set("key", "written")
            confirmed = asyncio.ensure_future(confirming.confirm("key", ttl_ms=60_000, term=0))
            await happened(is_blocked)
            await master.ask("REPLICAOF", "127.0.0.1", replica.port)
            with pytest.raises(StoreDown) as refused:
                await confirmed
        assert type(refused.value) is StoreDown
