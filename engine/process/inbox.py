"""The queue between the threads of the engine's process: requests in preparation, prepared ones, cancels.

Knows neither tokenizer, socket nor model. Thread-safe.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from engine.messages import Finished, FinishReason, Request
from engine.prompts.jobs import ImageResult
from engine.text.prepared_request import PreparedRequest


class Work(NamedTuple):
    """The work since the last step. Cancels apply after the requests were submitted."""

    prepared: list[PreparedRequest]
    cancels: list[str]
    ends: list[Finished]
    image_result: tuple[ImageResult, ...] = ()


class LoopProgress(NamedTuple):
    """Whether the step loop is working, and how often it has taken work."""

    busy: bool
    turns: int


class Inbox:
    """Hands work to the step loop. A cancel overtakes a request that is still being prepared."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._arriving: dict[str, Request] = {}
        self._work = Work([], [], [])
        self._cancelled_early = 0
        self._progress = LoopProgress(True, 0)

    def register(self, request: Request) -> None:
        """Note a request that will be prepared."""
        with self._changed:
            self._arriving[request.request_id] = request

    def is_wanted(self, request: Request) -> bool:
        """Return whether an arrived request is not cancelled."""
        with self._changed:
            return self._arriving.get(request.request_id) is request

    def deliver(self, request: Request, outcome: PreparedRequest | Finished) -> None:
        """Pass on a prepared or ended request; it is dropped if it was cancelled."""
        with self._changed:
            if self._arriving.get(request.request_id) is not request:
                return
            del self._arriving[request.request_id]
            if isinstance(outcome, Finished):
                self._work.ends.append(outcome)
            else:
                self._work.prepared.append(outcome)
            self._changed.notify()

    def put_image(self, image_result: ImageResult) -> None:
        """Pass on the pixels of an image, or why there are none."""
        with self._changed:
            self._work = self._work._replace(image_result=(*self._work.image_result, image_result))
            self._changed.notify()

    def cancel(self, request_id: str) -> None:
        """Pass on a cancel; a request in preparation is ended here."""
        with self._changed:
            if self._arriving.pop(request_id, None) is None:
                self._work.cancels.append(request_id)
            else:
                self._cancelled_early += 1
                self._work.ends.append(_cancelled(request_id))
            self._changed.notify()

    def take(self, wait_s: float | None) -> Work:
        """Take all new work. Waits for some for `wait_s` seconds at most; None: without limit."""
        with self._changed:
            turns = self._progress.turns
            self._progress = LoopProgress(False, turns)
            self._changed.wait_for(lambda: any(self._work), wait_s)
            self._progress = LoopProgress(True, turns + 1)
            work, self._work = self._work, Work([], [], [])
            return work

    @property
    def progress(self) -> LoopProgress:
        """The progress of the step loop: it shows a step that never ends."""
        return self._progress

    @property
    def arriving(self) -> int:
        """The number of requests in preparation."""
        return len(self._arriving)

    @property
    def cancelled_early(self) -> int:
        """The number of requests that were cancelled during preparation, since the start."""
        return self._cancelled_early


def _cancelled(request_id: str) -> Finished:
    return Finished(
        request_id,
        FinishReason.CANCELLED,
        prompt_tokens=0,
        cached_tokens=0,
        generated_tokens=0,
        steps_after=0,
    )
