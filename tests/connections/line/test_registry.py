"""Who is connected, and how many may be."""

from __future__ import annotations

import asyncio

import pytest

from connections.limits.caller import Caller
from connections.line.registry import Registry, RegistryStatistics
from connections.wire.errors import Close, CloseCode
from sessions.records import Client, Owner
from tests.connections.peer import Peer


class Socket(Peer):
    """Somebody's."""

    def __init__(self, name: str = "ann", group: str = "") -> None:
        super().__init__()
        self.caller = Caller(Owner("anonymous", name), Client("anonymous", name), group)


def test_a_client_has_so_many_connections_and_no_more() -> None:
    registry = Registry(max_connections=10, max_per_client=2)
    registry.add(Socket("ann"))
    registry.add(last := Socket("ann"))
    with pytest.raises(Close, match="at most 2") as refused:
        registry.add(Socket("ann"))
    assert refused.value.code is CloseCode.TOO_MANY_CONNECTIONS
    registry.add(Socket("bob"))
    registry.discard(last)
    registry.add(Socket("ann"))


def test_the_server_has_so_many_connections_and_no_more() -> None:
    registry = Registry(max_connections=2, max_per_client=2)
    registry.add(Socket("ann"))
    registry.add(Socket("bob"))
    with pytest.raises(Close) as refused:
        registry.add(Socket("cat"))
    assert refused.value.code is CloseCode.OVERLOAD


def test_statistics_follow_what_comes_and_goes() -> None:
    registry = Registry(max_connections=10, max_per_client=2)
    one, two = Socket("ann"), Socket("ann")
    registry.add(one)
    registry.add(two)
    registry.add(three := Socket("bob"))
    assert registry.statistics() == RegistryStatistics(connections=3, clients=2, opened=3)
    one.waiting_bytes, three.waiting_bytes = 700, 300
    waiting = registry.statistics()
    assert (waiting.late, waiting.waiting_bytes, waiting.most_waiting_bytes) == (2, 1000, 700)
    registry.discard(one)
    registry.discard(one)  # twice is once
    registry.discard(three)
    registry.discard(Socket("cat"))  # never was there
    assert registry.statistics() == RegistryStatistics(connections=1, clients=1, opened=3)
    assert registry.connections() == [two]


async def test_emptied_waits_for_the_last_connection() -> None:
    registry = Registry(max_connections=10, max_per_client=2)
    await registry.emptied()
    registry.add(one := Socket("ann"))
    waiting = asyncio.create_task(registry.emptied())
    await asyncio.sleep(0)
    assert not waiting.done()
    registry.discard(one)
    await waiting


def test_one_address_does_not_take_all_connections() -> None:
    """However many clients it says that it is."""
    registry = Registry(max_connections=100, max_per_client=64)
    for number in range(75):
        registry.add(Socket(f"name{number}", "here"))
    with pytest.raises(Close) as refused:
        registry.add(Socket("one more", "here"))
    assert refused.value.code is CloseCode.OVERLOAD
    registry.add(Socket("ann", "there"))
