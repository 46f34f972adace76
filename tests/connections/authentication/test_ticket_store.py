"""Tickets are kept and taken in a turn of their own."""

from __future__ import annotations

from typing import Any, cast

import pytest
from redis.asyncio import Redis

from connections.authentication.access import TICKET_GROUP, Tickets
from connections.authentication.api_keys import ANONYMOUS
from connections.protocol.errors import Unauthenticated
from sessions.limits.slots import OWN, caller_group
from tests.store_faults import without_memory


class Noting:
    """A client of the store that notes on whose behalf it is asked."""

    def __init__(self) -> None:
        self.askers: list[str] = []

    async def evalsha(self, *_: object) -> None:
        self.askers.append(caller_group())

    async def getdel(self, _: str) -> None:
        self.askers.append(caller_group())


async def test_tickets_have_no_part_in_the_replicas_own_work() -> None:
    """That may hold all of the store's connections, and anybody may show a ticket."""
    client = Noting()
    tickets = Tickets(cast("Redis", cast("Any", client)))
    ticket = await tickets.issue(ANONYMOUS)
    with pytest.raises(Unauthenticated):
        await tickets.redeem(ticket)
    assert client.askers == [TICKET_GROUP, TICKET_GROUP]
    assert TICKET_GROUP != OWN


async def test_a_store_without_memory_takes_tickets(store: Redis) -> None:
    """People sign in to delete something."""
    tickets = Tickets(store)
    async with without_memory(store):
        ticket = await tickets.issue(ANONYMOUS)
        assert await tickets.redeem(ticket) == ANONYMOUS
        with pytest.raises(Unauthenticated):
            await tickets.redeem(ticket)
