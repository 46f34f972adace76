"""A running turn: journals what the engine makes, then publishes it to attached connections."""

from __future__ import annotations

import secrets
from time import monotonic

import msgspec

from engine.messages import Prefilling, Queued, Retried, Started, ToolCallOutput
from sessions.conversation.conversation import Conversation
from sessions.errors import StoreFault
from sessions.events import Status, StatusState, Text, ToolCall
from sessions.filters.chain import ReleasedText
from sessions.interpreting.interpretation import Interpretation
from sessions.records import CallRecord
from sessions.running.token_latency import TokenLatency
from sessions.store.history.codec import encode_turn, now_ms
from sessions.store.history.journal import TurnJournal
from sessions.turn.message_request import ProvidedReply
from sessions.turn.tool_calls import MAX_CALLS, is_object
from sessions.turn.turn import EngineWait, Turn
from sessions.turn.turn_state import TurnState

PROGRESS_DIGITS = 3


class Generation(msgspec.Struct, frozen=True):
    """A running turn, as the `Listener` of its reply.

    `call_timeout_s`: seconds that its calls wait for a client.
    """

    conversation: Conversation
    live: Turn
    journal: TurnJournal
    pace: TokenLatency
    call_timeout_s: float

    @property
    def turn_id(self) -> str:
        """The turn's id."""
        return self.live.turn.ids.turn_id

    @property
    def turn(self) -> TurnState:
        """The turn itself."""
        return self.live.turn

    @property
    def engine(self) -> EngineWait:
        """Its wait for the engine."""
        return self.live.engine

    @property
    def chars_per_s(self) -> float | None:
        """The pace of its text; None: the model's default. Speech has a pace of its own."""
        requested = self.live.tool_round.generation.chars_per_s
        return 0.0 if requested is None and self.live.delivery.playback is not None else requested

    @property
    def paces_thoughts(self) -> bool:
        """Whether its reasoning has that pace, too."""
        return self.live.tool_round.generation.paces_thoughts

    @property
    def interpretation(self) -> Interpretation:
        """What it translates, if it does."""
        if (interpretation := self.live.tool_round.interpretation) is None:
            raise RuntimeError("The turn translates nothing.")
        return interpretation

    def settle(self) -> None:
        """Note a translated segment of its source; the store gets it with the next text."""
        self.live.record = msgspec.structs.replace(self.live.record, interprets=self.interpretation.state())

    def _src_off(self) -> int | None:
        interpretation = self.live.tool_round.interpretation
        return None if interpretation is None else interpretation.translation.src_off

    def report(self, report: Queued | Retried | Prefilling | Started) -> None:
        """Publish the engine's progress, unless the turn's end is decided."""
        if isinstance(report, Started):
            self.live.delivery.status = None
        elif self.turn.is_over:
            return
        elif isinstance(report, Queued):
            self.publish("queued", queue_position=report.position)
        elif isinstance(report, Retried):
            self.publish("fallback" if report.elsewhere else "retrying")
        else:
            self.publish("prefill", progress=round(report.progress, PROGRESS_DIGITS))

    def retry(self) -> None:
        """Publish that the request is repeated."""
        self.publish("retrying")

    def fall_back(self, model: str) -> None:
        """Publish that another model answers; the store gets it with the next text."""
        self.live.choose(model)
        self.publish("fallback", model=model)

    async def take(self, given: ProvidedReply) -> None:
        """Journal a whole reply that the client brings, and publish it. Raises OwnershipLost, StoreFault."""
        if given.reasoning:
            await self.add_reasoning(ReleasedText(given.reasoning, 0))
        if given.content:
            await self.add_text(ReleasedText(given.content, 0))
        for call in given.calls:
            await self.call(ToolCallOutput(self.turn_id, call.name, call.arguments, 0, call.call_id))

    async def add_text(self, released: ReleasedText) -> None:
        """Journal text and publish it, unless the turn's end is decided meanwhile. Raises OwnershipLost."""
        async with self.conversation.locks.ordering:
            if not self.turn.is_over:
                seq, text, tokens = self.conversation.next_seq(), released.text, released.tokens
                src_off = self._src_off()
                await self._publish_piece(
                    self.turn.extend(text, tokens=tokens, seq=seq, now=monotonic(), src_off=src_off)
                )

    async def add_reasoning(self, released: ReleasedText) -> None:
        """Journal reasoning and publish it, as `add_text` does text."""
        async with self.conversation.locks.ordering:
            if not self.turn.is_over:
                seq = self.conversation.next_seq()
                text, tokens = released.text, released.tokens
                await self._publish_piece(
                    self.turn.add_reasoning(text, tokens=tokens, seq=seq, now=monotonic())
                )

    async def call(self, called: ToolCallOutput) -> None:
        """Journal a call and publish it, as `add_text` does text. Calls beyond the limit are left out."""
        async with self.conversation.locks.ordering:
            if self.turn.is_over or self.turn.calls >= MAX_CALLS:
                self.live.tool_round.has_more = True
                return
            call = self._call(called, self.conversation.next_seq())
            self.turn.called(tokens=called.tokens, seq=call.seq, now=monotonic())
            self.live.tool_round.calls.put(call)
            conversation_id = self.conversation.conversation_id
            await self._publish_piece(call.call_event(conversation_id=conversation_id, turn_id=self.turn_id))

    def _call(self, called: ToolCallOutput, seq: int) -> CallRecord:
        """Return a call as published. The server answers calls of unknown tools or without a JSON object, to tell the model."""
        generation = self.live.tool_round.generation
        offered = generation.offered(called.name)
        is_sound = offered is not None and is_object(called.arguments)
        where = offered.where if offered is not None and is_sound else "server"
        needs = offered.needs if offered is not None and is_sound else "none"
        waits_for_client = where == "client" or needs == "approval"
        return CallRecord(
            call_id=called.call_id if generation.given else f"call_{secrets.token_urlsafe(12)}",
            index=self.turn.calls,
            name=called.name,
            args=called.arguments,
            where=where,
            needs=needs,
            off=self.turn.off,
            tokens=called.tokens,
            seq=seq,
            expires_at=now_ms() + int(self.call_timeout_s * 1000) if waits_for_client else None,
        )

    async def _publish_piece(self, piece: Text | ToolCall) -> None:
        """Publish it once it is journalled. Raises OwnershipLost, StoreFault."""
        try:
            self._note(saved=await self.journal.write(piece, self._record_patch()))
        except StoreFault:
            self._publish(piece)  # it is stored with the turn's end
            raise
        self._publish(piece)

    def _record_patch(self) -> bytes:
        """Return what the store needs beside the text in case this replica dies: the model, and the matching source."""
        record, delivery = self.live.record, self.live.delivery
        settled = 0 if record.interprets is None else record.interprets.off
        if (record.fallback, settled) == (delivery.fallback, delivery.settled):
            return b""
        delivery.fallback, delivery.settled = record.fallback, settled
        return msgspec.json.encode({"set": [f"turn:{record.turn_id}", encode_turn(record).decode()]})

    def _publish(self, piece: Text | ToolCall) -> None:
        """Publish a piece, as far as a cancel during the store's write keeps it."""
        cut = self.turn.cut
        if isinstance(piece, ToolCall):
            if cut is None or cut.kept.of(piece) is not None:
                self.conversation.publish_control(piece)
        elif cut is None:
            self.conversation.publish_text(self.live, piece)
            self.pace.delta(monotonic())

    def _note(self, *, saved: bool) -> None:
        if not saved and not self.live.delivery.unsaved:
            self.publish("unsaved")
        self.live.delivery.unsaved = not saved
        others = self.conversation.others
        others.watched = others.watched or self.journal.watched

    def publish(
        self,
        state: StatusState,
        *,
        queue_position: int | None = None,
        progress: float | None = None,
        model: str | None = None,
    ) -> None:
        """Publish the turn's status."""
        status = Status(
            conversation_id=self.conversation.conversation_id,
            turn_id=self.turn_id,
            state=state,
            queue_position=queue_position,
            progress=progress,
            model=model,
        )
        self.conversation.publish_status(self.live, status)
