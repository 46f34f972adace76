"""No more run than may, clients share the places, and nobody who left is waited for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from engine.upstream.http_client import ConcurrencyLimiter


@dataclass(frozen=True)
class One:
    arrival: int
    client: str = "ann"
    priority: int = 0


class Waiters:
    """Those who want a place, each in a task of its own; `inside` has them in the order in which they came in."""

    def __init__(self, limit: int) -> None:
        self.positions: list[tuple[int, int]] = []
        self.places: ConcurrencyLimiter[One] = ConcurrencyLimiter(
            limit, lambda one, position: self.positions.append((one.arrival, position))
        )
        self.inside: list[int] = []
        self.tasks: dict[int, asyncio.Task[None]] = {}

    async def comes(self, one: One) -> None:
        self.tasks[one.arrival] = asyncio.create_task(self._enter(one))
        await turn()

    async def _enter(self, one: One) -> None:
        await self.places.enter(one)
        self.inside.append(one.arrival)


async def turn() -> None:
    """Let every task go as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_finds_no_place_waits_for_one() -> None:
    crowd = Waiters(2)
    ones = [One(number) for number in range(4)]
    for one in ones:
        await crowd.comes(one)
    assert (crowd.inside, crowd.places.running, crowd.places.waiting) == ([0, 1], 2, 2)
    crowd.places.leave(ones[0])
    await turn()
    assert crowd.inside == [0, 1, 2]
    assert crowd.positions == [(2, 1), (2, 1), (3, 2), (3, 1)]


async def test_the_client_who_has_fewest_inside_is_next_and_urgency_comes_before_that() -> None:
    crowd = Waiters(1)
    ones = [One(0), One(1), One(2, "bob"), One(3, priority=1)]
    for one in ones:
        await crowd.comes(one)
    for arrival in (0, 3, 1):
        crowd.places.leave(ones[arrival])
        await turn()
    assert crowd.inside == [0, 3, 1, 2]


@pytest.mark.parametrize("leaves_first", [True, False])
async def test_who_leaves_the_queue_in_the_moment_of_its_turn_holds_no_place(*, leaves_first: bool) -> None:
    crowd = Waiters(1)
    ones = [One(number) for number in range(3)]
    for one in ones:
        await crowd.comes(one)
    if leaves_first:
        crowd.tasks[1].cancel()
        crowd.places.leave(ones[0])
    else:
        crowd.places.leave(ones[0])
        crowd.tasks[1].cancel()
    await turn()
    assert (crowd.inside, crowd.places.running, crowd.places.waiting) == ([0, 2], 1, 0)
