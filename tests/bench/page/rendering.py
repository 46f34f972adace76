"""How long the page keeps its reader waiting while a reply streams: a long block of code, a long table, many sections.

A real Chromium shows the page; a peer sends the reply in small pieces, as a model would. The browser itself tells its long
tasks: those over 50 ms, in which no key press is answered. By itself: `python -m tests.bench.page.rendering`.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from playwright.async_api import Browser, Page, async_playwright, expect

from tests.bench.engine.findings import Measured, Target
from tests.browser.acts import begin, delta, visit
from tests.browser.chat_page import ChatPage
from tests.browser.conftest import DESKTOP, OPTIONS
from tests.browser.peer import Line
from tests.browser.peer import peer as make_peer

LONG_MS = 50
"""What the Long Tasks API of browsers calls long."""
PIECE = 24
"""Characters of a delta."""
PACE_S = 0.004
WATCH = """
    () => {
      window.longTasks = [];
      new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map(({ duration }) => duration)))
        .observe({ type: "longtask" });
    }
"""
PYTHON = '''def step_{n}(value: int, names: list[str]) -> dict[str, int]:
    """Return what step {n} makes of a value."""
    total = sum(len(name) for name in names) + value * {n}  # as in the text
    return {{"step": {n}, "total": total, "half": total // 2}}

'''


class Kind(NamedTuple):
    """A reply of one kind."""

    name: str
    text: str


class Seen(NamedTuple):
    """The tasks over 50 ms while a reply streamed."""

    kind: str
    tasks_ms: tuple[float, ...]


def kinds() -> Iterator[Kind]:
    """The replies that are streamed."""
    yield Kind("400 lines of code", "```python\n" + "".join(PYTHON.format(n=n) for n in range(80)) + "```\n")
    rows = "".join(f"| {n} | name {n} | *{n * 7}* | `x_{n}` |\n" for n in range(1500))
    yield Kind("a table of 1,500 rows", f"| n | name | value | code |\n|--:|---|---|---|\n{rows}")
    section = "## Part {n}\n\nSome words with *emphasis*, `code` and [a link](https://example.org/{n}).\n\n- one\n- two\n\n"
    yield Kind("120 sections", "".join(section.format(n=n) for n in range(120)))


async def rows() -> list[Measured]:
    """Stream each reply once, and tell the longest task and how many were long."""
    async with _chromium() as browser:
        seen = [await _streamed(browser, kind) for kind in kinds()]
    return [row for one in seen for row in _rows_of(one)]


def _rows_of(seen: Seen) -> Iterator[Measured]:
    worst = max(seen.tasks_ms, default=0.0)
    label = f"while {seen.kind} stream" + ("s" if seen.kind.startswith("a ") else "")
    note = "" if worst else f"no task was over {LONG_MS} ms, shorter ones are not told"
    at_most = Target(LONG_MS, at_most=True)
    yield Measured(label=f"{label}: longest task", value=worst, unit="ms", target=at_most, note=note)
    yield Measured(
        label=f"{label}: tasks over {LONG_MS} ms", value=len(seen.tasks_ms), target=Target(0, at_most=True)
    )


async def _streamed(browser: Browser, kind: Kind) -> Seen:
    async with make_peer() as peer:
        context = await browser.new_context(viewport=DESKTOP)
        chat = ChatPage(await context.new_page())
        line = await visit(chat, peer)
        await _warm(chat.page)
        await chat.page.evaluate(WATCH)
        await _stream(chat, line, kind.text)
        tasks = await chat.page.evaluate("window.longTasks")
        await context.close()
    return Seen(kind.name, tuple(tasks))


async def _stream(chat: ChatPage, line: Line, text: str) -> None:
    send = await begin(chat, line)
    for seq, off in enumerate(range(0, len(text), PIECE), start=2):
        await delta(line, send, text[off : off + PIECE], off=off, seq=seq)
        await asyncio.sleep(PACE_S)
    await line.finish(send, turn="t", seq=seq + 1, reason="stop", chars=len(text))
    await expect(chat.page.locator(".reply[aria-busy=true]")).to_have_count(0, timeout=120_000)
    await _settled(chat.page)


async def _warm(page: Page) -> None:
    """The first block of code loads the highlighter: that is a figure of the page's loading."""
    await page.evaluate(
        "import('/static/ui/replies/highlighter.js').then((module) => module.loadHighlighter())"
    )


async def _settled(page: Page) -> None:
    await page.evaluate("import('/static/ui/markdown/slices.js').then(({ later }) => later.settled())")


@asynccontextmanager
async def _chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=OPTIONS)
        yield browser
        await browser.close()


if __name__ == "__main__":
    for row in asyncio.run(rows()):
        print(f"{row.label}: {row.value:.0f} {row.unit}")
