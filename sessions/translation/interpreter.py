"""Has an engine translate a source while it grows: segment by segment, from what was told of each."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from math import ceil
from time import monotonic
from typing import Protocol, assert_never

from engine.door import Engine, Stream
from engine.errors import EngineLost
from engine.messages import (
    Called,
    Chunk,
    Finished,
    FinishReason,
    Prefilling,
    Queued,
    Reasoning,
    Request,
    Retried,
    Started,
)
from engine.served_models import served_models
from sessions.events import Reason
from sessions.filters.chain import NO_FILTERS, Filters
from sessions.interpreting.interpretation import Interpretation
from sessions.interpreting.translation import Ask
from sessions.translation.asking import PROMPT, most_tokens, request_for
from sessions.turn.generating import FilteredPieces, Listener, Outcome, guarded_outcome, outcome_of
from sessions.turn.turn import EngineCount

IDLE_S = 600.0
"""A source that does not grow for so long ends its turn by `timeout`: it holds a place that others want."""
PAUSE_S = 1.0
"""So long a source stands still behind a sentence's end before that closes the sentence, whatever may follow."""
TRIES = 3
"""How often in a row the engine may be lost."""


class Interprets(Listener, Protocol):
    """Whoever a translation is told to."""

    @property
    def interpretation(self) -> Interpretation:
        """What is translated."""
        ...

    def settle(self) -> None:
        """A segment is translated to its end."""
        ...


class _Work:
    """What the decodes of a turn took together. `number`: how many there were; `steps_after`: of the turn's cancel."""

    __slots__ = (
        "_ends",
        "_most",
        "_tokens",
        "cached",
        "generated",
        "number",
        "prompt",
        "steps_after",
        "told",
    )

    def __init__(self) -> None:
        self.number = self.prompt = self.cached = self.generated = self.told = 0
        self.steps_after: int | None = 0
        self._most = 0
        self._ends: list[
            int
        ] = []  # of the pieces of the hypothesis at hand, and how many tokens each takes it to
        self._tokens: list[int] = []

    def begin(self, chars: int, *, most: int) -> None:
        """Another hypothesis, of which so many characters are forced. `most`: its tokens, without what was thought before."""
        self.number += 1
        self._most = most
        self._ends, self._tokens = [chars], [self.told]

    @property
    def is_overlong(self) -> bool:
        """Whether the hypothesis at hand has as many tokens as it may: a model that does not come to an end is stopped."""
        return self._tokens[-1] - self._tokens[0] >= self._most

    def hear(self, chars: int, tokens: int) -> None:
        """The hypothesis grew to so many characters."""
        self._ends.append(chars)
        self._tokens.append(self._tokens[-1] + tokens)

    def tell(self, chars: int) -> int:
        """So many of its characters are told by now; gives how many tokens that adds, those of a part of a piece by its length."""
        last = bisect_left(self._ends, chars)
        since, until = self._ends[max(0, last - 1)], self._ends[last]
        tokens = self._tokens[last]
        if chars < until:
            first = self._tokens[last - 1]
            tokens = first + ceil((tokens - first) * (chars - since) / (until - since))
        before, self.told = self.told, max(self.told, tokens)
        return self.told - before

    def add(self, finished: Finished, *, stopping: bool) -> None:
        """A decode has ended. What it said as the one before did was made once."""
        self.prompt += finished.prompt_tokens
        self.cached += finished.cached_tokens
        self.generated += finished.generated_tokens - finished.accepted_tokens
        self.steps_after = finished.steps_after if stopping else 0

    def count(self) -> EngineCount:
        """As the engine counts for a turn."""
        return EngineCount(
            prompt_tokens=self.prompt,
            cached_tokens=self.cached,
            generated_tokens=self.generated,
            steps_after=self.steps_after,
            dropped_tokens=max(0, self.generated - self.told),
        )


class Interpreter:
    """Interprets. `prompt`: how a chat model is asked for a translation."""

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

    async def outcome(self, listener: Interprets, request: Request) -> Outcome:
        """Tells a listener its translation; gives how that ended. Raises OwnershipLost where the listener does."""
        return await guarded_outcome(listener, self._in_time(listener, request))

    async def _in_time(self, listener: Interprets, request: Request) -> Outcome:
        work = _Work()
        try:
            ended = await listener.engine.in_time(self._interpret(listener, request, work))
            if ended is None:  # the engine does not confirm that it has stopped
                work.steps_after = None
        finally:
            listener.turn.count = work.count()
        return ended or Outcome(Reason.CANCELLED)

    async def _interpret(self, listener: Interprets, request: Request, work: _Work) -> Outcome:
        interpretation, losses = listener.interpretation, 0
        pieces = FilteredPieces(listener, self._filters)
        await pieces.begin()
        while not listener.engine.stopping.is_set():
            if (ask := await self._next(listener)) is None:
                if listener.engine.stopping.is_set():
                    break
                await pieces.finish()
                done = Reason.STOP if interpretation.is_done else Reason.TIMEOUT
                return Outcome(Reason.FILTERED if pieces.filtered else done)
            try:
                ended = await self._decode(listener, request, ask, pieces, work)
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

    async def _next(self, listener: Interprets) -> Ask | None:
        """What to decode, once there is something; None where all is translated, or where nothing comes for too long."""
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
        self, listener: Interprets, request: Request, ask: Ask, pieces: FilteredPieces, work: _Work
    ) -> Outcome | None:
        """Decodes a segment as far as it goes before the source grows; None unless that ends the turn."""
        interpretation = listener.interpretation
        if listener.engine.stopping.is_set():
            return None
        work.begin(len(ask.prefix), most=most_tokens(ask.text))
        asked = request_for(
            request,
            interpretation.asked,
            ask,
            prompt=self._prompt,
            number=work.number,
            facts=self._engine.named(request.model).engine.facts,
        )
        stream = listener.engine.stream = self._engine.generate(asked)
        interpretation.begin(ask, stream)
        whole = has_end = False
        try:
            finished = await self._listen(listener, stream, pieces, work)
            whole = finished.reason in (FinishReason.STOP, FinishReason.LENGTH) or work.is_overlong
            has_end = whole and (ask.is_closed or finished.reason is FinishReason.STOP)
        finally:
            rest = interpretation.end(finished=has_end, enough=whole)
        work.add(finished, stopping=listener.engine.stopping.is_set())
        if whole:
            await self._tell(listener, pieces, rest, work)
        is_long = finished.reason is FinishReason.LENGTH and ask.is_closed
        if is_long and not interpretation.translation.told_of_segment:  # it thought all the while
            return outcome_of(listener.turn, finished)
        if whole and ask.is_closed:
            interpretation.translation.settle(ask)
            listener.settle()
        if whole or finished.reason is FinishReason.CANCELLED:
            return None
        return outcome_of(listener.turn, finished)

    async def _listen(
        self, listener: Interprets, stream: Stream, pieces: FilteredPieces, work: _Work
    ) -> Finished:
        """Takes the engine's outputs to the last one. Raises EngineLost."""
        async for output in stream:
            match output:
                case Chunk():
                    await self._hear(listener, pieces, output, work)
                case Finished():
                    return output
                case Queued() | Retried() | Prefilling() | Started():
                    self._report(listener, output)
                case Reasoning() | Called():  # no part of a translation
                    pass
                case _:
                    assert_never(output)
        raise EngineLost("The engine's stream has no end.")

    async def _hear(self, listener: Interprets, pieces: FilteredPieces, chunk: Chunk, work: _Work) -> None:
        translation = listener.interpretation.translation
        told = listener.interpretation.hear(chunk.text)
        work.hear(translation.heard, chunk.tokens)
        await self._tell(listener, pieces, told, work)
        if (translation.is_enough or work.is_overlong) and listener.engine.stream is not None:
            listener.engine.stream.cancel()

    @staticmethod
    async def _tell(listener: Interprets, pieces: FilteredPieces, text: str, work: _Work) -> None:
        if text:
            tokens = work.tell(listener.interpretation.translation.told_of_segment)
            await pieces.take(Chunk(listener.turn.ids.turn_id, text, tokens))

    @staticmethod
    def _report(listener: Interprets, report: Queued | Retried | Prefilling | Started) -> None:
        if not listener.turn.has_begun:
            listener.report(report)
        if isinstance(report, Started):
            listener.turn.start(
                prompt_tokens=report.prompt_tokens, cached_tokens=report.cached_tokens, now=monotonic()
            )


async def _set_within(within_s: float, *events: asyncio.Event) -> bool:
    """Whether one of some events is set in time."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return bool(done)
