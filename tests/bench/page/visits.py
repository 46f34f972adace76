"""Visits to the page with a real Chromium over a slow line: a first visit, a message, and a reload, and their traffic.

Traffic is what Chromium reports of it (the Chrome DevTools Protocol, domain Network).
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from statistics import median
from typing import Any, NamedTuple

import msgspec
from playwright.async_api import Browser, CDPSession, Page, async_playwright, expect

from tests.bench.report import Measured, Target, at_most
from tests.browser.chat_page import ChatPage
from tests.browser.conftest import DESKTOP, OPTIONS

PATIENCE_MS = 60_000
KB = 1000
HELLO = 1
"""The round trip of `hello` and `ready`, after a handshake."""
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
    const connected = document.querySelector("#connection[data-state=connected]") !== null;
    const ready = connected && document.querySelector("#message:not(:disabled)") !== null;
    window.usableMs ??= ready ? performance.now() : undefined;
  };
  const changes = { subtree: true, childList: true, characterData: true, attributes: true };
  new MutationObserver(look).observe(document, changes);
})();
"""


class NetworkProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The network between browser and service: Chromium slows down its own to this."""

    down_kbit: float
    up_kbit: float
    round_trip_ms: float


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """One load of the page. Times start when the browser sets out."""

    usable_ms: float
    """Time until it is connected, and a message can be sent."""
    requests: int
    """Requests over the line, including the WebSocket's handshake."""
    in_a_row: int
    """Round trips that had to wait for each other until the page was usable."""
    wire_bytes: float


Round = tuple[Visit, Visit]
"""A visitor's first visit, and a reload of the conversation that they began."""


class Row(NamedTuple):
    """One figure of each visit. `first`, `reload`: targets, if any."""

    label: str
    unit: str
    read: Callable[[Visit], float]
    first: Target | None = None
    reload: Target | None = None


ROWS = (
    Row("usable", "s", lambda visit: visit.usable_ms / 1000, at_most(1.5), at_most(0.7)),
    Row("over the line", "KB", lambda visit: visit.wire_bytes / KB, at_most(150)),
    Row("requests", "", lambda visit: visit.requests),
    Row("round trips in a row until usable", "", lambda visit: visit.in_a_row),
)


def findings(rounds: Sequence[Round]) -> Iterator[Measured]:
    """Return the figures of some rounds, one at least: medians. Pure."""
    for name, place in (("first visit", 0), ("reload", 1)):
        visits = [made[place] for made in rounds]
        for row in ROWS:
            label, target = f"{name}: {row.label}", (row.first, row.reload)[place]
            yield Measured(label=label, value=median(map(row.read, visits)), unit=row.unit, target=target)


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
    """Have one visitor with an empty store come twice."""
    context = await browser.new_context(viewport=DESKTOP)
    page = await context.new_page()
    await page.add_init_script(f"{FRAMES_WAIT}({line.round_trip_ms});")
    await page.add_init_script(WATCH)
    first = await _visit(page, line, lambda: page.goto(url))
    await ChatPage(page).ask("Hello?")
    reload = await _visit(page, line, page.reload)
    await context.close()
    return first, reload


async def _visit(page: Page, line: NetworkProfile, load: Any) -> Visit:
    session = await page.context.new_cdp_session(page)
    traffic = Traffic(session)
    await traffic.slow_down(line)
    await load()
    await page.wait_for_function("() => window.usableMs !== undefined", timeout=PATIENCE_MS)
    await page.wait_for_load_state("networkidle", timeout=PATIENCE_MS)
    box = page.get_by_label("Your message")  # it is really usable: the button sends a message
    await box.fill("x")
    await expect(page.get_by_role("button", name="Send")).to_be_enabled()
    await box.fill("")
    usable_ms = await page.evaluate("window.usableMs")
    await session.detach()
    return Visit(
        usable_ms=usable_ms,
        requests=traffic.requests,
        in_a_row=traffic.in_a_row,
        wire_bytes=traffic.wire_bytes,
    )


class Traffic:
    """Listens to one load of a page."""

    def __init__(self, session: CDPSession) -> None:
        self._session = session
        self._urls: dict[str, str] = {}
        self._cached: set[str] = set()
        self._steps: dict[str, int] = {}
        self.wire_bytes = 0.0
        """Bytes over the line, those of frames of sockets included."""
        self.sockets = 0
        self._socket_step = 0
        for event, listener in {
            "requestWillBeSent": self._sent,
            "requestServedFromCache": lambda params: self._cached.add(params["requestId"]),
            "responseReceived": self._received,
            "loadingFinished": self._loaded,
            "webSocketCreated": self._dialled,
            "webSocketFrameSent": self._framed,
            "webSocketFrameReceived": self._framed,
        }.items():
            session.on(f"Network.{event}", listener)

    async def slow_down(self, line: NetworkProfile) -> None:
        """Make the browser's network behave like a line."""
        await self._session.send("Network.enable")
        conditions = {
            "offline": False,
            "latency": line.round_trip_ms,
            "downloadThroughput": line.down_kbit * 1000 / 8,
            "uploadThroughput": line.up_kbit * 1000 / 8,
        }
        await self._session.send("Network.emulateNetworkConditions", conditions)

    @property
    def requests(self) -> int:
        """Number of requests over the line, including handshakes of sockets."""
        return len([name for name in self._urls if name not in self._cached]) + self.sockets

    @property
    def in_a_row(self) -> int:
        """Return the round trips that waited for each other, up to the first socket's `ready`."""
        return self._socket_step + 1 + HELLO

    def _sent(self, params: dict[str, Any]) -> None:
        name, url = params["requestId"], params["request"]["url"]
        if url.startswith("http"):
            self._urls[name] = url
            self._steps[url] = self._step(params) + 1

    def _received(self, params: dict[str, Any]) -> None:
        if params["response"].get("fromDiskCache"):
            self._cached.add(params["requestId"])

    def _loaded(self, params: dict[str, Any]) -> None:
        name = params["requestId"]
        if name in self._urls and name not in self._cached:
            self.wire_bytes += params["encodedDataLength"]

    def _dialled(self, params: dict[str, Any]) -> None:
        self.sockets += 1
        if self.sockets == 1:
            self._socket_step = self._step(params)

    def _framed(self, params: dict[str, Any]) -> None:
        self.wire_bytes += len(params["response"]["payloadData"].encode())

    def _step(self, params: dict[str, Any]) -> int:
        """Return the number of round trips in a row up to a request; those served from the browser's cache cost none."""
        initiator = params.get("initiator", {})
        urls, stack = [initiator.get("url")], initiator.get("stack")
        while stack is not None:
            urls += [frame["url"] for frame in stack["callFrames"]]
            stack = stack.get("parent")
        cached = {self._urls[name] for name in self._cached if name in self._urls}
        return max((self._steps[url] - (url in cached) for url in urls if url in self._steps), default=0)
