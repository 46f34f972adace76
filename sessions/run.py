"""A turn under way: what it needs on its way, where it says that it stands, and how its deltas are timed."""

from __future__ import annotations

import msgspec

from engine.messages import Prefilling, Queued, Request, Retried
from sessions.conversation import Conversation
from sessions.events import Status, StatusState
from sessions.live_turn import LiveTurn
from sessions.observer import Observer
from sessions.turn_journal import TurnJournal

PROGRESS_DIGITS = 3


class Pace:
    """Times the deltas of one turn for the observer."""

    def __init__(self, observer: Observer, accepted_at: float) -> None:
        self._accepted_at = accepted_at
        self._last: float | None = None
        self._observer = observer

    def delta(self, now: float) -> None:
        """A delta was published."""
        if self._last is None:
            self._observer.first_token(now - self._accepted_at)
        else:
            self._observer.gap(now - self._last)
        self._last = now


class Run(msgspec.Struct, frozen=True):
    """A turn under way, with what it needs on its way."""

    conversation: Conversation
    live: LiveTurn
    request: Request
    journal: TurnJournal
    pace: Pace

    @property
    def turn_id(self) -> str:
        """The turn's id."""
        return self.live.turn.ids.turn_id

    def report(self, report: Queued | Retried | Prefilling) -> None:
        """Passes on what the engine says of the wait, unless the turn's end is decided."""
        if self.live.turn.is_over:
            return
        if isinstance(report, Queued):
            self.tell("queued", queue_position=report.position)
        elif isinstance(report, Retried):
            self.tell("fallback" if report.elsewhere else "retrying")
        else:
            self.tell("prefill", progress=round(report.progress, PROGRESS_DIGITS))

    def tell(
        self, state: StatusState, *, queue_position: int | None = None, progress: float | None = None
    ) -> None:
        """Tells attached connections where the turn stands."""
        status = Status(
            conversation_id=self.conversation.conversation_id,
            turn_id=self.turn_id,
            state=state,
            queue_position=queue_position,
            progress=progress,
        )
        self.conversation.publish_status(self.live, status)
