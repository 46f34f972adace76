"""Generates a reply with the engine, and passes it through the filters to a listener, at the reader's pace.

Knows neither conversations nor the store: the listener handles the text.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from time import monotonic
from typing import Protocol, assert_never

import msgspec
import structlog

from engine.api import Engine, Streamer
from engine.errors import EngineBusy, EngineLost, EngineUnavailable
from engine.messages import (
    Chunk,
    Finished,
    FinishReason,
    ModelFacts,
    Prefilling,
    Queued,
    Reasoning,
    Request,
    Retried,
    Started,
    ToolCallOutput,
)
from engine.served_models import served_models
from engine.text.detokenizer import ceil_boundary
from sessions.conversation.conversation import Conversation
from sessions.errors import Overloaded, OwnershipLost, StoreFault
from sessions.events import Failure, Reason, Status, StatusState, Text, ToolCall
from sessions.filters.chain import NO_FILTERS, Filters, ReleasedText
from sessions.observer import Observer
from sessions.records import CallRecord, MessageRecord, SourceState
from sessions.store.codec import encode_turn, now_ms
from sessions.store.journal import TurnJournal
from sessions.turn.interfaces import Source
from sessions.turn.message_request import GenerationConfig, ProvidedReply
from sessions.turn.prompt import ModelChoice, fallback_request, retry_after_ms
from sessions.turn.tool_calls import MAX_CALLS, is_object
from sessions.turn.turn import EngineWait, Turn
from sessions.turn.turn_state import EngineCount, TurnState

SLICE_S = 0.1
"""A slice takes about this long to read."""


class OutputThrottle:
    """Releases a reply in slices, each when it is due. `stopping`: ends all waits once it is set.

    The engine is not slowed down: its output waits here, and a cancel drops it.
    """

    def __init__(
        self,
        *,
        chars_per_s: float,
        stopping: asyncio.Event,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`clock`: in seconds."""
        self._chars_per_s = chars_per_s
        self._stopping = stopping
        self._clock = clock
        self._due = clock()

    async def release(
        self, add_text: Callable[[ReleasedText], Awaitable[None]], released: ReleasedText
    ) -> None:
        """Return once `add_text` got all of `released`, or the reply has to stop."""
        for part in parts_of(released, max(1, round(self._chars_per_s * SLICE_S))):
            await self._wait()
            if self._stopping.is_set():
                return  # the rest, which may be long, is not released
            self._due = max(self._due, self._clock()) + len(part.text) / self._chars_per_s
            await add_text(part)

    async def _wait(self) -> None:
        if (delay := self._due - self._clock()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stopping.wait()


def parts_of(released: ReleasedText, chars: int) -> Iterator[ReleasedText]:
    """Yield text in parts of about `chars` code points, without splitting a character. Tokens are spread over the parts."""
    text, start, sent_tokens = released.text, 0, 0
    while start < len(text):
        end = ceil_boundary(text, start + chars)
        tokens = released.tokens * end // len(text)
        logprobs = released.logprobs if start == 0 else ()
        yield msgspec.structs.replace(
            released, text=text[start:end], tokens=tokens - sent_tokens, logprobs=logprobs
        )
        start, sent_tokens = end, tokens


class TokenLatency:
    """Reports the times of one turn's deltas to the observer."""

    def __init__(self, observer: Observer, turn: TurnState) -> None:
        self._observer = observer
        self._turn = turn
        self._last: float | None = None

    def delta(self, now: float) -> None:
        """Note a published delta."""
        if self._last is None:
            self._observer.first_token(now - (self._turn.accepted_at or now))
        else:
            self._observer.gap(now - self._last)
        self._last = now


OVERLOAD_RETRY_MS = 1000
"""Milliseconds after which to retry an overloaded upstream that does not say when."""

_REASONS = {
    FinishReason.STOP: Reason.STOP,
    FinishReason.LENGTH: Reason.LENGTH,
    FinishReason.CANCELLED: Reason.CANCELLED,
    FinishReason.TIMEOUT: Reason.TIMEOUT,
    FinishReason.ERROR: Reason.ERROR,
}

_log = structlog.get_logger("midstream.turn")


class Outcome(msgspec.Struct, frozen=True):
    """How the engine's part of a turn ended. `stop`: the stop string that ended it, if the engine says which."""

    reason: Reason
    error: Failure | None = None
    stop: str | None = None


class ReplyListener(Protocol):
    """The receiver of a reply."""

    @property
    def turn(self) -> TurnState:
        """The turn whose reply it is."""
        ...

    @property
    def engine(self) -> EngineWait:
        """The turn's wait for the engine."""
        ...

    @property
    def chars_per_s(self) -> float | None:
        """The reply's characters a second; 0: as generated; None: the default of the model that answers."""
        ...

    @property
    def paces_thoughts(self) -> bool:
        """Whether reasoning is paced, too: the text then waits for it."""
        ...

    def report(self, report: Queued | Retried | Prefilling | Started) -> None:
        """Take the engine's progress before the first text."""
        ...

    def retry(self) -> None:
        """Note that the engine was lost before any text, and the request is repeated."""
        ...

    def fall_back(self, model: str) -> None:
        """Note that this model answers instead: the requested one failed before any text, or is not available."""
        ...

    async def add_text(self, released: ReleasedText) -> None:
        """Take text, never empty; the engine is not read meanwhile. May raise OwnershipLost."""
        ...

    async def add_reasoning(self, released: ReleasedText) -> None:
        """Take reasoning, as `add_text` takes text."""
        ...

    async def call(self, called: ToolCallOutput) -> None:
        """Take a call, as `add_text` takes text. All reasoning before it was passed on."""
        ...


class SourceReplies(Protocol):
    """Answers turns whose source grows. `replica.py` passes the implementation."""

    def refuse_unable(self, facts: ModelFacts, source: SourceState) -> None:
        """Raise BadParams if a model can't answer such a source."""
        ...

    def trial_request(
        self,
        message: MessageRecord,
        generation: GenerationConfig,
        source: SourceState,
        facts: ModelFacts | None,
    ) -> tuple[MessageRecord, GenerationConfig]:
        """Return a trial message and options, to check the model while the source is empty. `facts`: the model's."""
        ...

    def open(self, source: SourceState, message: MessageRecord, text: str) -> Source:
        """Return the source of a turn. `text`: the reply so far, if one is continued."""
        ...

    async def outcome(self, run: Generation, request: Request) -> Outcome:
        """Answer a run's source until the source is complete; return how the reply ended. Raises OwnershipLost if `run` does."""
        ...


class FilteredReplyStream:
    """A reply on its way to its listener: reasoning, text and each call's arguments pass all filters separately.

    `filtered`: a filter ended the reply; everything after it is dropped. `chars_per_s`: the pace unless the listener names one.
    """

    def __init__(self, listener: ReplyListener, filters: Filters, *, chars_per_s: float = 0.0) -> None:
        self._listener = listener
        self._filters = filters
        self._thoughts = filters.reply()
        self._text = filters.reply()
        self._pacer = _pacer(listener, chars_per_s)
        self.filtered = False

    async def begin(self) -> None:
        """Begin after the text of a reply that is continued. Raises FilterContractError."""
        if self._text is not None and self._thoughts is not None:
            await self._text.begin(self._listener.turn.text)
            await self._thoughts.begin(self._listener.turn.reasoning)

    async def take(self, piece: Chunk | Reasoning | ToolCallOutput) -> None:
        """Pass on what the filters let through. Raises FilterContractError."""
        if self.filtered:
            return
        match piece:
            case Chunk(_, text, tokens):
                released = (
                    ReleasedText(text, tokens, logprobs=piece.logprobs)
                    if self._text is None
                    else self._text.feed(text, tokens, piece.logprobs)
                )
                await self._release(self._add_text, released)
            case Reasoning(_, text, tokens):
                released = (
                    ReleasedText(text, tokens)
                    if self._thoughts is None
                    else self._thoughts.feed(text, tokens)
                )
                await self._release(self._add_reasoning, released)
            case ToolCallOutput():
                await self._call(piece)
            case _:
                assert_never(piece)

    async def finish(self) -> None:
        """Pass on what the filters held, at the reply's end. Raises FilterContractError."""
        await self._finish_thoughts()
        if self._text is not None and not self.filtered:
            await self._release(self._add_text, self._text.finish())

    async def _finish_thoughts(self) -> None:
        if self._thoughts is not None and not self.filtered:
            await self._release(self._add_reasoning, self._thoughts.finish())

    async def _call(self, called: ToolCallOutput) -> None:
        await self._finish_thoughts()
        if self.filtered:
            return
        arguments = self._filters.reply()
        if arguments is not None and await arguments.forbids(called.arguments):
            self._end()
        else:
            await self._listener.call(called)

    async def _release(
        self, release: Callable[[ReleasedText], Awaitable[None]], released: ReleasedText
    ) -> None:
        if released.text:
            await release(released)
        if released.filtered:
            self._end()

    async def _add_text(self, released: ReleasedText) -> None:
        add_text = self._listener.add_text
        await (add_text(released) if self._pacer is None else self._pacer.release(add_text, released))

    async def _add_reasoning(self, released: ReleasedText) -> None:
        add_reasoning, paces = self._listener.add_reasoning, self._listener.paces_thoughts
        await (
            self._pacer.release(add_reasoning, released) if self._pacer and paces else add_reasoning(released)
        )

    def _end(self) -> None:
        self.filtered = True
        self._listener.engine.stop()


def _pacer(listener: ReplyListener, default: float) -> OutputThrottle | None:
    chars_per_s = default if listener.chars_per_s is None else listener.chars_per_s
    listener.engine.paced = chars_per_s > 0
    return OutputThrottle(chars_per_s=chars_per_s, stopping=listener.engine.stopping) if chars_per_s else None


class Generator:
    """Generates replies. `shortens`: drops older exchanges of a prompt for a model with a smaller window."""

    def __init__(self, engine: Engine, filters: Filters = NO_FILTERS, *, shortens: bool = True) -> None:
        self._engine = served_models(engine)
        self._choice = ModelChoice(self._engine)
        self._filters = filters
        self._shortens = shortens

    async def outcome(self, listener: ReplyListener, request: Request) -> Outcome:
        """Generate a whole reply for a listener; return how it ended. Raises OwnershipLost if the listener does."""
        return await guarded_outcome(listener, self._generate(listener, request))

    async def _generate(self, listener: ReplyListener, request: Request) -> Outcome:
        at_once = self._choice.at_once(request)
        try:
            return await self._attempt(listener, at_once)
        except (EngineLost, EngineUnavailable) as trouble:
            if listener.turn.has_begun or listener.turn.is_over:
                raise
            if (other := await self._stand_in(listener, request)) is not None:
                listener.fall_back(other.model)
                return await self._generate(listener, other)
            if not (isinstance(trouble, EngineLost) or at_once.fallbacks):
                raise
        listener.retry()
        again = f"{request.request_id}.1"
        return await self._attempt(listener, msgspec.structs.replace(request, request_id=again, fallbacks=()))

    async def _stand_in(self, listener: ReplyListener, request: Request) -> Request | None:
        if not request.fallbacks:
            return None
        return await listener.engine.in_time(fallback_request(self._choice, request, shortens=self._shortens))

    async def _attempt(self, listener: ReplyListener, request: Request) -> Outcome:
        turn = listener.turn
        if turn.is_over:
            turn.count = EngineCount(generated_tokens=0, steps_after=0)
            return Outcome(Reason.CANCELLED)
        stream = listener.engine.stream = self._engine.generate(request)
        try:
            outcome = await listener.engine.in_time(self._follow(listener, stream, request.model))
        except EngineLost:
            if not listener.engine.stopping.is_set():
                raise
            outcome = None
        if outcome is None:  # the engine does not confirm the stop in time
            return Outcome(Reason.CANCELLED if turn.is_over else Reason.FILTERED)
        return outcome

    async def _follow(self, listener: ReplyListener, stream: Streamer, model: str) -> Outcome:
        """Take all outputs of the engine. `model`: the one that answers."""
        turn, pace = listener.turn, self._engine.named(model).chars_per_s
        reply = FilteredReplyStream(listener, self._filters, chars_per_s=pace)
        await reply.begin()
        async for output in stream:
            match output:
                case Chunk() | Reasoning() | ToolCallOutput():
                    await reply.take(output)
                case Queued() | Retried() | Prefilling():
                    listener.report(output)
                case Started():
                    listener.report(output)
                    turn.start(
                        prompt_tokens=output.prompt_tokens,
                        cached_tokens=output.cached_tokens,
                        now=monotonic(),
                    )
                case Finished():
                    outcome = outcome_of(turn, output)
                    await reply.finish()
                    return Outcome(Reason.FILTERED) if reply.filtered else outcome
                case _:
                    assert_never(output)
        raise EngineLost("The engine's stream has no end.")


async def guarded_outcome(listener: ReplyListener, outcome: Awaitable[Outcome]) -> Outcome:
    """Return how the engine's part of a turn ends, whatever fails in it. Raises OwnershipLost if the listener does."""
    try:
        return await outcome
    except (EngineLost, EngineUnavailable) as loss:
        return Outcome(Reason.INTERRUPTED, _failure(loss))
    except OwnershipLost:
        raise
    except Exception:  # noqa: BLE001 - a task's boundary: it ends this turn alone
        return _incident(listener)


def outcome_of(turn: TurnState, finished: Finished) -> Outcome:
    """Record the engine's counts in the turn; return how it ended."""
    turn.count = EngineCount(
        prompt_tokens=finished.prompt_tokens,
        cached_tokens=finished.cached_tokens,
        generated_tokens=finished.generated_tokens,
        steps_after=finished.steps_after,
    )
    error = None
    if finished.error is not None:
        error = Failure(code=finished.error_code.value, message=finished.error)
    return Outcome(_REASONS[finished.reason], error, finished.stop)


def _failure(loss: EngineLost | EngineUnavailable) -> Failure:
    """Return the failure of a lost engine. An upstream that sheds load is overloaded: the client may retry."""
    if not isinstance(loss, EngineBusy):
        return Failure(code="engine_unavailable", message=str(loss), retry_after_ms=retry_after_ms(loss))
    after_ms = retry_after_ms(loss) or OVERLOAD_RETRY_MS
    return Failure(code=Overloaded.code, message=str(loss), retry_after_ms=after_ms)


def _incident(listener: ReplyListener) -> Outcome:
    """Log the exception being handled; the client gets only its number."""
    if listener.engine.stream is not None:
        listener.engine.stream.cancel()
    incident = secrets.token_hex(4)
    _log.exception("turn failed", turn_id=listener.turn.ids.turn_id, incident=incident)
    failure = Failure(code="internal", message=f"An internal error, number {incident}.")
    return Outcome(Reason.ERROR, failure)


PROGRESS_DIGITS = 3


class Generation(msgspec.Struct, frozen=True):
    """A running turn, as the `ReplyListener` of its reply.

    `call_timeout_s`: seconds that its calls wait for a client.
    """

    conversation: Conversation
    live: Turn
    journal: TurnJournal
    latency: TokenLatency
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
        """The turn's wait for the engine."""
        return self.live.engine

    @property
    def chars_per_s(self) -> float | None:
        """The pace of its text; None: the model's default. A played reply is unpaced by default."""
        requested = self.live.tool_round.generation.chars_per_s
        return 0.0 if requested is None and self.live.player is not None else requested

    @property
    def paces_thoughts(self) -> bool:
        """Whether its reasoning has that pace, too."""
        return self.live.tool_round.generation.paces_thoughts

    def report(self, report: Queued | Retried | Prefilling | Started) -> None:
        """Publish the engine's progress, unless the turn's end is decided."""
        if isinstance(report, Started):
            self.live.status = None
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
        """Publish that another model answers; the store gets its name with the next text."""
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
        async with self.conversation.order_lock:
            if not self.turn.is_over:
                seq, text, tokens = self.conversation.next_seq(), released.text, released.tokens
                read_off = None if self.live.source is None else self.live.source.read_off
                await self._publish_piece(
                    self.turn.extend(text, tokens=tokens, seq=seq, now=monotonic(), read_off=read_off)
                )

    async def add_reasoning(self, released: ReleasedText) -> None:
        """Journal reasoning and publish it, as `add_text` does text."""
        async with self.conversation.order_lock:
            if not self.turn.is_over:
                seq = self.conversation.next_seq()
                text, tokens = released.text, released.tokens
                await self._publish_piece(
                    self.turn.add_reasoning(text, tokens=tokens, seq=seq, now=monotonic())
                )

    async def call(self, called: ToolCallOutput) -> None:
        """Journal a call and publish it, as `add_text` does text. Calls beyond the limit are left out."""
        async with self.conversation.order_lock:
            if self.turn.is_over or self.turn.calls >= MAX_CALLS:
                return
            call = self._call(called, self.conversation.next_seq())
            self.turn.called(tokens=called.tokens, seq=call.seq, now=monotonic())
            self.live.tool_round.calls.put(call)
            conversation_id = self.conversation.conversation_id
            await self._publish_piece(call.call_event(conversation_id=conversation_id, turn_id=self.turn_id))

    def _call(self, called: ToolCallOutput, seq: int) -> CallRecord:
        """Return a call as published. The server answers malformed calls and those of unknown tools, for the model to see."""
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
        """Publish a piece once it is journalled. Raises OwnershipLost, StoreFault."""
        try:
            self._note(saved=await self.journal.write(piece, self._record_patch()))
        except StoreFault:
            self._publish(piece)  # it is stored with the turn's end
            raise
        self._publish(piece)

    def _record_patch(self) -> bytes:
        """Return what the store needs besides the text in case this replica dies: the model, and the progress in a source."""
        live = self.live
        if live.source is not None:
            live.record = msgspec.structs.replace(live.record, source=live.source.state())
        record = live.record
        settled = 0 if record.source is None else record.source.off
        if (record.fallback, settled) == (live.fallback, live.settled):
            return b""
        live.fallback, live.settled = record.fallback, settled
        return msgspec.json.encode({"set": [f"turn:{record.turn_id}", encode_turn(record).decode()]})

    def _publish(self, piece: Text | ToolCall) -> None:
        """Publish a piece, as far as a cancel during the store's write keeps it."""
        cut = self.turn.cut
        if isinstance(piece, ToolCall):
            if cut is None or cut.kept.of(piece) is not None:
                self.conversation.publish_control(piece)
        elif cut is None:
            self.conversation.publish_text(self.live, piece)
            self.latency.delta(monotonic())

    def _note(self, *, saved: bool) -> None:
        if not saved and not self.live.unsaved:
            self.publish("unsaved")
        self.live.unsaved = not saved
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
