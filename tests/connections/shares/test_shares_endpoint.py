"""One address reads so many shared conversations a second; others read theirs meanwhile."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any, cast

import pytest
from starlette.types import Message, Scope

from connections.api.account import SharesEndpoint
from connections.limiters import Limiters
from connections.middleware import set_client_address
from sessions.errors import NotFound
from sessions.limits.rates import LocalRateLimits
from sessions.limits.slots import OWN, caller_group
from sessions.service import Sessions


class NothingShared:
    """Has no shared conversation, and notes on whose behalf it is asked."""

    def __init__(self) -> None:
        self.askers: list[str] = []

    async def shared(self, *_: object, **__: object) -> None:
        self.askers.append(caller_group())
        raise NotFound("There is nothing.")


async def status(endpoint: SharesEndpoint, address: str) -> int:
    reported: list[Message] = []
    scope: Scope = {
        "type": "http",
        "method": "GET",
        "path": "/v1/shares/x",
        "headers": [],
        "query_string": b"",
        "path_params": {"share_id": "x"},
    }
    set_client_address(scope, ip_address(address))

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    async def send(message: Message) -> None:
        reported.append(message)

    await endpoint(scope, receive, send)
    return int(reported[0]["status"])


@pytest.fixture
def nothing() -> NothingShared:
    return NothingShared()


@pytest.fixture
def endpoint(nothing: NothingShared) -> SharesEndpoint:
    rates = LocalRateLimits(messages=1, reads=0.4, clock=lambda: 0.0)
    return SharesEndpoint(cast("Sessions", cast("Any", nothing)), Limiters(rates=rates))


async def test_one_address_reads_so_many_a_second(endpoint: SharesEndpoint) -> None:
    assert [await status(endpoint, "192.0.2.1") for _ in range(3)] == [404, 404, 429]
    assert await status(endpoint, "192.0.2.2") == 404


async def test_a_network_of_ipv6_is_one_address(endpoint: SharesEndpoint) -> None:
    codes = [await status(endpoint, f"2001:db8::{place}") for place in range(3)]
    assert codes == [404, 404, 429]


@pytest.mark.parametrize("address", ["127.0.0.1", "192.0.2.1"])
async def test_a_reader_has_no_part_in_the_replicas_own_work(
    endpoint: SharesEndpoint, nothing: NothingShared, address: str
) -> None:
    """That may hold all of the store's connections. Loopback, where a proxy may stand, has no group."""
    assert await status(endpoint, address) == 404
    assert nothing.askers != [OWN]
