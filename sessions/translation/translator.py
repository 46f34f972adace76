"""Has an engine translate a growing source segment by segment, continuing what was told of each."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from math import ceil
from time import monotonic
from typing import Protocol, assert_never

from engine.api import Engine, OutputStream
from engine.errors import EngineLost
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
from sessions.events import Reason
from sessions.filters.chain import NO_FILTERS, Filters
from sessions.generation import FilteredReplyStream, Outcome, ReplyListener, guarded_outcome, outcome_of
from sessions.interpreting.interpretation import Interpretation
from sessions.interpreting.target import SegmentDecode
from sessions.translation.segment_request import PROMPT, most_tokens, segment_request
from sessions.turn.turn_state import EngineCount

IDLE_S = 600.0
"""A source that does not grow for so long ends its turn by `timeout`, since it takes a place that others need."""
PAUSE_S = 1.0
"""How long a source must pause after a sentence's end to close the sentence, whatever may follow."""
TRIES = 3
"""How often in a row the engine may be lost."""


class TranslationListener(ReplyListener, Protocol):
    """The listener of a translation."""

    @property
    def interpretation(self) -> Interpretation:
        """The interpretation."""
        ...

    def settle(self) -> None:
        """Note that a segment is completely translated."""
        ...


class _TurnUsage:
    """The sums over a turn's decodes. `number`: how many there were; `steps_after`: after the turn's cancel."""

    __slots__ = (
        "_ends",
        "_most",
        "_tokens",
        "cached",
        "committed",
        "generated",
        "number",
        "prompt",
        "steps_after",
    )

    def __init__(self) -> None:
        self.number = self.prompt = self.cached = self.generated = self.committed = 0
        self.steps_after: int | None = 0
        self._most = 0
        self._ends: list[int] = []  # where each piece of the current hypothesis ends
        self._tokens: list[int] = []  # its tokens up to there

    def begin(self, chars: int, *, most: int) -> None:
        """Begin another hypothesis, with so many characters forced. `most`: its tokens, without reasoning."""
        self.number += 1
        self._most = most
        self._ends, self._tokens = [chars], [self.committed]

    @property
    def is_overlong(self) -> bool:
        """Whether the current hypothesis has its maximum of tokens: a model that does not end is stopped."""
        return self._tokens[-1] - self._tokens[0] >= self._most

    def extend(self, chars: int, tokens: int) -> None:
        """Note that the hypothesis has so many characters now."""
        self._ends.append(chars)
        self._tokens.append(self._tokens[-1] + tokens)

    def commit(self, chars: int) -> int:
        """Note that so many characters are told; return the tokens that this adds, a part of a piece in proportion."""
        last = bisect_left(self._ends, chars)
        since, until = self._ends[max(0, last - 1)], self._ends[last]
        tokens = self._tokens[last]
        if chars < until:
            first = self._tokens[last - 1]
            tokens = first + ceil((tokens - first) * (chars - since) / (until - since))
        before, self.committed = self.committed, max(self.committed, tokens)
        return self.committed - before

    def add(self, finished: Finished, *, stopping: bool) -> None:
        """A decode has ended. What it said as the one before did was made once."""
        self.prompt += finished.prompt_tokens
        self.cached += finished.cached_tokens
        self.generated += finished.generated_tokens - finished.accepted_tokens
        self.steps_after = finished.steps_after if stopping else 0

    def count(self) -> EngineCount:
        """Return the engine's count for the turn."""
        return EngineCount(
            prompt_tokens=self.prompt,
            cached_tokens=self.cached,
            generated_tokens=self.generated,
            steps_after=self.steps_after,
            dropped_tokens=max(0, self.generated - self.committed),
        )


class Translator:
    """Interprets. `prompt`: asks a chat model for a translation."""

    def __init__(
        self,
        engine: Engine,
        filters: Filters = NO_FILTERS,
        *,
        prompt: str = PROMPT,
        pause_s: float = PAUSE_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self._engine = served_models(engine)
        self._filters = filters
        self._prompt = prompt
        self._pause_s = pause_s
        self._idle_s = idle_s

    async def outcome(self, listener: TranslationListener, request: Request) -> Outcome:
        """Tell a listener its translation; return how it ended. Raises OwnershipLost if the listener does."""
        return await guarded_outcome(listener, self._in_time(listener, request))

    async def _in_time(self, listener: TranslationListener, request: Request) -> Outcome:
        usage = _TurnUsage()
        try:
            ended = await listener.engine.in_time(self._interpret(listener, request, usage))
            if ended is None:  # the engine does not confirm that it has stopped
                usage.steps_after = None
        finally:
            listener.turn.count = usage.count()
        return ended or Outcome(Reason.CANCELLED)

    async def _interpret(self, listener: TranslationListener, request: Request, usage: _TurnUsage) -> Outcome:
        interpretation, losses = listener.interpretation, 0
        pieces = FilteredReplyStream(listener, self._filters)
        await pieces.begin()
        while not listener.engine.stopping.is_set():
            if (ask := await self._next(listener)) is None:
                if listener.engine.stopping.is_set():
                    break
                await pieces.finish()
                done = Reason.STOP if interpretation.is_done else Reason.TIMEOUT
                return Outcome(Reason.FILTERED if pieces.filtered else done)
            try:
                ended = await self._decode(listener, request, ask, pieces, usage)
            except EngineLost:
                losses += 1
                if losses == TRIES or listener.engine.stopping.is_set():
                    raise
                listener.retry()
                continue
            losses = 0
            if ended is not None:
                return ended
        return Outcome(Reason.FILTERED if pieces.filtered else Reason.CANCELLED)

    async def _next(self, listener: TranslationListener) -> SegmentDecode | None:
        """Wait for something to decode; None if all is translated, or the source does not grow for too long."""
        interpretation, stopping = listener.interpretation, listener.engine.stopping
        paused = False
        while not stopping.is_set():
            interpretation.news.clear()
            ask = interpretation.translation.next(interpretation.source, paused=paused)
            if ask is not None or interpretation.is_done:
                return ask
            if await _set_within(self._idle_s if paused else self._pause_s, interpretation.news, stopping):
                paused = False
            elif paused:
                return None
            else:
                paused = True
        return None

    async def _decode(
        self,
        listener: TranslationListener,
        request: Request,
        ask: SegmentDecode,
        pieces: FilteredReplyStream,
        usage: _TurnUsage,
    ) -> Outcome | None:
        """Decode a segment until its end or until the source grows; return an outcome only if it ends the turn."""
        interpretation = listener.interpretation
        if listener.engine.stopping.is_set():
            return None
        usage.begin(len(ask.prefix), most=most_tokens(ask.text))
        engine_request = segment_request(
            request,
            interpretation.options,
            ask,
            prompt=self._prompt,
            number=usage.number,
            facts=self._engine.named(request.model).engine.facts,
        )
        stream = listener.engine.stream = self._engine.generate(engine_request)
        interpretation.begin(ask, stream)
        whole = has_end = False
        try:
            finished = await self._read_outputs(listener, stream, pieces, usage)
            whole = finished.reason in (FinishReason.STOP, FinishReason.LENGTH) or usage.is_overlong
            has_end = whole and (ask.is_closed or finished.reason is FinishReason.STOP)
        finally:
            rest = interpretation.end(finished=has_end, enough=whole)
        usage.add(finished, stopping=listener.engine.stopping.is_set())
        if whole:
            await self._publish(listener, pieces, rest, usage)
        is_long = finished.reason is FinishReason.LENGTH and ask.is_closed
        if is_long and not interpretation.translation.committed_in_segment:  # it only reasoned
            return outcome_of(listener.turn, finished)
        if whole and ask.is_closed:
            interpretation.translation.settle(ask)
            listener.settle()
        if whole or finished.reason is FinishReason.CANCELLED:
            return None
        return outcome_of(listener.turn, finished)

    async def _read_outputs(
        self,
        listener: TranslationListener,
        stream: OutputStream,
        pieces: FilteredReplyStream,
        usage: _TurnUsage,
    ) -> Finished:
        """Take all of the engine's outputs. Raises EngineLost."""
        async for output in stream:
            match output:
                case Chunk():
                    await self._take_chunk(listener, pieces, output, usage)
                case Finished():
                    return output
                case Queued() | Retried() | Prefilling() | Started():
                    self._report(listener, output)
                case Reasoning() | ToolCallOutput():  # not a part of a translation
                    pass
                case _:
                    assert_never(output)
        raise EngineLost("The engine's stream has no end.")

    async def _take_chunk(
        self, listener: TranslationListener, pieces: FilteredReplyStream, chunk: Chunk, usage: _TurnUsage
    ) -> None:
        translation = listener.interpretation.translation
        committed = listener.interpretation.extend(chunk.text)
        usage.extend(translation.hypothesis_chars, chunk.tokens)
        await self._publish(listener, pieces, committed, usage)
        if (translation.is_enough or usage.is_overlong) and listener.engine.stream is not None:
            listener.engine.stream.cancel()

    @staticmethod
    async def _publish(
        listener: TranslationListener, pieces: FilteredReplyStream, text: str, usage: _TurnUsage
    ) -> None:
        if text:
            tokens = usage.commit(listener.interpretation.translation.committed_in_segment)
            await pieces.take(Chunk(listener.turn.ids.turn_id, text, tokens))

    @staticmethod
    def _report(listener: TranslationListener, report: Queued | Retried | Prefilling | Started) -> None:
        if not listener.turn.has_begun:
            listener.report(report)
        if isinstance(report, Started):
            listener.turn.start(
                prompt_tokens=report.prompt_tokens, cached_tokens=report.cached_tokens, now=monotonic()
            )


async def _set_within(within_s: float, *events: asyncio.Event) -> bool:
    """Return whether one of the events is set in time."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return bool(done)
