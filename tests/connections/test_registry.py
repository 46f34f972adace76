"""Who is connected, and how many may be."""

from __future__ import annotations

import asyncio

import pytest

from connections.line.registry import Registry, RegistryStatistics
from connections.wire.errors import Close, CloseCode
from connections.wire.frames import Frame
from sessions.records import Client

ANN, BOB, CAT = (Client("anonymous", name) for name in ("ann", "bob", "cat"))


class Socket:
    """A connection that keeps what it is given."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.closes: list[Close] = []

    def push(self, frame: Frame) -> None:
        self.frames.append(frame)

    def shut(self, close: Close) -> None:
        self.closes.append(close)


def test_a_client_has_so_many_connections_and_no_more() -> None:
    registry = Registry(max_connections=10, max_per_client=2)
    registry.add(ANN, Socket())
    registry.add(ANN, last := Socket())
    with pytest.raises(Close, match="at most 2") as refused:
        registry.add(ANN, Socket())
    assert refused.value.code is CloseCode.TOO_MANY_CONNECTIONS
    registry.add(BOB, Socket())
    registry.discard(ANN, last)
    registry.add(ANN, Socket())


def test_the_server_has_so_many_connections_and_no_more() -> None:
    registry = Registry(max_connections=2, max_per_client=2)
    registry.add(ANN, Socket())
    registry.add(BOB, Socket())
    with pytest.raises(Close) as refused:
        registry.add(CAT, Socket())
    assert refused.value.code is CloseCode.OVERLOAD


def test_statistics_follow_what_comes_and_goes() -> None:
    registry = Registry(max_connections=10, max_per_client=2)
    one, two = Socket(), Socket()
    registry.add(ANN, one)
    registry.add(ANN, two)
    registry.add(BOB, three := Socket())
    assert registry.statistics() == RegistryStatistics(connections=3, clients=2, opened=3)
    registry.discard(ANN, one)
    registry.discard(ANN, one)  # twice is once
    registry.discard(BOB, three)
    registry.discard(CAT, three)  # never was there
    assert registry.statistics() == RegistryStatistics(connections=1, clients=1, opened=3)
    assert registry.connections() == [two]


async def test_emptied_waits_for_the_last_connection() -> None:
    registry = Registry(max_connections=10, max_per_client=2)
    await registry.emptied()
    registry.add(ANN, one := Socket())
    waiting = asyncio.create_task(registry.emptied())
    await asyncio.sleep(0)
    assert not waiting.done()
    registry.discard(ANN, one)
    await waiting
