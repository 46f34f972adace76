"""The client's troubles are one error and counted, scripts come back by themselves, and a cancellation is never lost."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import NoScriptError, ResponseError

from sessions.errors import StoreDown
from sessions.limits.slots import on_behalf_of, with_heaviness
from sessions.store.client import REMOVE, connect, pipelined, run_script
from sessions.store.ownership import Ownership
from sessions.store.pool import AT_ONCE, HEAVY_SLOTS, StoreStats
from sessions.store_errors import store_errors
from tests.store_faults import pid_of, stalled

REMOVAL = '{"turn_id": "turn", "seq": 1, "message_id": "message", "reply_id": "reply"}'


async def test_a_script_that_the_server_forgot_runs_all_the_same(store: Redis) -> None:
    await store.script_flush()
    for _ in range(2):
        assert await run_script(store, REMOVE, ["a", "b"], [REMOVAL, "event"]) == b"gone"


async def test_a_store_that_is_not_there_is_down() -> None:
    """The wait that was in vain counts as a wait."""
    tally = StoreStats()
    async with connect("unix:///nowhere.sock", tally) as client:
        with pytest.raises(StoreDown, match="ConnectionError"):
            await run_script(client, REMOVE, ["a", "b"], [])
    assert (tally.errors, tally.running) == ({"ConnectionError": 1}, 0)
    assert sum(tally.waits.counts) > 0


def test_a_connection_that_was_lost_a_moment_ago_is_a_store_that_is_down() -> None:
    """uvloop's word for it is a RuntimeError."""

    async def end(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def write_to_a_lost_one() -> None:
        async with await asyncio.start_server(end, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            await reader.read()
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()
            with pytest.raises(StoreDown, match="lost"), store_errors():
                writer.writelines([b"PING"])

    uvloop.run(write_to_a_lost_one())


@pytest.mark.parametrize(
    ("owner", "name"), [(AbstractConnection, "_send_packed_command"), (RedisCluster, "_initialize")]
)
def test_redis_py_has_the_private_names_that_are_used(owner: type, name: str) -> None:
    assert f"self.{name}" in Path(inspect.getfile(owner)).read_text(encoding="utf-8")


async def test_a_connection_that_another_task_found_lost_is_an_outage(store: Redis) -> None:
    connection = await store.connection_pool.get_connection()
    try:
        await connection.disconnect()
        with pytest.raises(StoreDown, match="lost"), store_errors():
            await connection._send_packed_command([b"PING"])
    finally:
        await store.connection_pool.release(connection)
    for ours in (AttributeError, RuntimeError):
        with pytest.raises(ours, match="ours"), store_errors():
            raise ours("ours")


async def test_a_loop_around_the_store_ends_wherever_in_a_command_it_is_cancelled(store: Redis) -> None:
    await store.ping()
    for turns in range(1, 12):
        keeping = asyncio.create_task(Ownership(store, replica="one").keep())
        for _ in range(turns):
            await asyncio.sleep(0)
        keeping.cancel()
        await asyncio.wait([keeping], timeout=60)
        assert keeping.cancelled()


async def test_who_finds_all_connections_in_use_waits_so_long_and_no_longer(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst is no outage; and a request behind calls that never return is told so."""
    monkeypatch.setattr("sessions.store.client.SOCKET_TIMEOUT_S", 0.2)
    async with connect(store_url) as store:
        pool = store.connection_pool
        held = [await pool.get_connection() for _ in range(AT_ONCE)]
        async with asyncio.timeout(30):
            with pytest.raises(StoreDown, match="ConnectionError"), store_errors():
                await store.ping()
        pool.timeout = 30.0
        waiting = asyncio.create_task(store.ping())
        await asyncio.sleep(0)
        assert not waiting.done()
        await pool.release(held.pop())
        assert await waiting
        for one in held:
            await pool.release(one)


async def test_who_asks_seldom_waits_behind_nobody_who_asks_often(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All connections are one group's, and so are many requests that wait: another group's is the next to be answered."""
    monkeypatch.setattr("sessions.store.client.AT_ONCE", 1)
    answered: list[str] = []

    async def ask(store: Redis, group: str) -> None:
        with on_behalf_of(group):
            await store.ping()
        answered.append(group)

    async with connect(store_url) as store:
        held = await store.connection_pool.get_connection()
        async with asyncio.TaskGroup() as tasks:
            for group in ["often"] * 8 + ["seldom"]:
                tasks.create_task(ask(store, group))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await store.connection_pool.release(held)
    assert answered.index("seldom") <= 1
    assert len(answered) == 9


async def test_a_crowds_commands_wait_for_each_other_and_nobody_waits_for_them(store_url: str) -> None:
    async with connect(store_url) as store:
        pool, held = store.connection_pool, []
        with with_heaviness(lambda: True):
            for number in range(HEAVY_SLOTS):
                with on_behalf_of(f"crowd-{number}"):
                    held.append(await pool.get_connection())
            with on_behalf_of("crowd"):
                waits = asyncio.create_task(store.ping())
        async with asyncio.timeout(30):
            with on_behalf_of("bob"):
                for _ in range(5):
                    assert await store.ping()
        assert not waits.done()
        for one in held:
            await pool.release(one)
        assert await waits


async def test_a_crowds_command_that_gets_no_connection_holds_nothing(store_url: str) -> None:
    """If places were kept, the last one would get none."""
    async with connect("unix:///nowhere.sock") as away, asyncio.timeout(30):
        with with_heaviness(lambda: True), on_behalf_of("crowd"):
            calls = (away.ping() for _ in range(HEAVY_SLOTS + 1))
            refusals = await asyncio.gather(*calls, return_exceptions=True)
    assert not any("No connection available" in str(refusal) for refusal in refusals)
    assert {type(refusal).__name__ for refusal in refusals} == {"ConnectionError"}


@pytest.mark.parametrize("is_piped", [False, True], ids=["alone", "in a pipeline"])
async def test_a_command_begins_no_task(store: Redis, *, is_piped: bool) -> None:
    """Its caller would wait for two more turns of the event loop, each behind the work of all others."""
    loop, started = asyncio.get_running_loop(), list[str]()

    def noted(
        loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        started.append(work.__qualname__)
        return asyncio.Task(work, loop=loop, **options)

    loop.set_task_factory(noted)
    try:
        if is_piped:
            await pipelined(store, lambda pipe: pipe.get("nothing"))
        else:
            await store.get("nothing")
    finally:
        loop.set_task_factory(None)
    assert started == []


@pytest.mark.parametrize("is_piped", [False, True], ids=["alone", "in a pipeline"])
async def test_a_caller_that_is_cancelled_leaves_no_answer_for_the_next(
    store: Redis, *, is_piped: bool
) -> None:
    await store.set("mine", "mine")
    for _ in range(2 * AT_ONCE):
        work = pipelined(store, lambda pipe: pipe.get("mine")) if is_piped else store.get("mine")
        command = asyncio.ensure_future(work)
        await asyncio.sleep(0)
        command.cancel()
        await asyncio.gather(command, return_exceptions=True)
        assert await store.get("other") is None


def test_a_url_may_say_how_many_connections_there_are() -> None:
    assert connect("redis://127.0.0.1:6379?max_connections=3").connection_pool.max_connections == 3


async def test_commands_and_pipelines_are_calls_and_their_errors_are_counted_by_type(store_url: str) -> None:
    """Each waits for a connection. A script that the store does not know yet is no error."""
    tally = StoreStats()
    async with connect(store_url, tally) as client:
        await client.set("name", "value")
        pipeline = client.pipeline(transaction=False)
        pipeline.incr("name")
        pipeline.get("name")
        await pipeline.execute(raise_on_error=False)
        assert (sum(tally.calls.counts), sum(tally.waits.counts), tally.running) == (2, 2, 0)
        assert 0 == tally.waits.seconds < tally.calls.seconds  # nobody was in the way
        with pytest.raises(ResponseError):
            await client.incr("name")
        with pytest.raises(NoScriptError):
            await client.evalsha("0" * 40, 0)
    assert tally.errors == {"ResponseError": 2}


async def test_calls_of_a_store_that_stalls_run_and_those_beyond_the_connections_wait(
    store: Redis, store_url: str
) -> None:
    tally, more = StoreStats(), 3
    async with connect(store_url, tally) as client:
        with stalled(await pid_of(store)):
            calls = [asyncio.create_task(client.ping()) for _ in range(AT_ONCE + more)]
            await asyncio.sleep(0)  # each of them begins
            assert tally.running == AT_ONCE + more
        assert await asyncio.gather(*calls) == [True] * len(calls)
    assert sum(tally.waits.counts) == len(calls)
    assert tally.waits.seconds > 0
    assert tally.running == 0
