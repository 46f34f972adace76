"""The reply of a turn without a conversation, between the task that runs it and its one reader. Pieces merge while the reader is late."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from time import monotonic

from engine.messages import Called, Prefilling, Queued, Retried, Started, ToolCall
from sessions.events import Cause, Done
from sessions.filters.filtered_reply import Released
from sessions.running.pace import Pace
from sessions.running.waiting_pieces import Piece, WaitingPieces
from sessions.turn.engine_wait import EngineWait
from sessions.turn.turn import Turn

MAX_WAITING_BYTES = 1024 * 1024
"""As on a socket."""


class EphemeralReply:
    """Iterate it for its pieces; `done` is its end, set before the iteration ends. The `Listener` of what it hands on.

    `requested`: the model that was asked for; `model`: the one that answers. `ignored`: fields of the request that this
    one can't follow and that the operator lets it pass over. `stop`: the stop string that ended it, where one did and the
    engine tells which; set with `done`.

    `cut_off` is called where the reader is so late that more waits than may: what waits is dropped, and the turn stopped.
    `news` is set where something waits: replies that are read together share one.
    """

    def __init__(self, turn: Turn, pace: Pace, news: asyncio.Event | None = None) -> None:
        self.turn = turn
        self.engine = EngineWait()
        self.done: Done | None = None
        self.requested = ""
        self.model = ""
        self.ignored: tuple[str, ...] = ()
        self.stop: str | None = None
        self.cut_off: Callable[[], None] = _nobody
        self._pace = pace
        self._waiting = WaitingPieces()
        self._news = news or asyncio.Event()
        self._seq = 0

    @property
    def turn_id(self) -> str:
        """The turn's name."""
        return self.turn.ids.turn_id

    @property
    def chars_per_s(self) -> float | None:
        """Its text is let out as it is made."""
        return None

    @property
    def paces_thoughts(self) -> bool:
        """And its thoughts."""
        return False

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
        if await self._has_room():
            seq, now = self._next()
            self.turn.extend(released.text, tokens=released.tokens, seq=seq, now=now)
            self._waiting.hear(released)

    async def think(self, released: Released) -> None:
        """Hands on what the model thinks aloud, as `hear` does text."""
        if await self._has_room():
            seq, now = self._next()
            self.turn.think(tokens=released.tokens, seq=seq, now=now)
            self._waiting.think(released)

    async def call(self, called: Called) -> None:
        """Hands on a call, as `hear` does text."""
        if await self._has_room():
            seq, now = self._next()
            self.turn.called(tokens=called.tokens, seq=seq, now=now)
            self._waiting.call(ToolCall(called.call_id or new_call_id(), called.name, called.arguments))

    def finish(self, done: Done, *, stop: str | None = None) -> None:
        """Tells the end."""
        self.done, self.stop = done, stop
        self._news.set()

    def get_nowait(self) -> Piece | None:
        """The oldest piece that waits, None where there is none. Raises StopAsyncIteration at the end."""
        if (taken := self._waiting.take()) is not None:
            return taken
        if self.done is not None:
            raise StopAsyncIteration
        return None

    async def _has_room(self) -> bool:
        """Whether a piece may still be handed on: the end is not decided, and the reader is not too late."""
        if self._waiting.bytes > MAX_WAITING_BYTES and not self.turn.is_over:
            await asyncio.sleep(0)  # one that is on time takes it now
            if self._waiting.bytes > MAX_WAITING_BYTES:
                self._give_up()
        return not self.turn.is_over

    def _next(self) -> tuple[int, float]:
        """The number and the time of a piece that is handed on now."""
        now = monotonic()
        self._seq += 1
        self._news.set()
        self._pace.delta(now)
        return self._seq, now

    def _give_up(self) -> None:
        self._waiting.clear()
        self.cancel()
        self.cut_off()

    def __aiter__(self) -> EphemeralReply:
        return self

    async def __anext__(self) -> Piece:
        while (piece := self.get_nowait()) is None:
            self._news.clear()
            await self._news.wait()
        return piece


def new_call_id() -> str:
    """A name for a call whose engine gives it none."""
    return f"call_{secrets.token_hex(12)}"


def _nobody() -> None:
    """Whoever takes all at once is never late."""
