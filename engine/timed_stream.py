"""A stream that measures how long text lay between its arrival and its reader: what of an uneven pace is ours."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter

from engine.messages import Chunk, Output
from engine.stream import ReplyStream


class Deliveries:
    """How many pieces of text readers took, and how long those had lain here, together."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0

    def note(self, seconds: float) -> None:
        """Count one."""
        self.count += 1
        self.seconds += seconds


class TimedStream(ReplyStream):
    """Text that merges while its reader is late has waited since the first of it came.

    `deadline`: the loop's time by which its reply shall have ended, whichever engines try; None for any.
    """

    def __init__(
        self,
        request_id: str,
        on_cancel: Callable[[str], None],
        deliveries: Deliveries,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """Make a stream; `deliveries` takes what is measured."""
        super().__init__(request_id, on_cancel)
        self._deliveries = deliveries
        self._clock = clock
        self._arrivals: deque[float] = deque()
        self.deadline: float | None = None

    def handed_to(self, on_cancel: Callable[[str], None], deliveries: Deliveries) -> None:
        """Let another engine answer from now on."""
        self.redirect(on_cancel)
        self._deliveries = deliveries

    def put_nowait(self, output: Output) -> None:
        """Hand an output to the reader. What comes after the end is dropped."""
        if isinstance(output, Chunk) and not self.closed:
            self._arrivals.append(self._clock())
        super().put_nowait(output)

    def get_nowait(self) -> Output | None:
        """Take what is there, None where the reader has to wait. Raises as `ReplyStream` does."""
        output = super().get_nowait()
        if isinstance(output, Chunk):
            self._deliveries.note(self._clock() - self._arrivals[0])
            while len(self._arrivals) > self._collector.chunks:
                self._arrivals.popleft()
        return output
