"""The reply of a turn without a conversation, between its task and its only reader. Pieces merge while the reader is late."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from time import monotonic

from engine.messages import Prefilling, Queued, Retried, Started, ToolCall, ToolCallOutput
from sessions.events import Cause, Done
from sessions.filters.chain import ReleasedText
from sessions.running.reply_buffer import Piece, ReplyBuffer
from sessions.turn.turn import EngineWait
from sessions.turn.turn_state import TokenLatency, TurnState

MAX_WAITING_BYTES = 1024 * 1024
"""The same bound as on a socket."""


class EphemeralReply:
    """Iterate it for its pieces; `done` is its end, set before the iteration ends. It is the turn's `Listener`.

    `requested`: the model that was asked for; `model`: the one that answers. `ignored`: fields of the request that this
    one can't follow and that the operator lets it pass over. `stop`: the stop string that ended it, where one did and the
    engine tells which; set with `done`.

    `streams`: its reader gets the text as it is written, and not at the end.

    `cut_off` is called if a late reader exceeds the bound: what waits is dropped, and the turn stopped. `news` is set when
    something waits: replies that are read together share one.
    """

    def __init__(
        self, turn: TurnState, pace: TokenLatency, news: asyncio.Event | None = None, *, streams: bool = False
    ) -> None:
        self.turn = turn
        self.engine = EngineWait()
        self.done: Done | None = None
        self.requested = ""
        self.model = ""
        self.ignored: tuple[str, ...] = ()
        self.stop: str | None = None
        self.cut_off: Callable[[], None] = _never_late
        self._pace = pace
        self._waiting = ReplyBuffer()
        self._news = news or asyncio.Event()
        self._seq = 0
        self._streams = streams

    @property
    def turn_id(self) -> str:
        """The turn's id."""
        return self.turn.ids.turn_id

    @property
    def chars_per_s(self) -> float | None:
        """The pace of its text: the model's default if somebody reads it as it is written."""
        return None if self._streams else 0.0

    @property
    def paces_thoughts(self) -> bool:
        """Whether its reasoning has that pace, too."""
        return True

    @property
    def ended(self) -> Done:
        """The end. Raises RuntimeError if there is none yet."""
        if self.done is None:
            raise RuntimeError("The reply goes on.")
        return self.done

    def cancel(self, cause: Cause = Cause.DISCONNECT) -> None:
        """Decide the end, unless it was decided, and ask the engine to stop. Synchronous."""
        cut = self.turn.cancel(cause, sent_off=self.turn.off, seen_off=None, now=monotonic())
        if cut is not None:
            self.engine.stop()

    def report(self, report: Queued | Retried | Prefilling | Started) -> None:
        """Ignored: its reader gets no progress."""

    def retry(self) -> None:
        """Ignored: its reader gets no retries."""

    def fall_back(self, model: str) -> None:
        """Note that another model answers: later pieces carry its name."""
        self.model = model

    @property
    def fallback(self) -> str:
        """The fallback that answers, or empty."""
        return "" if self.model == self.requested else self.model

    async def add_text(self, released: ReleasedText) -> None:
        """Hand text to the reader, unless the end is decided."""
        if await self._accepts_more():
            seq, now = self._next()
            self.turn.extend(released.text, tokens=released.tokens, seq=seq, now=now)
            self._waiting.add_text(released)

    async def add_reasoning(self, released: ReleasedText) -> None:
        """Hand on reasoning, as `add_text` does text."""
        if await self._accepts_more():
            seq, now = self._next()
            self.turn.add_reasoning(tokens=released.tokens, seq=seq, now=now)
            self._waiting.add_reasoning(released)

    async def call(self, called: ToolCallOutput) -> None:
        """Hand on a call, as `add_text` does text."""
        if await self._accepts_more():
            seq, now = self._next()
            self.turn.called(tokens=called.tokens, seq=seq, now=now)
            self._waiting.call(ToolCall(called.call_id or new_call_id(), called.name, called.arguments))

    def finish(self, done: Done, *, stop: str | None = None) -> None:
        """Set the end."""
        self.done, self.stop = done, stop
        self._news.set()

    def get_nowait(self) -> Piece | None:
        """Return the oldest waiting piece, or None. Raises StopAsyncIteration at the end."""
        if (taken := self._waiting.take()) is not None:
            return taken
        if self.done is not None:
            raise StopAsyncIteration
        return None

    async def _accepts_more(self) -> bool:
        """Return whether a piece may still be handed on: the end is not decided, and the reader is not too late."""
        if self._waiting.bytes > MAX_WAITING_BYTES and not self.turn.is_over:
            await asyncio.sleep(0)  # a reader that is on time takes it now
            if self._waiting.bytes > MAX_WAITING_BYTES:
                self._give_up()
        return not self.turn.is_over

    def _next(self) -> tuple[int, float]:
        """Return the number and the time of a piece that is handed on now."""
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
    """Return an id for a call without one."""
    return f"call_{secrets.token_hex(12)}"


def _never_late() -> None:
    """A reader that takes all at once is never late."""
