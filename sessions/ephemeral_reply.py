"""The reply of a turn without a conversation, between the task that runs it and its one reader. Text merges while the reader is late."""

from __future__ import annotations

import asyncio
from time import monotonic

from engine.door import Stream
from engine.messages import ChosenToken
from sessions.events import Cause, Done
from sessions.filtered_reply import Released
from sessions.turn import Turn

CONFIRM_S = 2.0
"""How long the engine has to confirm that it stopped."""


class EphemeralReply:
    """Iterate it for the text; `done` is its end, set before the iteration ends.

    `logprobs`: what is told of tokens with the text that was taken last, where it was asked for.
    """

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.done: Done | None = None
        self.logprobs: tuple[ChosenToken, ...] = ()
        self.stream: Stream | None = None
        self.limit: asyncio.Timeout | None = None
        """Of what is awaited from the engine; it ends once the engine had its time to confirm a stop."""
        self._waiting: list[str] = []
        self._tokens: list[ChosenToken] = []
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
        cut = self.turn.cancel(cause, handed=self.turn.off, seen_off=None, rollback=False, now=monotonic())
        if cut is not None:
            self.stop_engine()

    def stop_engine(self) -> None:
        """Asks the engine to stop, and gives it a moment to confirm that."""
        if self.stream is not None:
            self.stream.cancel()
        if self.limit is not None:
            self.limit.reschedule(asyncio.get_running_loop().time() + CONFIRM_S)

    def put(self, released: Released) -> bool:
        """Hands text to the reader; False where there is none, or the end is decided."""
        if not released.text or self.turn.is_over:
            return False
        self._seq += 1
        self.turn.extend(released.text, tokens=released.tokens, seq=self._seq, now=monotonic())
        self._waiting.append(released.text)
        self._tokens += released.logprobs
        self._news.set()
        return True

    def finish(self, done: Done) -> None:
        """Tells the end."""
        self.done = done
        self._news.set()

    def get_nowait(self) -> str | None:
        """The text that waits, None where there is none. Raises StopAsyncIteration at the end."""
        if self._waiting:
            text = "".join(self._waiting)
            self._waiting.clear()
            self.logprobs = tuple(self._tokens)
            self._tokens.clear()
            return text
        if self.done is not None:
            raise StopAsyncIteration
        return None

    def __aiter__(self) -> EphemeralReply:
        return self

    async def __anext__(self) -> str:
        while (text := self.get_nowait()) is None:
            self._news.clear()
            await self._news.wait()
        return text
