"""Tallies with bounds, and what is made of them."""

from __future__ import annotations

import asyncio
import re
from io import StringIO
from xml.etree import ElementTree as ET

import orjson

from midstream.bench.page import page
from midstream.bench.plan import Plan
from midstream.bench.plots import Axis, plot
from midstream.bench.progress_line import line, show_progress
from midstream.bench.report import curves_of, facts, lines
from midstream.bench.results import MOST_CODES, MOST_SLICES, Results

PLAN = Plan(concurrency=2)
READY = {"server": {"name": "midstream", "version": "1.2.3"}, "model": "a<b"}


def seen() -> Results:
    """Two conversations: one reply each, an error."""
    tally = Results(100.0)
    for number in (1, 2):
        tally.came(100.0 + number)
        tally.durations.first_token.add(0.1 * number)
        tally.piece(101.0 + number)
        tally.end("stop", 30, 102.0 + number)
        tally.went(102.0 + number)
    tally.error("rate_limited", 103.0)
    return tally


def test_the_time_line_grows_coarser_instead_of_longer() -> None:
    tally = Results(0.0)
    for second in range(10_000):
        tally.piece(float(second))
    assert len(tally.line.slices) <= MOST_SLICES
    assert sum(part.pieces for part in tally.line.slices) == 10_000
    assert tally.line.slice_s == 64.0


def test_a_server_that_makes_up_codes_does_not_fill_the_memory() -> None:
    tally = Results(0.0)
    for number in range(1000):
        tally.error(f"code {number}", 0.0)
        tally.end(f"reason {number}", 1, 0.0)
    assert max(len(tally.errors), len(tally.ends)) <= MOST_CODES + 1
    assert (tally.errors.total(), tally.replies) == (1000, 1000)


def test_the_report_counts_what_was_seen() -> None:
    report = facts(seen(), PLAN, READY, "ws://here")
    assert report["replies"] == {"stop": 2}
    assert report["errors"] == {"rate_limited": 1}
    assert (report["tokens"], report["lasted_s"], report["tokens_per_s"]) == (60, 4.0, 15.0)
    assert report["durations"]["first_token"]["most_ms"] == 200.0
    assert report["durations"]["gap"]["p50_ms"] is None
    assert orjson.loads(orjson.dumps(report))["plan"]["prompts"] == 8


def test_the_table_has_what_was_timed_and_says_what_to_make_of_it() -> None:
    tally = seen()
    tally.durations.own_lag.add(0.2)
    tally.left_out = 3
    reported = "\n".join(lines(facts(tally, PLAN, READY, "ws://here")))
    assert re.search(r"message, to the first text +2 +101 +200 ", reported)
    assert "1 rate_limited" in reported
    assert "lagged by up to 200 ms" in reported
    assert "3 conversations were left out" in reported
    assert "between two texts" not in reported


def test_the_page_loads_nothing_and_escapes_what_the_server_says() -> None:
    tally = seen()
    html = page(facts(tally, PLAN, READY, "ws://here"), curves_of(tally))
    assert "a&lt;b" in html
    assert "a<b" not in html
    assert not re.search(r"(src|href)=|@import|url\(|<script", html)
    svgs = re.findall(r"<svg.*?</svg>", html)
    assert len(svgs) == 4  # of gaps and of stops nothing was seen
    assert all(ET.fromstring(svg).tag == "svg" for svg in svgs)


def test_a_line_of_a_plot_ends_at_its_edges() -> None:
    svg = plot({"one": [(0.0, 0.0), (10.0, 5.0)]}, across=Axis("x"), up=Axis("y"))
    assert '<polyline points="64.0,220.0 704.0,14.0"' in svg


def test_the_live_line_says_how_it_goes() -> None:
    reported = line(seen(), 104.0, duration_s=10.0)
    assert reported.startswith("4/10 s  0 talking  2 replies  15 tokens/s  first text 101 ms")
    assert reported.endswith("1 errors (rate_limited)")


class Terminal(StringIO):
    """Somebody watches it."""

    seen: asyncio.Event

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        written = super().write(text)
        self.seen.set()
        return written


async def test_the_live_line_is_written_to_a_terminal_alone_and_taken_away() -> None:
    terminal, file = Terminal(), StringIO()
    terminal.seen = asyncio.Event()
    tasks = [asyncio.create_task(show_progress(seen(), duration_s=10, out=out)) for out in (terminal, file)]
    await terminal.seen.wait()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert file.getvalue() == ""
    assert "2 replies" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")
