"""Long conversations on the page: ten thousand messages that are opened and read.

The peer of the browser's tests serves the messages, so that only the page is measured: how fast it opens, how it scrolls, how
large it gets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from statistics import median

import msgspec
from playwright.async_api import Browser, Page, expect

from tests.bench.report import Measured, at_most, percentile
from tests.browser.chat_page import ChatPage
from tests.browser.conftest import DESKTOP
from tests.browser.fake_server import FakeServer, PageConnection, peer
from tests.browser.long_history import CONVERSATION, SCROLLER, history, loaded_all, scroll_to, settled
from tests.browser.server_actions import delta

MESSAGES = 10_000
FRAMES = 240
WHEEL_PX = 120
"""Pixels per frame: a quick hand at a wheel."""
PLACES = (0.0, 0.25, 0.5, 0.75, 1.0)
PIECES = 120
PIECE = "Some more words of it, **bold** ones among them. "
OPENED_BY = """
(() => {
  const look = () => {
    const shown = document.querySelector(".message .prose, .message .bubble, .welcome:not([hidden])") !== null;
    const connected = document.querySelector("#connection[data-state=connected]") !== null;
    if (shown && connected) window.openedMs ??= performance.now();
  };
  new MutationObserver(look).observe(document, { subtree: true, childList: true, attributes: true });
})();
"""
FRAME_TIMES = """async ([frames, by]) => {
  const scroller = document.querySelector("#scroller");
  const at = [];
  for (let frame = 0; frame <= frames; frame += 1) {
    at.push(await new Promise(requestAnimationFrame));
    scroller.scrollTop += by;
  }
  return at.slice(1).map((time, index) => time - at[index]);
}"""
NODES = """() => {
  const walker = document.createTreeWalker(document, NodeFilter.SHOW_ALL);
  let nodes = 1;
  while (walker.nextNode() !== null) nodes += 1;
  return nodes;
}"""


class LongConversationResult(msgspec.Struct, frozen=True, kw_only=True):
    """Observations of one long conversation: the frames' times, and the page's size."""

    up_ms: list[float]
    down_ms: list[float]
    writing_ms: list[float]
    nodes: int


async def long_rows(browser: Browser, *, rounds: int, messages: int = MESSAGES) -> list[Measured]:
    """Measure: opening beside an empty conversation, frames while scrolling and writing, nodes."""
    async with peer() as made:
        made.histories[CONVERSATION] = history(messages // 2)
        made.histories["empty"] = []
        empty = [await _opened(browser, made, "empty") for _ in range(rounds)]
        full = [await _opened(browser, made, CONVERSATION) for _ in range(rounds)]
        seen = await _read(browser, made)
    return list(_long_figures(f"{messages:,} messages", median(empty), median(full), seen))


def _long_figures(name: str, empty: float, full: float, seen: LongConversationResult) -> Iterator[Measured]:
    opening, readings = f"{name}: opening, above an empty one", {"empty": empty, name: full}
    yield Measured(label=opening, value=full - empty, unit="ms", target=at_most(200), readings=readings)
    frames = {
        "scrolling up": seen.up_ms, "scrolling down": seen.down_ms, "while a reply is written": seen.writing_ms
    }  # fmt: skip
    for what, times in frames.items():
        yield Measured(
            label=f"{name}: frame p95, {what}",
            value=percentile(times, 0.95),
            unit="ms",
            target=at_most(33.4),  # two frames of 60 a second
            readings={"p50": percentile(times, 0.5) or 0.0, "longest": max(times)},
        )
    yield Measured(label=f"{name}: nodes, most", value=seen.nodes, target=at_most(3_000))


async def _opened(browser: Browser, made: FakeServer, conversation: str) -> float:
    """Return the milliseconds from the navigation until the newest message is there, or the welcome."""
    context = await browser.new_context(viewport=DESKTOP)
    page = await context.new_page()
    await page.add_init_script(OPENED_BY)
    await page.goto(f"{made.url}/#/{conversation}")
    await made.conn()
    await page.wait_for_function("() => window.openedMs !== undefined")
    opened = await page.evaluate("window.openedMs")
    await context.close()
    return float(opened)


async def _read(browser: Browser, made: FakeServer) -> LongConversationResult:
    """Read the whole conversation from its end to its beginning, and have a reply written."""
    context = await browser.new_context(viewport=DESKTOP)
    chat = ChatPage(await context.new_page())
    await chat.page.goto(f"{made.url}/#/{CONVERSATION}")
    conn = await made.conn()
    await expect(chat.questions.first).to_be_attached()
    up = await _frames(chat.page, -WHEEL_PX)
    await loaded_all(chat)
    await scroll_to(chat, 0.5)
    up += await _frames(chat.page, -WHEEL_PX)
    down = await _frames(chat.page, WHEEL_PX)
    counts = []
    for place in PLACES:
        await scroll_to(chat, place)
        counts.append(await chat.page.evaluate(NODES))
    writing = await _written(chat, conn)
    counts.append(await chat.page.evaluate(NODES))
    await context.close()
    return LongConversationResult(up_ms=up, down_ms=down, writing_ms=writing, nodes=max(counts))


async def _frames(page: Page, by: int) -> list[float]:
    return list(await page.evaluate(FRAME_TIMES, [FRAMES, by]))


async def _written(chat: ChatPage, conn: PageConnection) -> list[float]:
    """Return the frames' times while a reply grows at the end."""
    await chat.page.evaluate(f"{SCROLLER}.scrollTop = {SCROLLER}.scrollHeight")
    await settled(chat)
    await chat.type("And now?")
    send = await conn.receive("send")
    await conn.accept(send, turn="t", seq=MESSAGES + 1)
    frames = asyncio.create_task(_frames(chat.page, 0))
    for number in range(PIECES):
        await delta(conn, send, PIECE, off=number * len(PIECE), seq=MESSAGES + 2 + number)
        await asyncio.sleep(0.03)
    return await frames
