"""Traffic of a page, as Chromium reports it (the Chrome DevTools Protocol, domain Network)."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from playwright.async_api import CDPSession

from tests.bench.page.records import NetworkProfile

SOCKET = "websocket"
LATER = "later"
HELLO = 1
"""The round trip of `hello` and `ready`, after a handshake."""


class Traffic:
    """Listens to one load of a page."""

    def __init__(self, session: CDPSession) -> None:
        self._session = session
        self._kinds: dict[str, str] = {}
        self._urls: dict[str, str] = {}
        self._cached: set[str] = set()
        self._steps: dict[str, int] = {}
        self._finished: list[tuple[str, float, float]] = []
        self._began: float | None = None
        self._socket_bytes = 0.0
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
        await self._session.send(
            "Network.emulateNetworkConditions",
            {
                "offline": False,
                "latency": line.round_trip_ms,
                "downloadThroughput": line.down_kbit * 1000 / 8,
                "uploadThroughput": line.up_kbit * 1000 / 8,
            },
        )

    @property
    def requests(self) -> int:
        """Number of requests over the line, including handshakes of sockets."""
        return len([name for name in self._urls if name not in self._cached]) + self.sockets

    @property
    def in_a_row(self) -> int:
        """Return the round trips that waited for each other, up to the first socket's `ready`."""
        return self._socket_step + 1 + HELLO

    def wire_bytes(self, usable_ms: float) -> dict[str, float]:
        """Return the bytes over the line by kind; those after the page was usable are `later`."""
        found: dict[str, float] = defaultdict(float)
        for name, at, size in self._finished:
            late = (at - (self._began or 0.0)) * 1000 > usable_ms
            found[LATER if late else self._kinds.get(name, "other")] += size
        found[SOCKET] = self._socket_bytes
        return dict(found)

    def _sent(self, params: dict[str, Any]) -> None:
        if not params["request"]["url"].startswith("http"):
            return
        self._began = self._began or params["timestamp"]
        self._urls[params["requestId"]] = params["request"]["url"]
        self._kinds[params["requestId"]] = params.get("type", "other").lower()
        self._steps[params["request"]["url"]] = self._step(params.get("initiator", {})) + 1

    def _received(self, params: dict[str, Any]) -> None:
        if params["response"].get("fromDiskCache"):
            self._cached.add(params["requestId"])

    def _loaded(self, params: dict[str, Any]) -> None:
        name = params["requestId"]
        if name in self._urls and name not in self._cached:
            self._finished.append((name, params["timestamp"], params["encodedDataLength"]))

    def _dialled(self, params: dict[str, Any]) -> None:
        self.sockets += 1
        if self.sockets == 1:
            self._socket_step = self._step(params.get("initiator", {}))

    def _framed(self, params: dict[str, Any]) -> None:
        self._socket_bytes += len(params["response"]["payloadData"].encode())

    def _step(self, initiator: dict[str, Any]) -> int:
        """Return the number of round trips in a row up to a request; those served from the browser's cache cost none."""
        urls = [initiator.get("url"), *_callers(initiator.get("stack"))]
        return max((self._cost(url) for url in urls if url in self._steps), default=0)

    def _cost(self, url: str) -> int:
        held = any(self._urls[name] == url for name in self._cached if name in self._urls)
        return self._steps[url] - 1 if held else self._steps[url]


def _callers(stack: dict[str, Any] | None) -> list[str]:
    found: list[str] = []
    while stack is not None:
        found += [frame["url"] for frame in stack["callFrames"]]
        stack = stack.get("parent")
    return found
