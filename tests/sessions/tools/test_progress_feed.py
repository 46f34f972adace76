"""Progress is merged: the newest is heard, a few times a second, from whichever thread it comes."""

from __future__ import annotations

import asyncio
import math

import pytest

from sessions.tools.calls import ProgressFeed, plain
from sessions.tools.tool_registry import Progress
from tests.sessions.tools.tool_calls import Watcher


async def test_a_flood_is_heard_as_its_newest() -> None:
    watcher = Watcher()
    feed = ProgressFeed(watcher, interval_s=0.05)
    await asyncio.to_thread(lambda: [feed.report(Progress(done=number)) for number in range(50_000)])
    feed.report(Progress(done=50_000))
    received = [await watcher.seen.get()]
    while received[-1].done < 50_000:
        received.append(await watcher.seen.get())
    assert len(received) < 100
    assert [one.done for one in received] == sorted(one.done for one in received)


async def test_reports_are_apart() -> None:
    watcher, loop = Watcher(), asyncio.get_running_loop()
    feed = ProgressFeed(watcher, interval_s=0.05)
    times = []
    for number in range(3):
        feed.report(Progress(done=number))
        await watcher.seen.get()
        times.append(loop.time())
    assert times[2] - times[0] >= 0.1 - 1e-3


async def test_a_closed_feed_is_silent() -> None:
    watcher = Watcher()
    feed = ProgressFeed(watcher, interval_s=0)
    feed.report(Progress(done=1))
    feed.close()
    feed.report(Progress(done=2))
    other = Watcher()
    ProgressFeed(other, interval_s=0).report(Progress(done=3))
    await other.seen.get()
    assert watcher.seen.empty()


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_left_out(number: float) -> None:
    assert plain(Progress(done=number)) is None
    assert plain(Progress(done=1, total=number)) == Progress(done=1)


def test_words_about_progress_are_short_and_can_be_written() -> None:
    shown = plain(Progress(done=1, message="\ud800" + "x" * 1000))
    assert shown is not None
    assert shown.message == "?" + "x" * 199
