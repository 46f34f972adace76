"""A turn under way: what the engine says of it is journalled, then told to all who are attached."""

from __future__ import annotations

import secrets
from time import monotonic

import msgspec

from engine.messages import Called, Prefilling, Queued, Retried, Started
from sessions.conversation.conversation import Conversation
from sessions.errors import StoreFault
from sessions.events import Status, StatusState, Text, ToolCall
from sessions.filters.filtered_reply import Released
from sessions.interpreting.interpretation import Interpretation
from sessions.records import CallRecord
from sessions.running.pace import Pace
from sessions.store.history.coding import encode_turn
from sessions.store.history.keys import now_ms
from sessions.turn.calls import MAX_CALLS, is_object
from sessions.turn.engine_wait import EngineWait
from sessions.turn.live_turn import LiveTurn
from sessions.turn.turn import Turn
from sessions.turn.turn_journal import TurnJournal

PROGRESS_DIGITS = 3


class Run(msgspec.Struct, frozen=True):
    """A turn under way, with what it needs on its way; the `Listener` of its reply.

    `call_s`: how long its calls wait for a client.
    """

    conversation: Conversation
    live: LiveTurn
    journal: TurnJournal
    pace: Pace
    call_s: float

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

    @property
    def chars_per_s(self) -> float | None:
        """How fast its text is to be let out."""
        return self.live.exchange.generation.chars_per_s

    @property
    def paces_thoughts(self) -> bool:
        """Whether its thoughts are let out so, too."""
        return self.live.exchange.generation.paces_thoughts

    @property
    def interpretation(self) -> Interpretation:
        """What it translates, where it does."""
        if (interpretation := self.live.exchange.interpretation) is None:
            raise RuntimeError("The turn translates nothing.")
        return interpretation

    def settle(self) -> None:
        """A segment of its source is translated; the store learns it with the next text."""
        self.live.record = msgspec.structs.replace(self.live.record, interprets=self.interpretation.state())

    def _src_off(self) -> int | None:
        interpretation = self.live.exchange.interpretation
        return None if interpretation is None else interpretation.translation.src_off

    def report(self, report: Queued | Retried | Prefilling | Started) -> None:
        """Passes on what the engine says of the wait, unless the turn's end is decided."""
        if isinstance(report, Started):
            self.live.delivery.status = None
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

    def fall_back(self, model: str) -> None:
        """Tells that another model answers than the one that was asked for; the store learns it with the next text."""
        self.live.choose(model)
        self.tell("fallback", model=model)

    async def hear(self, released: Released) -> None:
        """Journals text and tells it, unless the turn's end is decided meanwhile. Raises OwnershipLost."""
        async with self.conversation.locks.ordering:
            if not self.turn.is_over:
                seq, text, tokens = self.conversation.next_seq(), released.text, released.tokens
                src_off = self._src_off()
                await self._tell_piece(
                    self.turn.extend(text, tokens=tokens, seq=seq, now=monotonic(), src_off=src_off)
                )

    async def think(self, released: Released) -> None:
        """Journals what the model thinks, and tells it, as `hear` does text."""
        async with self.conversation.locks.ordering:
            if not self.turn.is_over:
                seq = self.conversation.next_seq()
                text, tokens = released.text, released.tokens
                await self._tell_piece(self.turn.think(text, tokens=tokens, seq=seq, now=monotonic()))

    async def call(self, called: Called) -> None:
        """Journals a call and tells it, as `hear` does text. Of a reply that calls without end, the rest is left out."""
        async with self.conversation.locks.ordering:
            if self.turn.is_over or self.turn.calls >= MAX_CALLS:
                self.live.exchange.has_more = True
                return
            call = self._call(called, self.conversation.next_seq())
            self.turn.called(tokens=called.tokens, seq=call.seq, now=monotonic())
            self.live.exchange.calls.put(call)
            place = self.conversation.conversation_id
            await self._tell_piece(call.told(conversation_id=place, turn_id=self.turn_id))

    def _call(self, called: Called, seq: int) -> CallRecord:
        """A call as it is told. The server takes what nobody offered, and what is no JSON object: it says so to the model."""
        offered = self.live.exchange.generation.offered(called.name)
        is_sound = offered is not None and is_object(called.arguments)
        where = offered.where if offered is not None and is_sound else "server"
        needs = offered.needs if offered is not None and is_sound else "none"
        waits_for_client = where == "client" or needs == "approval"
        return CallRecord(
            call_id=f"call_{secrets.token_urlsafe(12)}",
            index=self.turn.calls,
            name=called.name,
            args=called.arguments,
            where=where,
            needs=needs,
            off=self.turn.off,
            tokens=called.tokens,
            seq=seq,
            expires_at=now_ms() + int(self.call_s * 1000) if waits_for_client else None,
        )

    async def _tell_piece(self, piece: Text | ToolCall) -> None:
        """Tells it once it is journalled. Raises OwnershipLost, StoreFault."""
        try:
            self._note(saved=await self.journal.write(piece, self._news_of_record()))
        except StoreFault:
            self._publish(piece)  # it is kept with the turn's end
            raise
        self._publish(piece)

    def _news_of_record(self) -> bytes:
        """What the store is to know beside the text, should this replica die: who wrote it, and to which source it fits."""
        record, delivery = self.live.record, self.live.delivery
        settled = 0 if record.interprets is None else record.interprets.off
        if (record.fallback, settled) == (delivery.fallback, delivery.settled):
            return b""
        delivery.fallback, delivery.settled = record.fallback, settled
        return msgspec.json.encode({"set": [f"turn:{record.turn_id}", encode_turn(record).decode()]})

    def _publish(self, piece: Text | ToolCall) -> None:
        """Tells a piece, as far as a cancel that came while the store wrote leaves it."""
        cut = self.turn.cut
        if isinstance(piece, ToolCall):
            if cut is None or cut.kept.of(piece) is not None:
                self.conversation.publish_bare(piece)
        elif cut is None:
            self.conversation.publish_text(self.live, piece)
            self.pace.delta(monotonic())

    def _note(self, *, saved: bool) -> None:
        if not saved and not self.live.delivery.unsaved:
            self.tell("unsaved")
        self.live.delivery.unsaved = not saved
        others = self.conversation.others
        others.watched = others.watched or self.journal.watched

    def tell(
        self,
        state: StatusState,
        *,
        queue_position: int | None = None,
        progress: float | None = None,
        model: str | None = None,
    ) -> None:
        """Tells attached connections where the turn stands."""
        status = Status(
            conversation_id=self.conversation.conversation_id,
            turn_id=self.turn_id,
            state=state,
            queue_position=queue_position,
            progress=progress,
            model=model,
        )
        self.conversation.publish_status(self.live, status)
