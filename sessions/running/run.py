"""A turn under way, as its conversation has it: where it stands is told, and its text is journalled before it is told."""

from __future__ import annotations

from time import monotonic

import msgspec

from engine.messages import Prefilling, Queued, Retried, Started
from sessions.conversation.conversation import Conversation
from sessions.errors import StoreFault
from sessions.events import Delta, Status, StatusState
from sessions.filters.filtered_reply import Released
from sessions.turn.engine_wait import EngineWait
from sessions.turn.live_turn import LiveTurn
from sessions.turn.pace import Pace
from sessions.turn.turn import Turn
from sessions.turn.turn_journal import TurnJournal

PROGRESS_DIGITS = 3


class Run(msgspec.Struct, frozen=True):
    """A turn under way, with what it needs on its way; the `Listener` of its reply."""

    conversation: Conversation
    live: LiveTurn
    journal: TurnJournal
    pace: Pace

    @property
    def turn_id(self) -> str:
        """The turn's id."""
        return self.live.turn.ids.turn_id

    @property
    def turn(self) -> Turn:
        """The turn itself."""
        return self.live.turn

    @property
    def engine(self) -> EngineWait:
        """Its wait for the engine."""
        return self.live.engine

    def report(self, report: Queued | Retried | Prefilling | Started) -> None:
        """Passes on what the engine says of the wait, unless the turn's end is decided."""
        if isinstance(report, Started):
            self.live.status = None
        elif self.turn.is_over:
            return
        elif isinstance(report, Queued):
            self.tell("queued", queue_position=report.position)
        elif isinstance(report, Retried):
            self.tell("fallback" if report.elsewhere else "retrying")
        else:
            self.tell("prefill", progress=round(report.progress, PROGRESS_DIGITS))

    def retry(self) -> None:
        """Tells that the engine is asked once more."""
        self.tell("retrying")

    async def hear(self, released: Released) -> None:
        """Journals text and tells it, unless the turn's end is decided meanwhile. Raises OwnershipLost."""
        conversation, turn = self.conversation, self.live.turn
        async with conversation.ordering:
            if turn.is_over:
                return
            seq = conversation.next_seq()
            delta = turn.extend(released.text, tokens=released.tokens, seq=seq, now=monotonic())
            try:
                self._note(saved=await self.journal.write(delta))
            except StoreFault:
                self._publish(delta)  # it is kept with the turn's end
                raise
            self._publish(delta)

    def _publish(self, delta: Delta) -> None:
        if not self.turn.is_over:  # a cancel may have come while the store wrote
            self.conversation.publish_delta(self.live, delta)
            self.pace.delta(monotonic())

    def _note(self, *, saved: bool) -> None:
        if not saved and not self.live.unsaved:
            self.tell("unsaved")
        self.live.unsaved = not saved
        others = self.conversation.others
        others.watched = others.watched or self.journal.watched

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
