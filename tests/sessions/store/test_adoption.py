"""A store of version 0.1.0 opens: what was kept for each client of a person becomes the person's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import Any

import pytest
from redis.asyncio import Redis

from engine.scripted.engine import ScriptedEngine
from sessions.commands import adopting
from sessions.commands.resuming import Position
from sessions.errors import NotFound
from sessions.events import Accepted, Done, Gap, Snapshot
from sessions.records import Client, Owner
from sessions.service import Sessions
from sessions.store.adoption import COMING_MS, MAX_ID, Adoption
from sessions.store.history.index import Index
from sessions.store.history.keys import Keys, now_ms
from sessions.store.ledger import Ledger
from sessions.store.ownership import Ownership
from sessions.store.redis.client import HAND_OVER, run_script
from sessions.store.redis.servers import SOCKET_TIMEOUT_S
from sessions.turn.policy import Policy
from sessions.turn.sends import Generation, Send
from tests.refusing_store import pid_of, stalled
from tests.sessions.chat import eventually
from tests.sessions.old_store import ALICE, ANN, CALL, LAPTOP, PHONE, lay_out
from tests.sessions.recorder import Recorder

TTL_S = 30 * 24 * 3600
POLICY = Policy(ttl_s=TTL_S, max_turns=100)
DRAWING = [
    "How do I draw a wood?",
    "Begin with the trees.",
    "What do I need?",
    "Paper, a pencil, patience.",
]


@pytest.fixture
async def old(store: Redis) -> Redis:
    """A store as version 0.1.0 left it."""
    await lay_out(store)
    return store


@asynccontextmanager
async def replica(store: Redis, *, alone: bool = False) -> AsyncIterator[Sessions]:
    sessions = Sessions(client=store, engine=ScriptedEngine(), policy=POLICY)
    async with sessions.running(alone=alone):
        yield sessions


@pytest.fixture
async def upgraded(old: Redis) -> AsyncIterator[Sessions]:
    """The service on that store: it has closed what ran when it was killed."""
    async with replica(old, alone=True) as sessions:
        yield sessions


def adoption(store: Redis) -> Adoption:
    ownership = Ownership(store, replica="test")
    index = Index(store, ttl_s=TTL_S)
    return Adoption(store, index=index, ledger=Ledger(store), ownership=ownership, ttl_s=TTL_S)


async def listed(sessions: Sessions, owner: Owner = ANN) -> list[tuple[str, str, int]]:
    page = await sessions.conversations(owner, limit=200, before=None)
    return [(row.conversation_id, row.title, row.messages) for row in page.conversations]


async def told(sessions: Sessions, conversation_id: str, owner: Owner = ANN) -> list[str]:
    """The texts of a conversation's active branch."""
    reader = Recorder()
    shown = await sessions.history(owner, reader, conversation_id, limit=50)
    reader.closed = True
    sessions.disconnect(reader)
    return [message.content for message in shown.page.messages]


async def names(store: Redis, client: Client) -> list[Any]:
    """All that the store has under a client's own name."""
    owner = str(client)
    found: list[Any] = await store.keys(f"ms:*{{{owner}/*")
    found += await store.keys(f"ms:conversations:{{{owner}}}")
    return found + await store.keys(f"ms:stored:{{{owner}}}")


async def test_each_client_brings_what_it_had_in_the_order_of_its_times(
    upgraded: Sessions, old: Redis
) -> None:
    await upgraded.adopt(ANN, LAPTOP)
    assert await listed(upgraded) == [
        ("cut", "Tell me a story.", 2),
        ("trip", "And the weather?", 4),
        ("default", "Drawing", 4),
    ]
    await upgraded.adopt(ANN, CALL)
    await upgraded.adopt(ANN, PHONE)
    rows = await listed(upgraded)
    assert [row[0].partition("-")[0] for row in rows] == ["cut", "call", "trip", "default", "default"]
    assert [row[1] for row in rows[3:]] == ["How do I get to Vienna?", "Drawing"]
    for client in (LAPTOP, PHONE, CALL):
        assert await names(old, client) == []
    assert await told(upgraded, "default") == DRAWING
    assert await told(upgraded, rows[3][0]) == ["How do I get to Vienna?", "Take the night train."]
    assert await told(upgraded, "trip") == ["And the weather in May?", "Sun."]
    assert await told(upgraded, "call") == ["Who is there?", "Speaking."]
    assert (await told(upgraded, "cut"))[1].startswith("word word")


async def test_what_was_adopted_goes_on_and_is_kept_as_long_as_it_was(upgraded: Sessions, old: Redis) -> None:
    keys = Keys.of(ANN, "default")
    await old.pexpire(Keys.of(Owner("jwt:ann", "laptop"), "default").conversation, 1_000_000)
    await upgraded.adopt(ANN, LAPTOP)
    assert 900_000 < await old.pttl(keys.conversation) <= 1_000_000
    reader = Recorder()
    send = Send(client_msg_id="new", conversation_id="default", content="And then?", client_id="laptop")
    assert await upgraded.send(ANN, reader, send, Generation()) is None
    await reader.next(Done)
    assert len(await told(upgraded, "default")) == len(DRAWING) + 2
    assert (await listed(upgraded))[0][0] == "default"
    upgraded.disconnect(reader)


async def test_an_applications_users_keep_what_they_have(upgraded: Sessions, old: Redis) -> None:
    before = sorted(await names(old, Client("key:shop", "alice")))
    await upgraded.adopt(ALICE, Client("key:shop", "alice"))
    assert sorted(await names(old, Client("key:shop", "alice"))) == before
    assert await told(upgraded, "default", ALICE) == ["Hello.", "Hello, Alice."]


async def test_a_second_time_changes_nothing(upgraded: Sessions) -> None:
    for client in (LAPTOP, PHONE):
        await upgraded.adopt(ANN, client)
    rows = await listed(upgraded)
    for client in (LAPTOP, PHONE):
        await upgraded.adopt(ANN, client)
    assert await listed(upgraded) == rows


async def test_two_replicas_at_once_adopt_each_conversation_once(upgraded: Sessions, old: Redis) -> None:
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(replica(old)) for _ in range(3)]
        await asyncio.gather(
            *(one.adopt(ANN, client) for one in (upgraded, *others) for client in (LAPTOP, PHONE, CALL))
        )
        rows = await listed(upgraded)
    assert sorted(row[1] for row in rows) == [
        "And the weather?",
        "Drawing",
        "How do I get to Vienna?",
        "Tell me a story.",
        "Who is there?",
    ]
    assert sorted(row[2] for row in rows) == [2, 2, 2, 4, 4]


class Killed(Exception):
    """The process ends here."""


class Mortal(Redis):
    """A client whose process dies instead of its next command, after so many."""

    left = 0

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        if self.left == 0:
            raise Killed
        self.left -= 1
        return await super().execute_command(*args, **options)

    def pipeline(self, *args: Any, **options: Any) -> Any:
        if self.left == 0:
            raise Killed
        self.left -= 1
        return super().pipeline(*args, **options)


@pytest.mark.parametrize("deletes", [False, True])
async def test_a_move_goes_on_behind_a_crash_at_any_step(
    store: Redis, store_url: str, *, deletes: bool
) -> None:
    """Whatever the person does meanwhile: what they deleted does not come back."""
    steps = 0
    for at in count():
        await store.flushdb()
        await lay_out(store)
        async with replica(store, alone=True) as sessions, Mortal.from_url(store_url) as mortal:
            mortal.left = at
            former = Owner("jwt:ann", "phone")
            try:
                await adoption(mortal).adopt_all(former, ANN)
                steps = at
            except Killed:
                pass
            there = [row[0] for row in await listed(sessions)]
            if deletes and there:
                await sessions.delete(ANN, "default", ref=None, subscriber=Recorder())
            await adoption(store).adopt_all(former, ANN)
            left = [] if deletes and there else [("default", "How do I get to Vienna?", 2)]
            assert await listed(sessions) == left, at
            assert await names(store, PHONE) == []
        if steps:
            break
    assert steps > 6


async def test_what_was_sealed_by_a_dead_replica_gets_its_place(store: Redis, store_url: str) -> None:
    """Also where that is taken since: by then the person has a conversation of that id."""
    await lay_out(store)
    async with replica(store, alone=True) as sessions:
        async with Mortal.from_url(store_url) as mortal:
            mortal.left = 4  # the look into the list, the seal and its first reading
            with pytest.raises(Killed):
                await adoption(mortal).adopt_all(Owner("jwt:ann", "phone"), ANN)
        assert await listed(sessions) == []
        await sessions.adopt(ANN, LAPTOP)
        await sessions.adopt(ANN, PHONE)
        titles = {row[1]: row[0] for row in await listed(sessions)}
        assert titles["Drawing"] == "default"
        assert titles["How do I get to Vienna?"].startswith("default-")


async def test_a_long_id_has_room_for_its_suffix(upgraded: Sessions, old: Redis) -> None:
    long = "x" * MAX_ID
    for name in ("laptop", "phone"):
        owner = Owner("jwt:ann", name)
        await old.rename(Keys.of(owner, "default").conversation, Keys.of(owner, long).conversation)
        await old.zadd(f"ms:conversations:{{{owner}}}", {long: 1e12 * 2})
        await upgraded.adopt(ANN, Client("jwt:ann", name))
    ids = [row[0] for row in await listed(upgraded) if row[0].startswith("xxx")]
    assert len(set(ids)) == 2
    assert {len(one) for one in ids} == {MAX_ID}


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks again at once, as often as it takes."""
    monkeypatch.setattr(adopting, "PAUSES_S", (0.01,) * 1000)


@pytest.mark.usefixtures("hasty")
async def test_a_running_turn_is_waited_for(upgraded: Sessions, old: Redis) -> None:
    """The replica that runs it, of 0.1.0, writes under the old name until then."""
    key = Keys.of(Owner("jwt:ann", "laptop"), "trip").conversation
    await old.hset(key, "running", "turn_x")
    await upgraded.adopt(ANN, LAPTOP)
    assert {row[0] for row in await listed(upgraded)} == {"cut", "default"}
    assert await old.hget(key, "running") == b"turn_x"
    await old.hset(key, "running", "")
    await _listed_by(upgraded, lambda ids: "trip" in ids)


@pytest.mark.usefixtures("hasty")
async def test_connections_of_a_replica_that_knows_no_persons_are_waited_for(
    upgraded: Sessions, old: Redis
) -> None:
    """In a rolling upgrade they go on with what they see; once they left, or their replica did, it is adopted."""
    watchers = await old.hget(Keys.of(Owner("jwt:ann", "laptop"), "trip").conversation, "watchers")
    assert watchers
    await old.set(f"ms:replica:{watchers.decode()}", b"1")
    await upgraded.adopt(ANN, LAPTOP)
    assert await listed(upgraded) == []
    await old.delete(f"ms:replica:{watchers.decode()}")
    await _listed_by(upgraded, lambda ids: ids == {"cut", "default", "trip"})


async def _listed_by(sessions: Sessions, good: Callable[[set[str]], bool]) -> None:
    async with asyncio.timeout(30):
        while not good({row[0] for row in await listed(sessions)}):
            pass


async def test_what_a_replica_of_010_writes_under_an_adopted_name_is_adopted_too(
    upgraded: Sessions, old: Redis
) -> None:
    """In a rolling upgrade: it is another conversation, however soon it comes."""
    former = Owner("jwt:ann", "phone")
    await upgraded.adopt(ANN, PHONE)
    reader = Recorder()
    send = Send(client_msg_id="m1", conversation_id="default", content="Anything new?")
    assert await upgraded.send(former, reader, send, Generation()) is None
    await reader.next(Done)
    upgraded.disconnect(reader)
    await eventually(lambda: upgraded.statistics().conversations == 0)
    await upgraded.adopt(ANN, PHONE)
    assert [row[1] for row in await listed(upgraded)] == ["Anything new?", "How do I get to Vienna?"]
    assert await names(old, PHONE) == []


async def test_a_row_that_comes_before_its_conversation_stays(upgraded: Sessions, old: Redis) -> None:
    """A replica of 0.1.0 lists a message before it accepts it."""
    rows = "ms:conversations:{jwt:ann/phone}"
    await old.zadd(rows, {"gone": now_ms() - COMING_MS - 5000, "coming": now_ms()})
    await adoption(old).adopt_all(Owner("jwt:ann", "phone"), ANN)
    assert await old.zrange(rows, 0, -1) == [b"coming"]
    assert [row[0] for row in await listed(upgraded)] == ["default"]


async def test_a_row_that_was_touched_meanwhile_stays(old: Redis) -> None:
    index, phone = Index(old, ttl_s=TTL_S), Owner("jwt:ann", "phone")
    ((name, at_ms),) = await index.newest(phone, first=0, limit=9)
    await index.touch(phone, name)
    await index.forget_as_of(phone, name, at_ms)
    ((name, later_ms),) = await index.newest(phone, first=0, limit=9)
    await index.forget_as_of(phone, name, later_ms)
    assert await index.newest(phone, first=0, limit=9) == []


async def test_a_late_replica_takes_nothing_that_came_under_the_name_since(old: Redis) -> None:
    keys = Keys.of(Owner("jwt:ann", "phone"), "default")
    await old.hset(keys.conversation, "running", "adoption")
    await run_script(old, HAND_OVER, keys.pair(), ["another epoch"])
    assert await old.exists(*keys.pair()) == 2
    await run_script(old, HAND_OVER, keys.pair(), [(await old.hget(keys.conversation, "epoch")) or b""])
    assert await old.exists(*keys.pair()) == 0


async def test_a_message_sent_again_is_answered_under_the_new_id(upgraded: Sessions) -> None:
    for client in (LAPTOP, PHONE):
        await upgraded.adopt(ANN, client)
    there = next(row[0] for row in await listed(upgraded) if row[1] == "How do I get to Vienna?")
    reader = Recorder()
    again = Send(client_msg_id="m1", conversation_id=there, content="How do I get to Vienna?")
    assert await upgraded.send(ANN, reader, again, Generation()) is None
    done = await reader.next(Done)
    assert reader.of(Accepted)[0].duplicate
    assert done.conversation_id == there
    assert reader.text(done.turn_id) == "Take the night train."
    upgraded.disconnect(reader)


async def test_who_comes_back_to_an_adopted_one_is_told_of_a_gap(upgraded: Sessions, old: Redis) -> None:
    epoch = await old.hget(Keys.of(Owner("jwt:ann", "laptop"), "default").conversation, "epoch")
    assert epoch
    await upgraded.adopt(ANN, LAPTOP)
    reader = Recorder()
    await upgraded.resume(ANN, reader, "default", Position(epoch.decode(), 11), ref="r")
    assert reader.of(Gap)[0].epoch != epoch.decode()
    assert reader.of(Snapshot)[0].turn_id is None
    upgraded.disconnect(reader)


async def test_a_store_that_does_not_answer_lets_the_client_in(
    old: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("LOOK_S", "PATIENCE_S"):
        monkeypatch.setattr(adopting, bound, 0.05)
    async with replica(old, alone=True) as sessions:
        with stalled(await pid_of(old)):
            await asyncio.wait_for(sessions.adopt(ANN, LAPTOP), SOCKET_TIMEOUT_S)
        await _listed_by(sessions, lambda ids: ids == {"cut", "default", "trip"})


async def test_a_client_that_never_was_there_brings_nothing(upgraded: Sessions) -> None:
    await upgraded.adopt(ANN, Client("jwt:ann", "tablet"))
    assert await listed(upgraded) == []
    with pytest.raises(NotFound):
        await told(upgraded, "default")
