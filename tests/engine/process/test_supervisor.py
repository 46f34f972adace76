"""A dead engine is started again, soon at first, then ever later, then no more, over a line that may break."""

from __future__ import annotations

import asyncio
import socket
import sys

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from engine.process.supervision import (
    ChildProcess,
    Heartbeat,
    HeartbeatOptions,
    RestartLedger,
    RestartPolicy,
    _MessageReader,
)

POLICY = RestartPolicy(first_delay_s=1, longest_delay_s=3, deaths=5, window_s=100, jitter=0.5)


def test_waits_double_up_to_the_longest_until_it_is_over_and_deaths_long_ago_are_forgiven() -> None:
    often, seldom = (RestartLedger(POLICY, lambda: 0.0) for _ in range(2))
    assert [often.died(now) for now in range(5)] == [1, 2, 3, 3, None]
    assert [seldom.died(now * 100.0) for now in range(9)] == [1] * 9
    assert RestartLedger(POLICY, lambda: 1.0).died(0) == 0.5, "shortened by chance"


@given(st.lists(st.floats(0, 1000)), st.floats(0, 1))
def test_a_wait_is_never_longer_than_the_longest(times: list[float], chance: float) -> None:
    ledger = RestartLedger(POLICY, lambda: chance)
    delays = [ledger.died(now) for now in sorted(times)]
    assert all(delay is None or 0 < delay <= POLICY.longest_delay_s for delay in delays)


def test_a_heart_stops_after_too_many_silent_intervals_in_a_row() -> None:
    heart = Heartbeat(HeartbeatOptions(misses=2))
    assert [heart.beat(), heart.beat()] == [None, None]
    heart.message_received()
    assert [heart.beat(), heart.beat()] == [None, None]
    assert "answered nothing" in (heart.beat() or "")


def beats(*pongs: tuple[bool, int]) -> str | None:
    """What a heart says after pongs, one an interval, where a step may take four intervals."""
    heart = Heartbeat(HeartbeatOptions(interval_s=5, step_timeout_s=20))
    for busy, turns in pongs:
        heart.message_received()
        heart.answered(busy=busy, turns=turns)
        trouble = heart.beat()
    return trouble


@pytest.mark.parametrize(
    ("pongs", "stops"),
    [
        ([(True, 7)] * 5, False),
        ([(True, 7)] * 6, True),
        ([(False, 7)] * 9, False),
        ([(True, turn) for turn in range(9)], False),
        ([*[(True, 7)] * 5, *[(True, 8)] * 5], False),
        ([*[(True, 7)] * 5, (False, 7), *[(True, 7)] * 4], False),
    ],
    ids=["a long step", "a longer one", "it waits", "it goes on", "from step to step", "it waited meanwhile"],
)
def test_a_heart_stops_where_the_step_loop_stands_at_one_step(
    pongs: list[tuple[bool, int]], *, stops: bool
) -> None:
    assert beats(*pongs) == ("A step of the engine did not end within 20 s." if stops else None)


def test_what_is_sent_to_a_process_that_is_gone_is_nothing() -> None:
    """Also before its end is known: uvloop raises where a line that broke is written to again."""

    async def send() -> None:
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        transport, line = await loop.create_unix_connection(lambda: _MessageReader(lambda _: None), sock=ours)
        child = ChildProcess(await asyncio.create_subprocess_exec(sys.executable, "-c", ""), transport, line)
        theirs.close()
        for _ in range(3):
            child.send(b"packed")
        await line.ended.wait()
        child.send(b"packed")
        await child.wait()

    uvloop.run(send())
