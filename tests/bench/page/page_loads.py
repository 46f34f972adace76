"""Visits the page with a real Chromium over a slow line: a first visit, a message, and a reload."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Browser, Page, async_playwright, expect

from tests.bench.page.records import NetworkProfile, Round, Visit
from tests.bench.page.traffic import Traffic
from tests.browser.chat_page import ChatPage
from tests.browser.conftest import DESKTOP, OPTIONS

PATIENCE_MS = 60_000
FRAMES_WAIT = """
((roundTripMs) => {
  const send = WebSocket.prototype.send;
  WebSocket.prototype.send = function (data) {
    setTimeout(() => this.readyState === WebSocket.OPEN && send.call(this, data), roundTripMs);
  };
})"""
"""Chromium's emulation delays a socket's handshake but not its frames: here each sent frame waits for a round trip."""
WATCH = """
(() => {
  const look = () => {
    window.shownMs ??= document.querySelector(".reply .prose")?.textContent ? performance.now() : undefined;
    const connected = document.querySelector("#connection[data-state=connected]") !== null;
    const ready = connected && document.querySelector("#message:not(:disabled)") !== null;
    window.usableMs ??= ready ? performance.now() : undefined;
  };
  const changes = { subtree: true, childList: true, characterData: true, attributes: true };
  new MutationObserver(look).observe(document, changes);
})();
"""
SEEN = """() => ({
  usableMs: window.usableMs,
  shownMs: window.shownMs ?? null,
  paintMs: performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 0,
  nodes: document.querySelectorAll("*").length,
})"""


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Start a browser. Raises FileNotFoundError if there is none."""
    path = shutil.which("chromium")
    if path is None:
        raise FileNotFoundError("there is no `chromium` on PATH (Debian: apt-get install chromium)")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=OPTIONS)
        try:
            yield browser
        finally:
            await browser.close()


async def visited(browser: Browser, url: str, line: NetworkProfile) -> Round:
    """One visitor with an empty store, twice."""
    context = await browser.new_context(viewport=DESKTOP)
    page = await context.new_page()
    await page.add_init_script(f"{FRAMES_WAIT}({line.round_trip_ms});")
    await page.add_init_script(WATCH)
    first = await _visit(page, line, lambda: page.goto(url))
    await ChatPage(page).ask("Hello?")
    reload = await _visit(page, line, page.reload)
    await page.wait_for_function("() => window.shownMs !== undefined")
    await context.close()
    return Round(first=first, reload=reload)


async def _visit(page: Page, line: NetworkProfile, load: Any) -> Visit:
    session = await page.context.new_cdp_session(page)
    traffic = Traffic(session)
    await traffic.slow_down(line)
    await load()
    await page.wait_for_function("() => window.usableMs !== undefined", timeout=PATIENCE_MS)
    await page.wait_for_load_state("networkidle", timeout=PATIENCE_MS)
    await _can_send(page)
    seen = await page.evaluate(SEEN)
    heap = await session.send("Runtime.getHeapUsage")
    await session.detach()
    return Visit(
        usable_ms=seen["usableMs"],
        paint_ms=seen["paintMs"],
        shown_ms=seen["shownMs"],
        requests=traffic.requests,
        in_a_row=traffic.in_a_row,
        wire_bytes=traffic.wire_bytes(seen["usableMs"]),
        nodes=seen["nodes"],
        heap_mb=heap["usedSize"] / 2**20,
    )


async def _can_send(page: Page) -> None:
    """Check that the page is really usable: the button sends a message."""
    box = page.get_by_label("Your message")
    await box.fill("x")
    await expect(page.get_by_role("button", name="Send")).to_be_enabled()
    await box.fill("")
