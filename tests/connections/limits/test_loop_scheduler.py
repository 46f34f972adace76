"""However many sockets have a frame, a few are taken in each turn of the event loop, and each address has its turn."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from connections import loop_scheduler
from connections.loop_scheduler import (
    LIGHT_ONLY_ITERATIONS,
    REQUEST_COST,
    WINDOW,
    FairLoopScheduler,
    LightClients,
)


async def served_per_turn(turns: FairLoopScheduler, groups: list[str]) -> list[list[str]]:
    """Who gets a frame in which turn of the event loop."""
    loop, found, number = asyncio.get_running_loop(), [[]], 0

    def count() -> None:
        nonlocal number
        number += 1
        found.append([])
        if number < 3 * len(groups):
            loop.call_soon(count)

    async def one(group: str) -> None:
        if not turns.take_nowait(group):
            await turns.take(group)
        found[number].append(group)

    tasks = [asyncio.create_task(one(group)) for group in groups]
    loop.call_soon(count)
    await asyncio.gather(*tasks)
    return [names for names in found if names]


async def test_a_few_are_taken_in_a_turn_of_the_loop() -> None:
    found = await served_per_turn(FairLoopScheduler(at_once=4), ["a"] * 20)
    assert sum(map(len, found)) == 20
    assert max(map(len, found)) <= 4


async def test_whoever_comes_from_elsewhere_does_not_wait_behind_a_crowd() -> None:
    found = await served_per_turn(FairLoopScheduler(at_once=2), [*["crowd"] * 40, "bob"])
    assert "bob" in [name for names in found[:3] for name in names]


async def test_who_had_no_turn_lately_comes_before_a_crowd_of_addresses() -> None:
    turns, order = FairLoopScheduler(at_once=1), []
    for number in range(2 * WINDOW):
        turns.queue(f"crowd-{number % 20}", lambda: None)
    while len(order) < WINDOW:  # the crowd has had its turns, and goes on
        turns.queue(f"crowd-{len(order) % 20}", lambda: order.append("crowd"))
        await asyncio.sleep(0)
    done = len(order)
    many = WINDOW // 20
    for name in ("bob", "carol", *["bob"] * many):
        turns.queue(name, partial(order.append, name))
    for _ in range(WINDOW):
        await asyncio.sleep(0)
    assert order[done : done + 5] == ["bob", "carol", "bob", "bob", "bob"]
    first = order.index("crowd", done)
    assert "bob" in order[first:]  # whoever has more in hand has it in turn
    assert order.count("bob") == many + 1


async def test_newcomers_without_end_keep_nobody_waiting() -> None:
    turns, bobs = FairLoopScheduler(at_once=1), []
    for _ in range(2):
        turns.queue("bob", lambda: bobs.append("bob"))
    for number in range(4 * WINDOW):
        for place in range(2):
            turns.queue(f"newcomer-{number}-{place}", lambda: None)
        await asyncio.sleep(0)
    assert len(bobs) == 2


async def test_who_is_alone_waits_for_nobody() -> None:
    turns = FairLoopScheduler(at_once=2)
    for _ in range(10):
        assert turns.take_nowait("a")
        await asyncio.sleep(0)


async def test_who_left_while_it_waited_takes_nobodys_turn() -> None:
    turns = FairLoopScheduler(at_once=1)
    assert turns.take_nowait("a")
    gone, here = asyncio.create_task(turns.take("a")), asyncio.create_task(turns.take("b"))
    await asyncio.sleep(0)
    gone.cancel()
    async with asyncio.timeout(30):
        await here


async def test_while_a_guests_request_is_under_way_others_begin_less() -> None:
    """Each of its steps would wait for what they began; and they are not kept waiting for good."""
    light_clients, started = LightClients(), 0
    turns = [FairLoopScheduler(at_once=2, light_clients=light_clients) for _ in range(2)]

    def begin(whose: FairLoopScheduler) -> None:
        nonlocal started
        started += 1
        whose.queue("crowd", partial(begin, whose))

    async def begun_in(loops: int) -> int:
        before = started
        for _ in range(loops):
            await asyncio.sleep(0)
        return started - before

    for one in turns:
        for _ in range(2):
            one.queue("crowd", partial(begin, one))
    assert await begun_in(10 * LIGHT_ONLY_ITERATIONS) >= 30 * LIGHT_ONLY_ITERATIONS
    with light_clients.request():
        assert 20 <= await begun_in(10 * LIGHT_ONLY_ITERATIONS) <= 44
    assert await begun_in(10 * LIGHT_ONLY_ITERATIONS) >= 30 * LIGHT_ONLY_ITERATIONS


async def test_who_pings_often_is_a_guest_beside_those_who_send_as_often() -> None:
    """A request that waits for the store costs more than the frame that asked for it."""
    turns = FairLoopScheduler()
    for _ in range(WINDOW):
        for group in ("pinger", "sender"):
            turns.light_clients.count(group)
        turns.light_clients.count("sender", REQUEST_COST)
    assert turns.is_light("pinger")
    assert not turns.is_light("sender")


async def test_the_groups_of_a_crowd_all_have_their_turn_beside_a_guests_request() -> None:
    turns, started = FairLoopScheduler(at_once=2), []

    def begin(group: str) -> None:
        started.append(group)
        turns.queue(group, partial(begin, group))

    for number in range(20):
        turns.queue(f"crowd-{number}", partial(begin, f"crowd-{number}"))
    for _ in range(WINDOW):
        await asyncio.sleep(0)
    with turns.light_clients.request():
        before = len(started)
        for _ in range(11 * LIGHT_ONLY_ITERATIONS):
            await asyncio.sleep(0)
    assert len(set(started[before:])) == 20


async def test_a_request_that_lasts_as_long_as_a_reply_keeps_others_waiting_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_scheduler, "MAX_PRIORITY_S", 0)
    light_clients = LightClients()
    with light_clients.request():
        assert light_clients.requests == 1
        for _ in range(3):  # a timer of no time
            await asyncio.sleep(0)
        assert light_clients.requests == 0


async def test_a_guests_work_begins_at_once_beside_another_guests() -> None:
    turns, order = FairLoopScheduler(at_once=1), []
    with turns.light_clients.request():
        for _ in range(2 * WINDOW):
            turns.queue("crowd", partial(order.append, "crowd"))
            await asyncio.sleep(0)
        turns.queue("bob", partial(order.append, "bob"))
        before = len(order)
        for _ in range(2):
            await asyncio.sleep(0)
    assert "bob" in order[before:]
