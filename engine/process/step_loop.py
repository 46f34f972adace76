"""The step loop of the engine's process: takes work, runs the core, sends one message a step. Runs on the main thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from engine.messages import EngineStatistics, Output, StepOutputs
from engine.process.dispatcher import Inbox, Work
from engine.prompts.jobs import ImageResult
from engine.text.prepared_request import DuplicateRequest, PreparedRequest

STATISTICS_EVERY_S = 1.0

log = logging.getLogger(__name__)


class StepCore(Protocol):
    """What the loop needs of a core: see `engine.scheduling.core.Core`."""

    @property
    def busy(self) -> bool:
        """Whether a step has something to do."""
        ...

    @property
    def made_at(self) -> float:
        """When the tokens of the last step's texts were fetched, by the monotonic clock."""
        ...

    def submit(self, request: PreparedRequest) -> None:
        """Queue a request. Raises DuplicateRequest."""
        ...

    def cancel(self, request_id: str) -> None:
        """End a request with the next step."""
        ...

    def put_image(self, image_result: ImageResult) -> None:
        """Take the pixels of an image, or why there are none."""
        ...

    def step(self) -> list[Output]:
        """Make one token for every running request."""
        ...

    @property
    def gives_back_in_s(self) -> float | None:
        """Seconds until memory may be given back; None: there is none to give back."""
        ...

    def give_back(self) -> None:
        """Give memory back that was not used for a while, if it is time."""
        ...

    def statistics(self) -> EngineStatistics:
        """Return the counters."""
        ...


class StepLoop:
    """Takes work, runs a step, sends its outputs, repeatedly."""

    def __init__(
        self,
        core: StepCore,
        inbox: Inbox,
        send: Callable[[StepOutputs | EngineStatistics], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[EngineStatistics], EngineStatistics] = lambda counted: counted,
    ) -> None:
        """Take the core, the source of its work and the receiver of its outputs. `clock` returns seconds.

        `used` adds the process's use of the machine to the counters.
        """
        self._core = core
        self._inbox = inbox
        self._send = send
        self._clock = clock
        self._used = used
        self._last_statistics = EngineStatistics()
        self._sent_at = clock()

    def run_once(self) -> None:
        """Wait for work if idle, run one step, send its outputs. Raises OSError once the gateway is gone."""
        work = self._inbox.take(0.0 if self._core.busy else self._wait_s())
        outputs: list[Output] = list(work.ends)
        self._hand_over(work)
        if self._core.busy:
            outputs += self._core.step()
        if outputs:
            self._send(StepOutputs(tuple(outputs), self._core.made_at))
        self._core.give_back()
        if self._idle_s() == 0.0 and self._core.gives_back_in_s != 0.0:
            self._send_statistics()

    def _hand_over(self, work: Work) -> None:
        for request in work.prepared:
            try:
                self._core.submit(request)
            except DuplicateRequest:
                log.warning("request %s is already being served; the second one is dropped", request.named)
        for request_id in work.cancels:
            self._core.cancel(request_id)
        for image_result in work.image_result:
            self._core.put_image(image_result)

    def _idle_s(self) -> float | None:
        """Return how long to wait before the counters are sent; None: until something changes."""
        if self._statistics() == self._last_statistics:
            return None
        return max(0.0, self._sent_at + STATISTICS_EVERY_S - self._clock())

    def _wait_s(self) -> float | None:
        """Return how long to wait for work; None: until some comes."""
        waits = [seconds for seconds in (self._idle_s(), self._core.gives_back_in_s) if seconds is not None]
        return min(waits, default=None)

    def _send_statistics(self) -> None:
        self._last_statistics = self._statistics()
        self._sent_at = self._clock()
        self._send(self._used(self._last_statistics))

    def _statistics(self) -> EngineStatistics:
        counted = self._core.statistics()
        return msgspec.structs.replace(
            counted,
            queued=counted.queued + self._inbox.arriving,
            cancels=counted.cancels + self._inbox.cancelled_early,
        )
