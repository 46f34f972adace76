"""Tickets are kept and taken in a turn of their own."""

from __future__ import annotations

from typing import Any, cast

from redis.asyncio import Redis

from connections.authentication.ticket_store import GROUP, RedisTickets
from sessions.store.redis.asker import asker
from sessions.store.redis.fair_places import OWN


class Noting:
    """A client of the store that notes on whose behalf it is asked."""

    def __init__(self) -> None:
        self.askers: list[str] = []

    async def set(self, *_: object, **__: object) -> None:
        self.askers.append(asker())

    async def getdel(self, _: str) -> None:
        self.askers.append(asker())


async def test_tickets_have_no_part_in_the_replicas_own_work() -> None:
    """That may hold all of the store's connections, and anybody may show a ticket."""
    client = Noting()
    tickets = RedisTickets(cast("Redis", cast("Any", client)))
    await tickets.keep("name", b"content", ttl_s=1)
    await tickets.take("name")
    assert client.askers == [GROUP, GROUP]
    assert GROUP != OWN
