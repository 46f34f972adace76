"""The pieces of a call: its progress, and the length of its result."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.tools.calls import ProgressFeed, plain
from sessions.tools.tool_registry import Progress, cut_to
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
    assert (shown and shown.message) == "?" + "x" * 199


texts = st.text(alphabet=st.characters(codec=None) | st.sampled_from("\ud800€𝄞é"), max_size=60)


@given(texts, st.integers(0, 100))
def test_a_result_is_written_as_far_as_it_may_be(text: str, limit: int) -> None:
    written = text.encode("utf-8", "replace").decode()
    kept, line, rest = cut_to(text, limit).partition("\n[The result was cut here.")
    assert written.startswith(kept)
    assert len(kept.encode()) <= limit or not line
    assert bool(line) == (len(written.encode()) > limit)
    if line:
        assert len(kept.encode()) > limit - 4
        assert f"first {len(kept)}." in rest
    else:
        assert kept == written
