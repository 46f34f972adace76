"""A transport whose peer is the test."""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from connections.connection import Disconnected


class MemoryTransport:
    """Carries text both ways; it may stop being writable."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[str | bytes | None] = asyncio.Queue()
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.reads = asyncio.Event()
        self.reads.set()
        self.closed: tuple[int, str] | None = None
        self.charges = 0

    async def receive(self) -> str | bytes:
        if (message := await self.incoming.get()) is None:
            raise Disconnected
        return message

    def is_writable(self) -> bool:
        return self.reads.is_set()

    async def writable(self) -> None:
        await self.reads.wait()

    def write(self, text: bytes) -> None:
        assert self.is_writable()
        for line in text.splitlines():
            self.sent.put_nowait(json.loads(line))

    def charge(self) -> None:
        self.charges += 1

    def request(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)

    def client_sends(self, frame: dict[str, Any] | str | bytes) -> None:
        self.incoming.put_nowait(json.dumps(frame) if isinstance(frame, dict) else frame)

    def client_disconnects(self) -> None:
        self.incoming.put_nowait(None)

    def sent_events(self) -> list[dict[str, Any]]:
        """All that was written since it was asked last."""
        return [self.sent.get_nowait() for _ in range(self.sent.qsize())]

    async def next_event(self, *kinds: str) -> dict[str, Any]:
        """The next of these that is written; others that come before it are passed over."""
        while (event := await self.sent.get())["type"] not in kinds:
            pass
        return event
