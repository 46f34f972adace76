"""However many sockets have a frame, a few are taken in each turn of the event loop, and each address has its turn."""

from __future__ import annotations

import asyncio

from connections.limits.loop_turns import LoopTurns


async def taken(turns: LoopTurns, groups: list[str]) -> list[list[str]]:
    """Who gets a frame in which turn of the event loop."""
    loop, found, number = asyncio.get_running_loop(), [[]], 0

    def count() -> None:
        nonlocal number
        number += 1
        found.append([])
        if number < 3 * len(groups):
            loop.call_soon(count)

    async def one(group: str) -> None:
        if not turns.take_nowait():
            await turns.take(group)
        found[number].append(group)

    tasks = [asyncio.create_task(one(group)) for group in groups]
    loop.call_soon(count)
    await asyncio.gather(*tasks)
    return [names for names in found if names]


async def test_a_few_are_taken_in_a_turn_of_the_loop() -> None:
    found = await taken(LoopTurns(at_once=4), ["a"] * 20)
    assert sum(map(len, found)) == 20
    assert max(map(len, found)) <= 4


async def test_whoever_comes_from_elsewhere_does_not_wait_behind_a_crowd() -> None:
    found = await taken(LoopTurns(at_once=2), [*["crowd"] * 40, "bob"])
    assert "bob" in [name for names in found[:3] for name in names]


async def test_who_is_alone_waits_for_nobody() -> None:
    turns = LoopTurns(at_once=2)
    for _ in range(10):
        assert turns.take_nowait()
        await asyncio.sleep(0)


async def test_who_left_while_it_waited_takes_nobodys_turn() -> None:
    turns = LoopTurns(at_once=1)
    assert turns.take_nowait()
    gone, here = asyncio.create_task(turns.take("a")), asyncio.create_task(turns.take("b"))
    await asyncio.sleep(0)
    gone.cancel()
    async with asyncio.timeout(1):
        await here
