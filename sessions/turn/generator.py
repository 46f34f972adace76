"""Generates a reply with the engine, and passes it through the filters to a listener, at the reader's pace.

Knows neither conversations nor the store: the listener handles the text.
"""

from __future__ import annotations

import asyncio
import secrets
import unicodedata
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from time import monotonic
from typing import Protocol, assert_never

import msgspec
import structlog

from engine.api import Engine, OutputStream
from engine.errors import EngineBusy, EngineLost, EngineUnavailable
from engine.messages import (
    Chunk,
    Finished,
    FinishReason,
    Prefilling,
    Queued,
    Reasoning,
    Request,
    Retried,
    Started,
    ToolCallOutput,
)
from engine.served_models import served_models
from sessions.errors import Overloaded, OwnershipLost
from sessions.events import Failure, Reason
from sessions.filters.chain import NO_FILTERS, Filters, ReleasedText
from sessions.observer import Observer
from sessions.turn.prompt import ModelChoice, fallback_request, retry_after_ms
from sessions.turn.turn import EngineWait
from sessions.turn.turn_state import EngineCount, TurnState

SLICE_S = 0.1
"""A slice is about so many seconds of reading."""
_JOINER = "\u200d"
_COMBINING = frozenset({"Mn", "Me", "Mc", "Cf"})
_TONES = range(0x1F3FB, 0x1F400)
_FLAGS = range(0x1F1E6, 0x1F200)


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
        """Return once `add_text` got all of it, or the reply has to stop."""
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
    """Yield text in parts of about so many characters, without splitting one. Its tokens are spread over them."""
    text, start, sent_tokens = released.text, 0, 0
    while start < len(text):
        end = _grapheme_end(text, start + chars)
        tokens = released.tokens * end // len(text)
        logprobs = released.logprobs if start == 0 else ()
        yield msgspec.structs.replace(
            released, text=text[start:end], tokens=tokens - sent_tokens, logprobs=logprobs
        )
        start, sent_tokens = end, tokens


def _grapheme_end(text: str, end: int) -> int:
    """Return the next end of a user-perceived character from `end` on."""
    while end < len(text) and (text[end - 1] == _JOINER or _is_combining(text[end])):
        end += 1
    return min(end, len(text))


def _is_combining(char: str) -> bool:
    return unicodedata.category(char) in _COMBINING or ord(char) in _TONES or ord(char) in _FLAGS


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
    """How the engine's part of a turn ended. `written`: the reply as the model wrote it, if its text is not all of that.

    `stop`: the stop string that ended it, if the engine says which.
    """

    reason: Reason
    error: Failure | None = None
    written: str = ""
    stop: str | None = None


class ReplyListener(Protocol):
    """The receiver of a reply."""

    @property
    def turn(self) -> TurnState:
        """The turn whose reply it is."""
        ...

    @property
    def engine(self) -> EngineWait:
        """Its wait for the engine."""
        ...

    @property
    def chars_per_s(self) -> float | None:
        """The pace of its text; 0: as it is made; None: the default of the model that answers."""
        ...

    @property
    def paces_thoughts(self) -> bool:
        """Whether its reasoning has that pace, too: text then waits for it."""
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


class FilteredReplyStream:
    """A reply on its way to its listener: reasoning, text and each call's arguments pass all filters separately.

    `filtered`: a filter ended the reply; everything after it is dropped. `chars_per_s`: its pace if the listener names none.
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
        await self._text.begin(self._listener.turn.text)
        await self._thoughts.begin(self._listener.turn.reasoning)

    async def take(self, piece: Chunk | Reasoning | ToolCallOutput) -> None:
        """Pass on what the filters let through. Raises FilterContractError."""
        if self.filtered:
            return
        match piece:
            case Chunk():
                await self._release(self._add_text, self._text.feed(piece.text, piece.tokens, piece.logprobs))
            case Reasoning():
                await self._release(self._add_reasoning, self._thoughts.feed(piece.text, piece.tokens))
            case ToolCallOutput():
                await self._call(piece)
            case _:
                assert_never(piece)

    async def finish(self) -> None:
        """Pass on what the filters held, at the reply's end. Raises FilterContractError."""
        await self._finish_thoughts()
        if not self.filtered:
            await self._release(self._add_text, self._text.finish())

    async def _finish_thoughts(self) -> None:
        if not self.filtered:
            await self._release(self._add_reasoning, self._thoughts.finish())

    async def _call(self, called: ToolCallOutput) -> None:
        await self._finish_thoughts()
        if self.filtered:
            return
        if await self._filters.reply().forbids(called.arguments):
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

    async def _follow(self, listener: ReplyListener, stream: OutputStream, model: str) -> Outcome:
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
    return Outcome(_REASONS[finished.reason], error, finished.written, finished.stop)


def _failure(loss: EngineLost | EngineUnavailable) -> Failure:
    """Return the end for an upstream that sheds load: that is no failure, and the client may retry."""
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
