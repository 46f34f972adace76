"""How long the page keeps its reader waiting while a reply streams: a long block of code, a long table.

A real Chromium shows the page; a peer sends the reply in small pieces, as a model would. Chromium's own trace has the
tasks of the page's main thread: in one over 50 ms no key press is answered. The processor's time of a task is reported beside
its duration, which is longer if others use the processor too.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from playwright.async_api import Browser, expect

from tests.bench.report import Measured, at_most
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
WARM = "import('/static/ui/replies/highlighter.js').then((module) => module.loadHighlighter())"
"""The highlighter's cost belongs to the page's loading."""
SETTLED = "import('/static/ui/markdown/slices.js').then(({ later }) => later.settled())"
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
    """Return a block of code, five lines a function."""
    return Kind(name, f"```python\n{''.join(PYTHON.format(n=n) for n in range(functions))}```\n")


FEW_LINES = code("10 lines of code", 2)


def kinds() -> Iterator[Kind]:
    """Yield the replies that are streamed."""
    yield code("400 lines of code", 80)
    rows = "".join(f"| {n} | name {n} | *{n * 7}* | `x_{n}` |\n" for n in range(1500))
    yield Kind("a table of 1,500 rows", f"| n | name | value | code |\n|--:|---|---|---|\n{rows}")


async def rows(browser: Browser, *, rounds: int, replies: Iterable[Kind]) -> list[Measured]:
    """Stream each reply so many times; return the medians of its longest task and of the number of long ones."""
    found: list[Measured] = []
    for kind in replies:
        found += figures(kind.name, [await _streamed(browser, kind) for _ in range(rounds)])
    return found


def figures(name: str, streamed: Sequence[Sequence[Task]]) -> Iterator[Measured]:
    """Return the figures of the tasks of each time that one reply was streamed. Pure."""
    worked = [[task.cpu_ms for task in tasks] for tasks in streamed]
    lasted = [[task.ms for task in tasks] for tasks in streamed]
    longest, busiest = (median(max(times, default=0.0) for times in some) for some in (lasted, worked))
    many, busy = (
        float(median(sum(ms > LONG_MS for ms in times) for times in some)) for some in (lasted, worked)
    )
    label, limit = f"{name}, streaming", at_most(LONG_MS)
    processor = {"processor": busiest}
    yield Measured(label=f"{label}: longest task", value=longest, unit="ms", target=limit, readings=processor)
    over = f"{label}: tasks over {LONG_MS} ms"
    yield Measured(label=over, value=many, target=at_most(0), readings={"processor": busy})


async def _streamed(browser: Browser, kind: Kind) -> list[Task]:
    """Stream a reply once; return the tasks of the main thread of the page, of which there is one."""
    async with make_peer() as peer:
        context = await browser.new_context(viewport=DESKTOP)
        chat = ChatPage(await context.new_page())
        conn = await visit(chat, peer)
        await chat.page.evaluate(WARM)
        await browser.start_tracing(page=chat.page, categories=CATEGORIES)
        await _stream(chat, conn, kind.text)
        events: list[dict[str, Any]] = json.loads(await browser.stop_tracing())["traceEvents"]
        await context.close()
    names = [event for event in events if event["name"] == "thread_name"]
    main = {(one["pid"], one["tid"]) for one in names if one["args"]["name"] == "CrRendererMain"}
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
    await chat.page.evaluate(SETTLED)
