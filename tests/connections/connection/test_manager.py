"""Who is connected, and how many may be."""

from __future__ import annotations

import asyncio

import pytest

from connections.authentication.caller import Caller
from connections.manager import ConnectionManager, ConnectionStatistics
from connections.protocol.errors import Close, CloseCode
from sessions.records import Client, Owner
from tests.connections.fake_peer import Peer


class Socket(Peer):
    """Somebody's."""

    def __init__(self, name: str = "ann", group: str = "", *, principal: str = "anonymous") -> None:
        super().__init__()
        self.caller = Caller(Owner(principal, name), Client(principal, name), group)


def test_a_client_has_so_many_connections_and_no_more() -> None:
    manager = ConnectionManager(max_connections=10, max_per_client=2)
    manager.add(Socket("ann"))
    manager.add(last := Socket("ann"))
    with pytest.raises(Close, match="At most 2") as refused:
        manager.add(Socket("ann"))
    assert refused.value.code is CloseCode.TOO_MANY_CONNECTIONS
    manager.add(Socket("bob"))
    manager.discard(last)
    manager.add(Socket("ann"))


def test_a_key_has_so_many_connections_and_no_more() -> None:
    """Of all clients together; clients without a key are counted one by one."""
    manager = ConnectionManager(max_connections=10, max_per_client=2, max_per_key=2)
    manager.add(Socket("ann", principal="key:lab"))
    manager.add(last := Socket("bob", principal="key:lab"))
    with pytest.raises(Close, match="At most 2 connections per key") as refused:
        manager.add(Socket("cat", principal="key:lab"))
    assert refused.value.code is CloseCode.TOO_MANY_CONNECTIONS
    for name in ("ann", "bob", "cat"):
        manager.add(Socket(name))
    manager.discard(last)
    manager.add(Socket("cat", principal="key:lab"))


def test_the_server_has_so_many_connections_and_no_more() -> None:
    manager = ConnectionManager(max_connections=2, max_per_client=2)
    manager.add(Socket("ann"))
    manager.add(Socket("bob"))
    with pytest.raises(Close) as refused:
        manager.add(Socket("cat"))
    assert refused.value.code is CloseCode.OVERLOAD


def test_statistics_follow_what_comes_and_goes() -> None:
    manager = ConnectionManager(max_connections=10, max_per_client=2)
    one, two = Socket("ann"), Socket("ann")
    manager.add(one)
    manager.add(two)
    manager.add(three := Socket("bob"))
    assert manager.statistics() == ConnectionStatistics(connections=3, clients=2, opened=3)
    one.waiting_bytes, three.waiting_bytes = 700, 300
    waiting = manager.statistics()
    assert (waiting.late, waiting.waiting_bytes, waiting.most_waiting_bytes) == (2, 1000, 700)
    manager.discard(one)
    manager.discard(one)  # twice is once
    manager.discard(three)
    manager.discard(Socket("cat"))  # never was there
    assert manager.statistics() == ConnectionStatistics(connections=1, clients=1, opened=3)
    assert manager.connections() == [two]


async def test_emptied_waits_for_the_last_connection() -> None:
    manager = ConnectionManager(max_connections=10, max_per_client=2)
    await manager.emptied()
    manager.add(one := Socket("ann"))
    waiting = asyncio.create_task(manager.emptied())
    await asyncio.sleep(0)
    assert not waiting.done()
    manager.discard(one)
    await waiting


def test_one_address_does_not_take_all_connections() -> None:
    """However many clients it says that it is."""
    manager = ConnectionManager(max_connections=100, max_per_client=64)
    for number in range(75):
        manager.add(Socket(f"name{number}", "here"))
    with pytest.raises(Close) as refused:
        manager.add(Socket("one more", "here"))
    assert refused.value.code is CloseCode.OVERLOAD
    manager.add(Socket("ann", "there"))
