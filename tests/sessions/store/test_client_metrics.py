"""What the store's clients count of themselves, over a real store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import NoScriptError, ResponseError

from sessions.store.client import connect
from sessions.store.pool import AT_ONCE, StoreStats
from tests.store_faults import pid_of, stalled


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


async def test_a_store_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """The wait that was in vain counts as a wait."""
    tally = StoreStats()
    async with connect(f"unix://{tmp_path}/nothing", tally) as client:
        with pytest.raises(ConnectionLost):
            await client.ping()
    assert (tally.errors, tally.running) == ({"ConnectionError": 1}, 0)
    assert sum(tally.waits.counts) > 0


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
