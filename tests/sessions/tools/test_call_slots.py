"""Places of calls: never more than there are, never more for an owner than his, and nobody forgotten."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.tools.calls import MOST_WAITING, Slot, Slots
from sessions.tools.tool_registry import ToolFailed

orders = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["come", "leave"])), max_size=40)


@given(orders, st.integers(1, 4), st.integers(1, 3))
def test_places_are_bounded_and_none_is_lost(orders: list[tuple[str, str]], total: int, each: int) -> None:
    asyncio.run(come_and_leave(orders, total, each))


async def come_and_leave(orders: list[tuple[str, str]], total: int, each: int) -> None:
    places = Slots(total=total, each=each)
    requests: list[tuple[str, asyncio.Task[Slot]]] = []
    for owner, order in orders:
        mine = [one for one in requests if one[0] == owner]
        if order == "come":
            requests.append((owner, asyncio.create_task(places.take(owner))))
        elif mine:
            requests.remove(mine[0])
            await leave(mine[0][1])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        inside = Counter(owner for owner, one in requests if one.done())
        assert inside.total() <= total
        assert all(count <= each for count in inside.values())
        waiting = Counter(owner for owner, one in requests if not one.done())
        assert places.free == total - inside.total()
        assert not (places.free and [owner for owner in waiting if inside[owner] < each])
    for _, one in requests:
        await leave(one)
    assert places.free == total


async def leave(request: asyncio.Task[Slot]) -> None:
    if request.done():
        request.result().release()
    else:
        request.cancel()
        await asyncio.wait({request})


async def test_who_asked_first_goes_first() -> None:
    places = Slots(total=1, each=1)
    held = await places.take("a")
    order: list[str] = []

    async def one(owner: str) -> None:
        place = await places.take(owner)
        order.append(owner)
        place.release()

    waiting = asyncio.gather(*(one(owner) for owner in "cbd"))
    await asyncio.sleep(0)
    held.release()
    await waiting
    assert order == ["c", "b", "d"]


async def test_a_place_is_free_when_all_who_hold_it_have_let_go() -> None:
    places = Slots(total=1, each=1)
    place = await places.take("a")
    place.hold()
    place.release()
    assert places.free == 0
    place.release()
    assert places.free == 1


async def test_a_place_that_comes_with_the_cancellation_is_handed_on() -> None:
    places = Slots(total=1, each=1)
    held = await places.take("a")
    first, second = asyncio.create_task(places.take("b")), asyncio.create_task(places.take("c"))
    await asyncio.sleep(0)
    held.release()
    first.cancel()
    (await second).release()
    assert places.free == 1


async def test_more_than_some_hundred_do_not_wait() -> None:
    places = Slots(total=1, each=1)
    await places.take("a")
    waiting = [asyncio.create_task(places.take("a")) for _ in range(MOST_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(ToolFailed, match="not run"):
        await places.take("b")
    for one in waiting:
        one.cancel()
