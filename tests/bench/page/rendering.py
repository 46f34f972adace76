"""How long the page keeps its reader waiting while a reply streams: a long block of code, a long table, many sections.

A real Chromium shows the page; a peer sends the reply in small pieces, as a model would. Chromium's own trace tells the
tasks of the page's main thread: in one over 50 ms no key press is answered. The processor's time of a task is told beside
its duration, which is longer where others use the processor too.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from playwright.async_api import Browser, Page, expect

from tests.bench.engine.report import Measured, Target
from tests.browser.chat_page import ChatPage
from tests.browser.conftest import DESKTOP
from tests.browser.fake_server import PageConnection
from tests.browser.fake_server import peer as make_peer
from tests.browser.server_actions import begin, delta, visit

LONG_MS = 50
"""Milliseconds from which browsers call a task long."""
PIECE = 24
"""Characters of a delta."""
PACE_S = 0.004
CATEGORIES = ["toplevel", "devtools.timeline", "disabled-by-default-devtools.timeline"]
PYTHON = '''def step_{n}(value: int, names: list[str]) -> dict[str, int]:
    """Return what step {n} makes of a value."""
    total = sum(len(name) for name in names) + value * {n}  # as in the text
    return {{"step": {n}, "total": total, "half": total // 2}}

'''


class Kind(NamedTuple):
    """A reply of one kind."""

    name: str
    text: str


class Task(NamedTuple):
    """One task of the page's main thread."""

    ms: float
    cpu_ms: float


def code(name: str, functions: int) -> Kind:
    """A block of code, five lines a function."""
    text = "".join(PYTHON.format(n=n) for n in range(functions))
    return Kind(name, f"```python\n{text}```\n")


FEW_LINES = code("10 lines of code", 2)


def kinds() -> Iterator[Kind]:
    """The replies that are streamed."""
    yield code("400 lines of code", 80)
    rows = "".join(f"| {n} | name {n} | *{n * 7}* | `x_{n}` |\n" for n in range(1500))
    yield Kind("a table of 1,500 rows", f"| n | name | value | code |\n|--:|---|---|---|\n{rows}")
    section = "## Part {n}\n\nSome words with *emphasis*, `code` and [a link](https://example.org/{n}).\n\n- one\n- two\n\n"
    yield Kind("120 sections", "".join(section.format(n=n) for n in range(120)))


async def rows(browser: Browser, *, rounds: int, replies: Iterable[Kind]) -> list[Measured]:
    """Stream each reply so many times; return the medians of its longest task and of the number of long ones."""
    return [
        row
        for kind in replies
        for row in figures(kind.name, [await _streamed(browser, kind) for _ in range(rounds)])
    ]


def figures(name: str, streamed: Sequence[Sequence[Task]]) -> Iterator[Measured]:
    """Make rows of the tasks of each time that one reply was streamed."""
    label = f"{name}, streaming"
    yield Measured(
        label=f"{label}: longest task",
        unit="ms",
        target=Target(LONG_MS, at_most=True),
        **_medians(streamed, lambda times: max(times, default=0.0)),
    )
    yield Measured(
        label=f"{label}: tasks over {LONG_MS} ms",
        target=Target(0, at_most=True),
        **_medians(streamed, lambda times: float(sum(ms > LONG_MS for ms in times))),
    )


def _medians(streamed: Sequence[Sequence[Task]], figure: Callable[[list[float]], float]) -> dict[str, Any]:
    """The median of a figure, by the tasks' duration; beside it, by the processor's time."""
    lasted = median(figure([task.ms for task in tasks]) for tasks in streamed)
    worked = median(figure([task.cpu_ms for task in tasks]) for tasks in streamed)
    return {"value": lasted, "readings": {"processor": worked}}


async def _streamed(browser: Browser, kind: Kind) -> list[Task]:
    async with make_peer() as peer:
        context = await browser.new_context(viewport=DESKTOP)
        chat = ChatPage(await context.new_page())
        conn = await visit(chat, peer)
        await _warm(chat.page)
        await browser.start_tracing(page=chat.page, categories=CATEGORIES)
        await _stream(chat, conn, kind.text)
        trace = await browser.stop_tracing()
        await context.close()
    return _tasks(json.loads(trace)["traceEvents"])


def _tasks(events: list[dict[str, Any]]) -> list[Task]:
    """Return the tasks of the main thread of the page, of which there is one."""
    main = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    return [
        Task(event["dur"] / 1000, event.get("tdur", 0) / 1000)
        for event in events
        if event["name"] == "RunTask" and event["ph"] == "X" and (event["pid"], event["tid"]) in main
    ]


async def _stream(chat: ChatPage, conn: PageConnection, text: str) -> None:
    send = await begin(chat, conn)
    for seq, off in enumerate(range(0, len(text), PIECE), start=2):
        await delta(conn, send, text[off : off + PIECE], off=off, seq=seq)
        await asyncio.sleep(PACE_S)
    await conn.finish(send, turn="t", seq=seq + 1, reason="stop", chars=len(text))
    await expect(chat.page.locator(".reply[aria-busy=true]")).to_have_count(0, timeout=120_000)
    await _settled(chat.page)


async def _warm(page: Page) -> None:
    """Show a first block of code, which loads the highlighter: that cost belongs to the page's loading."""
    await page.evaluate(
        "import('/static/ui/replies/highlighter.js').then((module) => module.loadHighlighter())"
    )


async def _settled(page: Page) -> None:
    await page.evaluate("import('/static/ui/markdown/slices.js').then(({ later }) => later.settled())")
