"""Who comes seldom does not wait behind who comes often."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.limits.slots import OWN, FairSlots, Slot, with_heaviness


async def served(places: FairSlots, groups: list[str]) -> list[str]:
    """The order in which tasks of these groups get the one place, each asking in this order."""
    order: list[str] = []

    async def one(group: str) -> None:
        async with places.slot(group):
            await asyncio.sleep(0)
            order.append(group)

    await asyncio.gather(*(one(group) for group in groups))
    return order


async def test_one_of_each_group_goes_in_turn() -> None:
    """Who was not there goes first."""
    assert await served(FairSlots(1), ["a"] * 4 + ["b"] * 2) == ["a", "b", "a", "b", "a", "a"]
    assert await served(FairSlots(1), ["a", "a", "b", "b", "c"]) == ["a", "c", "b", "a", "b"]


@pytest.mark.parametrize("crowds", [1, 5])
async def test_whoever_comes_next_finds_a_place_free(crowds: int) -> None:
    """A group alone holds as much as is free, and beside others half of that, however much of it waits."""
    places = FairSlots(32)
    tasks = [asyncio.create_task(places.take(f"crowd-{number % crowds}")) for number in range(100)]
    await asyncio.sleep(0)
    assert max(places._taken.values()) <= (16 if crowds == 1 else 11)
    bob = places.take("bob")
    with pytest.raises(StopIteration):
        bob.send(None)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_group_has_half_of_all_places_until_another_comes() -> None:
    places = FairSlots(32)
    tasks = [asyncio.create_task(places.take("alone")) for _ in range(100)]
    await places.take(OWN)
    await asyncio.sleep(0)
    assert places._taken["alone"] == 16
    await places.take("bob")
    for _ in range(16):
        places.release(Slot("alone"))
    assert places._taken["alone"] == 10
    places.release(Slot("bob"))
    assert places._taken["alone"] == 16
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class CountingQueue(FairSlots):
    """Counts how often a group is looked at."""

    looks = 0

    def _may_take(self, group: str) -> bool:
        self.looks += 1
        return super()._may_take(group)


async def test_a_place_that_comes_back_costs_no_look_at_all_who_wait() -> None:
    places = CountingQueue(1)
    await places.take("first")
    tasks = [asyncio.create_task(places.take(str(number))) for number in range(1000)]
    await asyncio.sleep(0)
    places.looks = 0
    places.release(Slot("first"))
    assert places.looks == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_replicas_own_work_may_have_all_places() -> None:
    places = FairSlots(4)
    for _ in range(4):
        await places.take(OWN)


HOLDERS = st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.booleans()), max_size=30)
"""Of a group, perhaps of a crowd; some leave before they are through."""


@given(HOLDERS, st.integers(1, 4))
def test_no_more_hold_a_place_than_there_are_and_each_place_comes_back(
    holders: list[tuple[str, bool, bool]], count: int
) -> None:
    async def scene() -> None:
        places, inside = FairSlots(count, heavy_slots=max(1, count // 2)), 0

        async def one(group: str) -> None:
            nonlocal inside
            async with places.slot(group):
                inside += 1
                assert inside <= count
                try:
                    await asyncio.sleep(0)
                finally:
                    inside -= 1

        tasks = []
        for group, is_heavy, leaves in holders:
            with with_heaviness(partial(bool, is_heavy)):
                tasks.append((asyncio.create_task(one(group)), leaves))
        await asyncio.sleep(0)
        for task, leaves in tasks:
            if leaves:
                task.cancel()
        ends = await asyncio.gather(*(task for task, _ in tasks), return_exceptions=True)
        assert not any(isinstance(end, AssertionError) for end in ends)
        with with_heaviness(lambda: True):
            assert await served(places, ["y"]) == ["y"]
        assert await served(places, ["x"] * count) == ["x"] * count
        assert places._free == count
        assert not places._taken
        assert not places._waiting

    asyncio.run(scene())
