"""The reply of a turn without a conversation, between the task that runs it and its one reader. Text merges while the reader is late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from engine.messages import Called, ChosenToken, Prefilling, Queued, Retried, Started
from sessions.events import Cause, Done
from sessions.filters.filtered_reply import Released
from sessions.running.pace import Pace
from sessions.turn.engine_wait import EngineWait
from sessions.turn.turn import Turn
from sessions.turn.waiting_text import WaitingText

MAX_WAITING_BYTES = 1024 * 1024
"""As on a socket."""


class EphemeralReply:
    """Iterate it for the text; `done` is its end, set before the iteration ends. The `Listener` of what it hands on.

    `requested`: the model that was asked for; `model`: the one that answers.

    `logprobs`: what is told of tokens with the text that was taken last, where it was asked for. `cut_off` is called where
    the reader is so late that more waits than may: what waits is dropped, and the turn stopped.
    """

    def __init__(self, turn: Turn, pace: Pace) -> None:
        self.turn = turn
        self.engine = EngineWait()
        self.done: Done | None = None
        self.requested = ""
        self.model = ""
        self.logprobs: tuple[ChosenToken, ...] = ()
        self.cut_off: Callable[[], None] = _nobody
        self._pace = pace
        self._waiting = WaitingText()
        self._news = asyncio.Event()
        self._seq = 0

    @property
    def turn_id(self) -> str:
        """The turn's name."""
        return self.turn.ids.turn_id

    @property
    def ended(self) -> Done:
        """The end. Raises RuntimeError where there is none yet."""
        if self.done is None:
            raise RuntimeError("The reply goes on.")
        return self.done

    def cancel(self, cause: Cause = Cause.DISCONNECT) -> None:
        """Decides the end, unless it was decided, and asks the engine for it. Synchronous."""
        cut = self.turn.cancel(cause, handed=self.turn.off, seen_off=None, now=monotonic())
        if cut is not None:
            self.engine.stop()

    def report(self, report: Queued | Retried | Prefilling | Started) -> None:
        """Its reader is told nothing of the wait."""

    def retry(self) -> None:
        """Nor that the engine is asked once more."""

    def fall_back(self, model: str) -> None:
        """Another model answers: its name comes with what is told from now on."""
        self.model = model

    @property
    def fallback(self) -> str:
        """The model that stands in for the one that was asked for; empty: none does."""
        return "" if self.model == self.requested else self.model

    async def hear(self, released: Released) -> None:
        """Hands text to the reader, unless the end is decided."""
        if self.turn.is_over:
            return
        if self._waiting.bytes > MAX_WAITING_BYTES:
            await asyncio.sleep(0)  # one that is on time takes it now
            if self._waiting.bytes > MAX_WAITING_BYTES:
                self._give_up()
                return
        now = monotonic()
        self._seq += 1
        self.turn.extend(released.text, tokens=released.tokens, seq=self._seq, now=now)
        self._waiting.put(released)
        self._news.set()
        self._pace.delta(now)

    async def think(self, released: Released) -> None:
        """No door tells what a model thinks yet."""

    async def call(self, called: Called) -> None:
        """No door offers tools yet."""

    def finish(self, done: Done) -> None:
        """Tells the end."""
        self.done = done
        self._news.set()

    def get_nowait(self) -> str | None:
        """The text that waits, None where there is none. Raises StopAsyncIteration at the end."""
        if (taken := self._waiting.take()) is not None:
            text, self.logprobs = taken
            return text
        if self.done is not None:
            raise StopAsyncIteration
        return None

    def _give_up(self) -> None:
        self._waiting.clear()
        self.cancel()
        self.cut_off()

    def __aiter__(self) -> EphemeralReply:
        return self

    async def __anext__(self) -> str:
        while (text := self.get_nowait()) is None:
            self._news.clear()
            await self._news.wait()
        return text


def _nobody() -> None:
    """Whoever takes all at once is never late."""
