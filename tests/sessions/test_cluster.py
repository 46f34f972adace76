"""A store of several servers: a Redis Cluster serves as one server does, and Sentinels name the master of the moment."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from redis.asyncio import Redis, SSLConnection
from redis.exceptions import RedisError

from sessions.errors import StoreDown
from sessions.events import Delta, Done, Resumed
from sessions.records import Owner, digest
from sessions.store.client import Durability, connect
from sessions.store.codec import Keys
from sessions.store.history import History
from sessions.store.images import Images
from sessions.store.ledger import Ledger, Memory, StoreFull
from sessions.store.owner_data import begin_epochs
from sessions.store.ownership import Ownership
from sessions.store.pool import FairPool
from sessions.store.server_config import WriteProbe, WritesRefused, config_warnings, server_configs
from sessions.turn.message_request import GenerationConfig, MessageRequest
from sessions.turn.turn import Cancel, Cancelled
from tests.sample_images import JPEG, PNG
from tests.sessions.chat_driver import Chat, eventually, serving
from tests.sessions.recorder import Recorder, continuous
from tests.sessions.server_group import Node, cluster, happened, watched_by_sentinel
from tests.sessions.store.storage_quotas import counted_bytes, of

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOMS = [f"room-{number}" for number in range(9)]
"""So many that each of three servers has some of them."""


@asynccontextmanager
async def chatting(store: Redis, *, alone: bool = False) -> AsyncIterator[Chat]:
    """A replica of its own, with one connection."""
    async with serving(store, alone=alone) as chat:
        yield chat
        chat.leave()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def nodes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[Node]]:
    """A cluster for all tests, of which the last one takes a node down."""
    async with cluster(tmp_path_factory.mktemp("nodes") / "cluster") as nodes:
        yield nodes


@pytest_asyncio.fixture(loop_scope="module")
async def clustered(nodes: list[Node]) -> AsyncIterator[Redis]:
    """A client that was told one of the nodes, on which nothing is kept."""
    for node in nodes:
        await node.ask("FLUSHALL")
        await node.ask("SCRIPT", "FLUSH")
    async with connect(f"redis+cluster://127.0.0.1:{nodes[0].port}") as client:
        yield client


async def test_conversations_on_all_nodes_are_written_with_one_pipeline_a_step(clustered: Redis) -> None:
    """Each node that forgot its scripts gets them again."""
    async with chatting(clustered) as chat:
        for room in ROOMS:
            chat.engine.script("One two three")
            await clustered.script_flush()
            await chat.send("Hello?", conversation_id=room)
        await eventually(lambda: len(chat.engine.requests) == len(ROOMS))
        await clustered.script_flush()
        chat.engine.step(20)
        await chat.reader.next(Done, count=len(ROOMS))
        await chat.wait_idle()
        assert {done.text_sha256 for done in chat.reader.of(Done)} == {digest("One two three")}
        assert all(done.saved for done in chat.reader.of(Done))
        page = await chat.sessions.conversations(chat.owner, limit=20, before=None)
        assert {row.conversation_id for row in page.conversations} == set(ROOMS)


async def test_images_are_kept_counted_and_shown_across_nodes(clustered: Redis) -> None:
    """Uploads, conversations and ledgers lie in slots of their own."""
    ledger = Ledger(clustered)
    images, owners = Images(clustered, ledger=ledger), [Owner("anonymous", name) for name in ROOMS]
    history = History(clustered, ttl_s=60, replica="here", ledger=ledger)
    names = [PNG.image.digest, JPEG.image.digest]
    for owner in owners:
        await images.keep(owner, PNG.image, JPEG.image, group="192.0.2.7")
        for room in ROOMS[:3]:
            shown = await images.show(owner, keys := Keys.of(owner, room), names, group="192.0.2.7")
            assert [one.digest for one in shown] == names
        assert list((await images.read(keys, names)).values()) == [PNG.image, JPEG.image]
        await history.delete(keys)
    await ledger.settle()
    sums = [await of(clustered, owner) for owner in owners]
    assert len(set(sums)) == 1
    assert await counted_bytes(clustered, "ms:stored-by:{192.0.2.7}") == sum(sums)


async def test_a_message_counts_for_its_owner_and_its_address_on_two_nodes(clustered: Redis) -> None:
    async with chatting(clustered) as chat:
        group = "address:192.0.2.7"
        send = MessageRequest(client_msg_id="m", conversation_id="room-0", content="Hello?", group=group)
        assert await chat.sessions.turns.send(chat.owner, chat.reader, send, GenerationConfig()) is None
        assert (
            await of(clustered, chat.owner) == await counted_bytes(clustered, f"ms:stored-by:{{{group}}}") > 0
        )
        await clustered.hset(f"ms:stored-by:{{{group}}}", str(2**52), 2**50)
        other = msgspec.structs.replace(send, client_msg_id="n", conversation_id="room-1")
        refusal = await chat.sessions.turns.send(chat.owner, chat.reader, other, GenerationConfig())
        assert isinstance(refusal, StoreFull)
        assert str(refusal).startswith("Your key, or your address, has stored as much")
        chat.engine.step(20)
        await chat.wait_idle()


async def test_a_restored_cluster_begins_another_epoch_in_each_conversation(clustered: Redis) -> None:
    names = [f"ms:{{anonymous:alice/{room}}}" for room in ROOMS]
    for name in names:
        await clustered.hset(name, mapping={"epoch": "before", "seq": "7"})
    await clustered.xadd("ms:{anonymous:alice/room-0}:journal", {"event": "of the old epoch"})
    assert await begin_epochs(clustered) == len(ROOMS)
    epochs = {await clustered.hget(name, "epoch") for name in names}
    assert b"before" not in epochs
    assert len(epochs) == len(ROOMS)


async def test_events_and_cancels_reach_the_other_replica_whichever_node_they_come_from(
    clustered: Redis, nodes: list[Node]
) -> None:
    async with (
        connect(f"redis+cluster://127.0.0.1:{nodes[2].port}") as another,
        chatting(clustered) as chat,
        chatting(another) as other,
    ):
        for room in ROOMS[:4]:
            await chat.exchange("Hi!", "Hi.", conversation_id=room)
            await other.sessions.history(other.owner, other.reader, room, limit=50)
            accepted = await chat.running("Hello?", "This", conversation_id=room)
            met = await other.sessions.cancel_elsewhere(other.owner, Cancel(conversation_id=room))
            assert met == Cancelled(accepted.turn_id, already=False)
        await other.reader.next(Done, count=4)
        await chat.exchange("Hi!")
        accepted = await chat.running("Hello?", "This")
        await other.resume(other.reader, accepted.seq)
        assert other.reader.of(Resumed)[0].live == accepted.turn_id
        chat.cancel()


async def test_a_node_that_loses_its_listeners_is_listened_to_again(
    clustered: Redis, nodes: list[Node]
) -> None:
    async with chatting(clustered) as chat, chatting(clustered) as other:
        await chat.exchange("Hi!", "Hi.")
        await other.history()
        await chat.running("Hello?", "This")
        await other.reader.next(Delta)
        for node in nodes:
            await node.ask("CLIENT", "KILL", "TYPE", "pubsub")
        chat.engine.step(20)
        done = await other.reader.next(Done)
        assert digest(other.reader.text(done.turn_id)) == done.text_sha256
        assert continuous(other.reader.events)


async def test_a_slot_that_moves_to_another_node_is_followed(clustered: Redis, nodes: list[Node]) -> None:
    async with chatting(clustered) as chat, chatting(clustered) as other:
        await chat.exchange("Hi!", "Hi.")
        await other.history()
        await chat.wait_idle()
        await move_slot(clustered, nodes, chat.keys.conversation)
        for number in range(2, 5):
            await chat.exchange("Hello?", "Hello.")
            await other.reader.next(Done, count=number - 1)
        assert continuous(other.reader.events)


async def move_slot(store: Redis, nodes: list[Node], key: str) -> None:
    """Gives a key's slot, and all keys in it, to another node."""
    slot: int = store.keyslot(key)  # type: ignore[attr-defined]
    by_port = {node.port: node for node in nodes}
    source = by_port[store.get_node_from_key(key).port]  # type: ignore[attr-defined]
    target = next(node for node in nodes if node is not source)
    names = [(await node.ask("CLUSTER", "MYID")).decode() for node in (source, target)]
    await target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", names[0])
    await source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", names[1])
    while keys := await source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
        await source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
    for node in (target, source, *nodes):
        await node.ask("CLUSTER", "SETSLOT", slot, "NODE", names[1])


async def test_looking_for_the_nodes_anew_cuts_off_no_command(nodes: list[Node], clustered: Redis) -> None:
    """The client does so whenever a slot is down."""
    waiting = asyncio.create_task(clustered.blpop(["room"], timeout=60))
    await happened(lambda: _waits_at(nodes))
    before = await _who_wait_at(nodes)
    await clustered.aclose()
    await clustered.lpush("another room", "")
    now = set(await _who_wait_at(nodes))
    assert now
    assert now <= set(before)  # those of earlier tests may be over
    await clustered.lpush("room", "")
    assert await waiting


async def _waits_at(nodes: list[Node]) -> bool:
    return bool(await _who_wait_at(nodes))


async def _who_wait_at(nodes: list[Node]) -> list[bytes]:
    """The ids of connections on which a command waits."""
    lists: list[bytes] = [await node.ask("CLIENT", "LIST") for node in nodes]
    return [line.split()[0] for listing in lists for line in listing.splitlines() if b"cmd=blpop" in line]


async def test_a_client_that_was_to_look_anew_leaves_no_connection(nodes: list[Node]) -> None:
    async with connect(f"redis+cluster://127.0.0.1:{nodes[0].port}") as client:
        await client.exists("room")
        await client.aclose()
    gc.collect()  # it would say so of a connection that nobody closed


async def test_leases_are_found_on_all_nodes(clustered: Redis) -> None:
    for name in ROOMS:
        await Ownership(clustered, replica=name).renew()
    async with chatting(clustered, alone=True):
        assert not any([await clustered.exists(f"ms:replica:{name}") for name in ROOMS])


async def test_the_probe_writes_once_to_each_master_and_finds_one_that_takes_no_writes(
    nodes: list[Node], clustered: Redis
) -> None:
    """As `/readyz` asks."""
    writable = WriteProbe(clustered, Durability.MEMORY)
    await writable.check()
    probes = [await one.ask("KEYS", "ms:probe:*") for one in nodes]
    assert [len(keys) for keys in probes] == [1, 1, 1]
    for one in nodes:
        await one.ask("CONFIG", "SET", "min-replicas-to-write", 1)
        with pytest.raises(WritesRefused, match="takes no writes on one of its 3 masters"):
            await writable.check()
        await one.ask("CONFIG", "SET", "min-replicas-to-write", 0)
        await writable.check()


async def test_the_setup_of_every_master_is_read(nodes: list[Node], clustered: Redis) -> None:
    for one in nodes:
        await one.ask("CONFIG", "SET", "appendonly", "yes")
    await nodes[2].ask("CONFIG", "SET", "appendfsync", "no")
    configs = await server_configs(clustered)
    assert len(configs) == len(nodes)
    assert "lose the last half minute" in " ".join(config_warnings(configs, Durability.MEMORY))


async def test_a_node_that_goes_down_takes_only_its_conversations_along(
    clustered: Redis, nodes: list[Node]
) -> None:
    """The others go on, also for a replica that starts meanwhile; what can't be kept is refused."""
    down, *up = nodes  # it has the first slots: a client asks it first
    async with chatting(clustered) as chat:
        for room in ROOMS:
            await chat.exchange("Hi!", "Hi.", conversation_id=room)
        served = [room for room in ROOMS if await _node_of(clustered, chat, room) != down.port]
        writable = WriteProbe(clustered, Durability.MEMORY)
        await writable.check()
        down.kill()
        with pytest.raises(StoreDown):
            await writable.check()
        lost = next(room for room in ROOMS if room not in served)
        with pytest.raises(StoreDown):
            await chat.sessions.history(chat.owner, Recorder(), lost, limit=50)
        assert 0 < len(served) < len(ROOMS)
        for room in served:
            shown = await chat.sessions.history(chat.owner, chat.reader, room, limit=50)
            assert len(shown.page.messages) == 2
            async with connect(f"redis+cluster://127.0.0.1:{up[0].port}") as starting:
                assert await starting.exists(_key_of(chat, room))
        memory = Memory(clustered)  # messages are admitted by what the others hold
        await memory.up_to_date()
        assert len(memory.servers) == len(up)


async def _node_of(store: Redis, chat: Chat, room: str) -> int:
    node = store.get_node_from_key(_key_of(chat, room))  # type: ignore[attr-defined]
    port: int = node.port
    return port


def _key_of(chat: Chat, room: str) -> str:
    return chat.keys.conversation.replace("room", room)


async def test_a_connection_that_was_in_use_during_a_failover_is_not_used_again(tmp_path: Path) -> None:
    """A master that was replaced may take itself for one for seconds: what is read there is old, what is written is lost."""
    async with (
        watched_by_sentinel(tmp_path / "group") as group,
        connect(f"redis+sentinel://127.0.0.1:{group.sentinel.port}/mymaster") as store,
    ):
        pool = store.connection_pool
        used = await pool.get_connection()
        await group.fail_over()
        await happened(lambda: _writes(store))
        await pool.release(used)
        assert not used.is_connected


async def test_a_place_comes_back_from_a_connection_that_can_not_be_closed(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(**options: object) -> None:
        raise RedisError("It is no longer there.")

    async with connect(store_url) as store:
        pool = store.connection_pool
        used = await pool.get_connection()
        used.mark_for_reconnect()
        with monkeypatch.context() as patched:
            patched.setattr(used, "disconnect", failing)
            with pytest.raises(RedisError, match="no longer there"):
                await pool.release(used)
        await used.disconnect()
        for _ in range(pool.max_connections):
            await pool.get_connection()


async def _writes(store: Redis) -> bool:
    """Whether the Sentinel names the new master."""
    try:
        await store.set("written", 1)
    except RedisError:
        return False
    return True


async def test_a_server_that_becomes_a_replica_is_left(tmp_path: Path) -> None:
    """Behind one name: each connection that meets it is made anew."""
    async with (
        watched_by_sentinel(tmp_path / "group") as group,
        connect(f"redis://127.0.0.1:{group.replica.port}") as store,
    ):
        with pytest.raises(RedisError, match="has become a replica"):
            await store.set("written", 1)
        await group.fail_over()
        assert await store.set("written", 1)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("bogus://somewhere", "schemes"),
        ("redis+cluster://host/3", "database"),
        ("redis+cluster://", "no host"),
        ("redis+sentinel://host:26379", "master's name"),
        ("redis+sentinel://host/master/x", "master's name"),
        ("redis+sentinel://host:port/master", "integer"),
        ("redis+cluster://me:p[ss@host", "%5B"),
    ],
)
async def test_a_url_that_names_no_server_is_told(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        connect(url)


@pytest.mark.parametrize("tls", ["", "s"])
async def test_every_part_of_a_url_counts(tls: str) -> None:
    async with (
        connect(f"redis{tls}+sentinel://me:p%40ss@one,two:7/mine/2?sentinel_password=word") as by_sentinel,
        connect(f"redis{tls}+cluster://me:p%40ss@one,[::1]:7") as in_cluster,
        connect(f"redis{tls}://me:p%40ss@one:7/2") as single,
    ):
        pool = by_sentinel.connection_pool
        assert (
            pool.connection_kwargs["password"]
            == single.connection_pool.connection_kwargs["password"]
            == "p@ss"
        )
        assert pool.connection_kwargs["db"] == 2
        assert isinstance(pool, FairPool)
        assert pool.sentinels is not None
        assert (pool.sentinels.name, pool.sentinels.addresses) == ("mine", (("one", 26379), ("two", 7)))
        requested = pool.sentinels.client_of(("one", 26379)).connection_pool
        assert issubclass(requested.connection_class, SSLConnection) == bool(tls)
        assert requested.connection_kwargs["password"] == "word"
        nodes = in_cluster.nodes_manager.startup_nodes  # type: ignore[attr-defined]
        assert set(nodes) == {"one:6379", "::1:7"}
