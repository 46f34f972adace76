"""What several limits count together is on one server of a cluster: else it could not be counted, and all were let in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from connections.limits.quotas import Quotas
from connections.limits.shared_counts import SharedCounts
from connections.limits.shared_seats import SharedSeats
from connections.wire.errors import Close
from sessions.records import Client
from sessions.store.servers import connect
from tests.sessions.server_group import cluster

ANN = Client("key:lab", "ann")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Redis]:
    async with (
        cluster(tmp_path / "cluster") as nodes,
        connect(f"redis+cluster://127.0.0.1:{nodes[0].port}") as client,
    ):
        yield client


async def test_messages_tokens_and_connections_are_counted_there(store: Redis) -> None:
    counts = SharedCounts(store)
    gauges = Quotas(messages_per_minute=1, tokens_per_day=100).gauges(ANN)
    assert [(await counts.take(gauges))[0] for _ in range(2)] == [True, False]
    seats = SharedSeats(store, max_per_client=1, max_per_key=3)
    await seats.beat()
    await seats.sit(ANN, "a1")
    with pytest.raises(Close):
        await seats.sit(ANN, "a2")
    seats.leave(ANN, "a1")
    await seats.beat()
    await seats.sit(ANN, "a2")
    await seats.end()
