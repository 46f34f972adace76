"""A reply that is being written, and what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

from midstream.errors import ClientError

Frame = dict[str, Any]
Ask = Callable[[Frame], Awaitable[Frame]]


@dataclass(frozen=True, slots=True)
class Status:
    """Where a reply stands. `state`: `queued`, `prefill`, `retrying`, `fallback`, `unsaved`, or a word of a later server.

    `queue_position` (queued) counts from 1, the next to start; `progress` (prefill) is a share from 0 to 1.
    """

    state: str
    queue_position: int | None = None
    progress: float | None = None


class Reply:
    """A reply that is being written. Iterating gives its text; `text`, `status` and `done` hold what came so far.

    It outlives lost connections: what was missed comes when the client is back. One that goes on with a message that was
    cut has what comes behind the first `off` code points of that.
    """

    def __init__(self, ask: Ask, accepted: Frame, *, sent: Frame) -> None:
        self.accepted = accepted
        self.sent = sent
        self.turn_id: str = accepted["turn_id"]
        self.text = ""
        self.off = 0
        self.status: Status | None = None
        self.done: Frame | None = None
        self._ask = ask
        self._frames: asyncio.Queue[Frame | ClientError] = asyncio.Queue()

    async def cancel(self, *, rollback: bool = False) -> Frame:
        """Stops the reply; what this client received is what it has seen. Gives the `cancelled` frame."""
        mode = "rollback" if rollback else "keep"
        return await self._ask(
            {"type": "cancel", "turn_id": self.turn_id, "mode": mode, "seen_off": self.off + len(self.text)}
        )

    async def wait(self) -> Frame:
        """Reads to the end; gives `done`. Raises Disconnected, ClientError."""
        async for _ in self:
            pass
        return cast("Frame", self.done)

    def take(self, frame: Frame | ClientError) -> None:
        """Takes a frame of this turn, or what keeps it from being read further."""
        self._frames.put_nowait(frame)

    def __aiter__(self) -> AsyncIterator[str]:
        return self._texts()

    async def events(self) -> AsyncIterator[str | Status]:
        """Reads to the end: text as it comes, and every `Status` between. Raises Disconnected, ClientError."""
        while self.done is None:
            frame = await self._frames.get()
            if isinstance(frame, ClientError):
                raise frame
            match frame["type"]:
                case "done":
                    self.done = frame
                    self.text = self.text[: max(0, frame["chars"] - self.off)]
                case "status":
                    self.status = Status(frame["state"], frame.get("queue_position"), frame.get("progress"))
                    yield self.status
                case _:
                    if new := self._new(frame):
                        self.text += new
                        yield new

    async def _texts(self) -> AsyncIterator[str]:
        async for event in self.events():
            if isinstance(event, str):
                yield event

    def _new(self, delta: Frame) -> str:
        """The part of a delta that did not come before. Raises ClientError where a part between is missing."""
        if "continues" in self.accepted and not self.text:
            self.off = delta["off"]
        known = self.off + len(self.text)
        if delta["off"] > known:
            raise ClientError("a part of the reply is missing")
        return cast("str", delta["text"][known - delta["off"] :])
