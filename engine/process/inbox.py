"""The lanes between the threads of the engine's process: requests being prepared, prepared ones, cancels.

Knows no tokenizer, no socket and no model. Safe for any thread.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from engine.messages import Finished, FinishReason, Request
from engine.text.prepared import PreparedRequest


class Work(NamedTuple):
    """What came in since the last step. Cancels apply after the requests were submitted."""

    prepared: list[PreparedRequest]
    cancels: list[str]
    ends: list[Finished]


class Progress(NamedTuple):
    """Whether the step loop does something else than to wait for work, and how often it took some."""

    busy: bool
    turns: int


class Lanes:
    """Hands work to the step loop. A cancel overtakes a request that is still being prepared."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._arriving: dict[str, Request] = {}
        self._work = Work([], [], [])
        self._cancelled_early = 0
        self._progress = Progress(True, 0)

    def arrive(self, request: Request) -> None:
        """Note a request that was read and is to be prepared."""
        with self._changed:
            self._arriving[request.request_id] = request

    def wants(self, request: Request) -> bool:
        """Whether a request that arrived was not cancelled since."""
        with self._changed:
            return self._arriving.get(request.request_id) is request

    def deliver(self, request: Request, outcome: PreparedRequest | Finished) -> None:
        """Pass on what became of an arrived request: it is prepared, or ended. Dropped where it was cancelled."""
        with self._changed:
            if self._arriving.get(request.request_id) is not request:
                return
            del self._arriving[request.request_id]
            if isinstance(outcome, Finished):
                self._work.ends.append(outcome)
            else:
                self._work.prepared.append(outcome)
            self._changed.notify()

    def cancel(self, request_id: str) -> None:
        """Pass on a cancel; a request that is still being prepared is ended here."""
        with self._changed:
            if self._arriving.pop(request_id, None) is None:
                self._work.cancels.append(request_id)
            else:
                self._cancelled_early += 1
                self._work.ends.append(_cancelled(request_id))
            self._changed.notify()

    def take(self, wait_s: float | None) -> Work:
        """Take all that came in. Waits for something at most `wait_s` seconds, without limit for None."""
        with self._changed:
            turns = self._progress.turns
            self._progress = Progress(False, turns)
            self._changed.wait_for(lambda: any(self._work), wait_s)
            self._progress = Progress(True, turns + 1)
            work, self._work = self._work, Work([], [], [])
            return work

    @property
    def progress(self) -> Progress:
        """Where whoever takes the work is: a step that never ends shows here."""
        return self._progress

    @property
    def arriving(self) -> int:
        """How many requests are being prepared."""
        return len(self._arriving)

    @property
    def cancelled_early(self) -> int:
        """How many requests were cancelled while they were being prepared, since the start."""
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
