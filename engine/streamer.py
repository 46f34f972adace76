"""The outputs of one request for one reader, merged while the reader is late. Knows neither processes nor sockets."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from time import monotonic, perf_counter
from typing import TypeVar, assert_never

from engine.errors import EngineError, EngineLost
from engine.messages import (
    Chunk,
    Finished,
    Output,
    Prefilling,
    Queued,
    Reasoning,
    Retried,
    Started,
    ToolCallOutput,
)

MERGED_CHARS = 16 * 1024
"""The most characters of merged chunks; in UTF-8 at most 64 KiB."""


Piece = Chunk | Reasoning | ToolCallOutput
"""The pieces of a reply."""

T = TypeVar("T", Chunk, Reasoning)


class OutputBuffer:
    """The outputs that wait for one reader: a retry, the start, the text in few pieces, the end or the last report.

    A report (`Queued`, `Prefilling`) is superseded by the next output. `made_at`: when the oldest part of the last taken
    piece was made.
    """

    __slots__ = ("_last", "_made", "_pieces", "_retried", "_started", "made_at")

    def __init__(self) -> None:
        self._retried: Retried | None = None
        self._started: Started | None = None
        self._pieces: deque[Piece] = deque()
        self._made: deque[float] = deque()
        self.made_at: float | None = None
        self._last: Queued | Prefilling | Finished | None = None

    @property
    def pieces(self) -> int:
        """The number of waiting pieces."""
        return len(self._pieces)

    def put_nowait(self, output: Output, made_at: float = 0.0) -> None:
        """Add an output. Nothing may come after `Finished`."""
        match output:
            case Chunk() | Reasoning() | ToolCallOutput():
                self._pieces.append(output)
                self._made.append(made_at)
                self._last = None
            case Started():
                # it may be repeated after a preemption: its facts may come before the waiting text
                self._started = output
                self._last = None
            case Retried():
                self._retried = output
                self._started = self._last = None
            case Queued() | Prefilling() | Finished():
                self._last = output
            case _:
                assert_never(output)

    def get_nowait(self) -> Output | None:
        """Take the oldest output, or None; neighbours of one kind are taken together."""
        if self._retried is not None:
            retried, self._retried = self._retried, None
            return retried
        if self._started is not None:
            started, self._started = self._started, None
            return started
        if self._pieces:
            self.made_at = self._made[0]
            piece = self._take_piece()
            while len(self._made) > len(self._pieces):
                self._made.popleft()
            return piece
        last, self._last = self._last, None
        return last

    def _take_piece(self) -> Piece:
        first = self._pieces.popleft()
        if not self._pieces:
            return first
        match first:
            case Chunk():
                chunks = self._neighbours(first)
                logprobs = tuple(chain.from_iterable(chunk.logprobs for chunk in chunks))
                return Chunk(first.request_id, *_joined(chunks), logprobs)
            case Reasoning():
                return Reasoning(first.request_id, *_joined(self._neighbours(first)))
            case ToolCallOutput():
                return first
            case _:
                assert_never(first)

    def _neighbours(self, first: T) -> list[T]:
        """Take the following pieces of the same kind, up to a total length."""
        merged, chars = [first], len(first.text)
        while self._pieces and isinstance(piece := self._pieces[0], type(first)):
            chars += len(piece.text)
            if chars > MERGED_CHARS:
                break
            self._pieces.popleft()
            merged.append(piece)
        return merged


def _joined(pieces: Sequence[Chunk | Reasoning]) -> tuple[str, int]:
    return "".join(piece.text for piece in pieces), sum(piece.tokens for piece in pieces)


class Streamer:
    """The `Stream` of our engines: a merging collector and the wait for it.

    The engine's side calls `put_nowait` and `lose`; one reader iterates.
    """

    def __init__(self, request_id: str, on_cancel: Callable[[str], None]) -> None:
        """Make a stream. `on_cancel` is called with the id at the first cancel of an open request."""
        self.request_id = request_id
        self._on_cancel = on_cancel
        self._collector = OutputBuffer()
        self._wakeup: asyncio.Future[None] | None = None  # the reader waits for it
        self._closed = False
        self._cancelled = False
        self._error: EngineError | None = None

    @property
    def closed(self) -> bool:
        """Whether the engine has ended this stream. Its last outputs may still wait for the reader."""
        return self._closed

    @property
    def made_at(self) -> float | None:
        """When the oldest token in the last taken piece was made, by `time.monotonic`."""
        return self._collector.made_at

    def redirect(self, on_cancel: Callable[[str], None]) -> None:
        """Redirect the cancel: another engine answers from now on."""
        self._on_cancel = on_cancel

    def put_nowait(self, output: Output, made_at: float | None = None) -> None:
        """Hand an output to the reader; after the end it is dropped. `made_at`: see `Stream`; None: now."""
        if self._closed:
            return
        self._closed = isinstance(output, Finished)
        self._collector.put_nowait(output, monotonic() if made_at is None else made_at)
        self._wake()

    def lose(self, why: str) -> None:
        """End the stream with EngineLost, which is raised after the outputs so far."""
        self.fail(EngineLost(why))

    def fail(self, error: EngineError) -> None:
        """End the stream with this error, which is raised after the outputs so far."""
        if not self._closed:
            self._closed = True
            self._error = error
            self._wake()

    def get_nowait(self) -> Output | None:
        """Take the next output; None if the reader has to wait.

        Raises StopAsyncIteration after the end, EngineLost (or the error given to `fail`) after a loss, at every call.
        """
        output = self._collector.get_nowait()
        if output is None and self._error is not None:
            raise self._error
        if output is None and self._closed:
            raise StopAsyncIteration
        return output

    def cancel(self) -> None:
        """Ask the engine for the end. Only the first call on an open stream does something."""
        if not self._closed and not self._cancelled:
            self._cancelled = True
            self._on_cancel(self.request_id)

    def __aiter__(self) -> Streamer:
        return self

    async def __anext__(self) -> Output:
        while (output := self.get_nowait()) is None:
            self._wakeup = asyncio.get_running_loop().create_future()
            await self._wakeup
        return output

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)


class DeliveryTimes:
    """The number of pieces that readers took, and their total waiting time."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0

    def note(self, seconds: float) -> None:
        """Count one."""
        self.count += 1
        self.seconds += seconds


class TimedStreamer(Streamer):
    """Measures deliveries. Merged text has waited since its first part.

    `deadline`: the loop's time by which the reply must have ended, over all engines that try; None: none.
    """

    def __init__(
        self,
        request_id: str,
        on_cancel: Callable[[str], None],
        deliveries: DeliveryTimes,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """Make a stream; `deliveries` takes what is measured."""
        super().__init__(request_id, on_cancel)
        self._deliveries = deliveries
        self._clock = clock
        self._arrivals: deque[float] = deque()
        self.deadline: float | None = None

    def move_to(self, on_cancel: Callable[[str], None], deliveries: DeliveryTimes) -> None:
        """Let another engine answer from now on."""
        self.redirect(on_cancel)
        self._deliveries = deliveries

    def put_nowait(self, output: Output, made_at: float | None = None) -> None:
        """Hand an output to the reader; after the end it is dropped."""
        if isinstance(output, Piece) and not self.closed:
            self._arrivals.append(self._clock())
        super().put_nowait(output, made_at)

    def get_nowait(self) -> Output | None:
        """Take the next output; None if the reader has to wait. Raises as `Streamer` does."""
        output = super().get_nowait()
        if isinstance(output, Piece):
            self._deliveries.note(self._clock() - self._arrivals[0])
            while len(self._arrivals) > self._collector.pieces:
                self._arrivals.popleft()
        return output
