"""A conversation of hours on one page that is never reloaded: its long tasks, memory and elements, turn after turn.

A scripted engine answers behind the real service. Two hours are represented by their thousand turns, without the pauses.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from playwright.async_api import Browser, Page

from tests.bench.engine.report import Measured, Target
from tests.browser.chat_page import ChatPage
from tests.browser.conftest import DESKTOP

TURNS = 1_000
BEGUN = 10
"""Divisor of the turns: what the page holds after a tenth of them does not depend on the number of turns."""
LONG_MS = 50
WATCH = """
window.longMs = [];
new PerformanceObserver((list) => window.longMs.push(...list.getEntries().map(({ duration }) => duration)))
  .observe({ type: "longtask" });
"""


class PageMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The page's size after so many turns."""

    turns: int
    heap_mb: float
    elements: int


class ConversationResult(msgspec.Struct, frozen=True, kw_only=True):
    """A whole conversation. `long_ms`: tasks over 50 ms, from the first message on."""

    long_ms: list[float]
    begun: PageMemory
    ended: PageMemory


async def rows(browser: Browser, url: str, *, turns: int = TURNS) -> list[Measured]:
    """Talk for so many turns, ten at least, and return the effect on the page."""
    context = await browser.new_context(viewport=DESKTOP)
    chat = ChatPage(await context.new_page())
    await chat.open(url)
    await chat.ask("Are you there?")  # the highlighter and the page's start are figures of loading
    await chat.page.evaluate(WATCH)
    begun = await _run_turns(chat, 0, turns // BEGUN)
    ended = await _run_turns(chat, turns // BEGUN, turns)
    long_ms = await chat.page.evaluate("window.longMs")
    await context.close()
    return list(figures(ConversationResult(long_ms=long_ms, begun=begun, ended=ended)))


def figures(talked: ConversationResult) -> Iterator[Measured]:
    """Make rows of a conversation."""
    name = f"{talked.ended.turns:,} turns"
    yield Measured(
        label=f"{name}: tasks over {LONG_MS} ms",
        value=len(talked.long_ms),
        readings={"longest, ms": max(talked.long_ms, default=0.0)},
    )
    begun = f"after {talked.begun.turns:,}"
    yield Measured(
        label=f"{name}: memory of scripts",
        value=talked.ended.heap_mb,
        unit="MB",
        readings={begun: talked.begun.heap_mb},
    )
    yield Measured(
        label=f"{name}: elements",
        value=talked.ended.elements,
        readings={begun: talked.begun.elements},
        target=Target(3_000, at_most=True),
    )


async def _run_turns(chat: ChatPage, first: int, end: int) -> PageMemory:
    for number in range(first, end):
        await chat.type(f"Question {number}?")
        await chat.page.wait_for_function(ANSWERED, arg=f"Question {number}?", polling="raf")
    return await _page_memory(chat.page, end)


ANSWERED = """(question) => {
  const asked = [...document.querySelectorAll(".user .bubble")].at(-1)?.textContent === question;
  return asked && document.querySelector(".message:last-of-type.reply[aria-busy=false]") !== null;
}"""


async def _page_memory(page: Page, turns: int) -> PageMemory:
    session = await page.context.new_cdp_session(page)
    await session.send("HeapProfiler.collectGarbage")
    heap = await session.send("Runtime.getHeapUsage")
    await session.detach()
    elements = await page.evaluate("document.querySelectorAll('*').length")
    return PageMemory(turns=turns, heap_mb=heap["usedSize"] / 2**20, elements=elements)
