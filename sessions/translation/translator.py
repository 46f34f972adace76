"""Has an engine translate a growing source segment by segment, continuing what was published of each."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from math import ceil
from time import monotonic
from typing import assert_never

import msgspec

from engine.api import Engine, Streamer
from engine.errors import EngineLost
from engine.messages import (
    Chunk,
    Finished,
    FinishReason,
    Languages,
    Message,
    ModelFacts,
    Prefilling,
    Queued,
    Reasoning,
    ReplySpec,
    Request,
    Retried,
    Started,
    ToolCallOutput,
    Translation,
)
from engine.served_models import served_models
from sessions.errors import BadParams
from sessions.events import Reason
from sessions.filters.chain import NO_FILTERS, Filters
from sessions.generation import FilteredReplyStream, Generation, Outcome, guarded_outcome, outcome_of
from sessions.languages import AUTO, language_code, language_name
from sessions.records import MessageRecord, SourceState
from sessions.translation.interpretation import Alignment, GrowingText, SegmentDecode, Target
from sessions.turn.message_request import GenerationConfig
from sessions.turn.turn import Turn, first_of
from sessions.turn.turn_state import EngineCount

PROMPT = "Translate into {language}: {text}"
TOKENS_A_CHAR = 3
SPARE_TOKENS = 32
"""Tokens that any target may have: a model that does not end is stopped."""
THOUGHT_TOKENS = 1024
"""Tokens for reasoning, or a quarter of the window if that is less; chat models are requested to reason as little as possible."""
MOST_LISTED = 20
"""Languages that an error lists."""


def segment_request(
    base: Request,
    interpreting: SourceState,
    ask: SegmentDecode,
    *,
    number: int,
    facts: ModelFacts | None,
) -> Request:
    """Return the request for one segment, the `number`th of its turn. `facts`: the model's."""
    languages = None if facts is None else facts.languages
    thinks = facts is not None and "reasoning" in facts.features
    if languages is None:
        prompt = PROMPT.format(language=language_name(interpreting.target), text=ask.text)
        messages = (Message("user", prompt), *((Message("assistant", ask.prefix),) if ask.prefix else ()))
        reasoning = "least" if thinks and base.spec.reasoning == "auto" else base.spec.reasoning
        spec = ReplySpec(continues=bool(ask.prefix), reasoning=reasoning)
    else:
        messages = (Message("user", ask.text),)
        translation = msgspec.structs.replace(
            _translation(interpreting, languages, ask.prefix), unfinished=not ask.is_closed
        )
        spec = ReplySpec(translation=translation)
    spare = 0 if facts is None or not thinks else min(THOUGHT_TOKENS, facts.context_tokens // 4)
    # a segment is one line, and so is its translation
    params = msgspec.structs.replace(base.params, max_new_tokens=most_tokens(ask.text) + spare, stop=("\n",))
    return msgspec.structs.replace(
        base,
        request_id=f"{base.request_id}.{number}",
        messages=messages,
        params=params,
        spec=spec,
        shares_system=False,
        fallbacks=(),
    )


def _translation(interpreting: SourceState, known: Languages, prefix: str = "") -> Translation:
    """Return the request to a translation model, in the model's own language codes."""
    source = "" if interpreting.source == AUTO else language_code(interpreting.source, known.sources)
    return Translation(language_code(interpreting.target, known.targets) or "", source or "", prefix)


def _listed(known: Sequence[str]) -> str:
    names = ", ".join(known[:MOST_LISTED])
    return f"{names}, …" if len(known) > MOST_LISTED else names


def most_tokens(text: str) -> int:
    """Return the maximum number of tokens of a segment's target."""
    return TOKENS_A_CHAR * len(text) + SPARE_TOKENS


class Interpretation:
    """The `Source` of a turn that translates. A growth cancels the decode of a sentence that it continues.

    `growing`: a lock held while the source grows; `news`: set whenever it grew. `options`: the languages, and how to publish.
    """

    __slots__ = ("_decode", "_message", "growing", "news", "options", "source", "translation")

    def __init__(self, options: SourceState, message: MessageRecord, text: str = "") -> None:
        """Begin with the source in the message; `text`: the translation that was sent before."""
        self.options = options
        self.source = GrowingText(message.content, is_final=options.is_final)
        alignment = Alignment(options.src, options.off)
        self.translation = Target(options.publish_policy, text=text, alignment=alignment)
        self.growing = asyncio.Lock()
        self.news = asyncio.Event()
        self._message = message
        self._decode: Streamer | None = None

    @property
    def message(self) -> MessageRecord:
        """The source as the history has it."""
        return msgspec.structs.replace(self._message, content=self.source.text)

    @property
    def read_off(self) -> int:
        """How much of the source had been read for the last published words."""
        return self.translation.src_off

    def state(self, *, chars: int | None = None) -> SourceState:
        """Return the progress, for the turn that continues this one. `chars`: how much of the target is kept; None: all."""
        end = len(self.translation.text) if chars is None else chars
        alignment = self.translation.alignment_at(end)
        return msgspec.structs.replace(
            self.options, src=alignment.src, off=alignment.off, is_final=self.source.is_final
        )

    @property
    def is_done(self) -> bool:
        """Whether all of the source is translated, and it does not grow any more."""
        rest = self.source.text[self.translation.alignments[-1].src :]
        return self.source.is_final and not rest.strip()

    def grow(self, new: str, *, final: bool) -> None:
        """Grow the source by what `news` of the source returned. Synchronous."""
        self.source.grow(new, final=final)
        self.news.set()
        if self._decode is not None and self.translation.is_outdated(self.source):
            self._decode.cancel()

    def begin(self, ask: SegmentDecode, decode: Streamer) -> None:
        """Note that a segment is being decoded."""
        self.translation.begin(ask)
        self._decode = decode

    def end(self, *, finished: bool, enough: bool = False) -> str:
        """End the current decode; return what is published after it. See `Target.end`."""
        self._decode = None
        return self.translation.end(self.source, finished=finished, enough=enough)


def interpretation_of(live: Turn) -> Interpretation | None:
    """Return what a turn translates, if it does."""
    return live.source if isinstance(live.source, Interpretation) else None


IDLE_S = 600.0
"""A source that does not grow for so long ends its turn by `timeout`, since it takes a place that others need."""
PAUSE_S = 1.0
"""How long a source must pause after a sentence's end to close the sentence, whatever may follow."""
TRIES = 3
"""Attempts in a row that may lose the engine: the last one ends the turn."""


class _TurnUsage:
    """The sums over a turn's decodes. `number`: how many there were; `steps_after`: engine steps after the turn's cancel."""

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
        """Begin another hypothesis, with its first `chars` characters forced. `most`: its most tokens, without reasoning."""
        self.number += 1
        self._most = most
        self._ends, self._tokens = [chars], [self.committed]

    @property
    def is_overlong(self) -> bool:
        """Whether the current hypothesis has its maximum of tokens: a model that does not end is stopped."""
        return self._tokens[-1] - self._tokens[0] >= self._most

    def extend(self, chars: int, tokens: int) -> None:
        """Note that the hypothesis has `chars` characters now."""
        self._ends.append(chars)
        self._tokens.append(self._tokens[-1] + tokens)

    def commit(self, chars: int) -> int:
        """Note that `chars` characters are published; return the tokens that this adds, a part of a piece in proportion."""
        last = bisect_left(self._ends, chars)
        since, until = self._ends[max(0, last - 1)], self._ends[last]
        tokens = self._tokens[last]
        if chars < until:
            first = self._tokens[last - 1]
            tokens = first + ceil((tokens - first) * (chars - since) / (until - since))
        before, self.committed = self.committed, max(self.committed, tokens)
        return self.committed - before

    def add(self, finished: Finished, *, stopping: bool) -> None:
        """Note the end of a hypothesis."""
        self.prompt += finished.prompt_tokens
        self.cached += finished.cached_tokens
        self.generated += finished.generated_tokens
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
    """The `SourceReplies` of live translation."""

    def __init__(
        self,
        engine: Engine,
        filters: Filters = NO_FILTERS,
        *,
        pause_s: float = PAUSE_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self._engine = engine
        self._filters = filters
        self._pause_s = pause_s
        self._idle_s = idle_s

    @staticmethod
    def refuse_unable(facts: ModelFacts, interpreting: SourceState) -> None:
        """Raise BadParams if a model can't continue words that were published, or does not know the languages."""
        if (known := facts.languages) is not None:
            if not known.targets:
                why = "This model does not say which languages it translates, so it can't interpret."
                raise BadParams(why, field="model")
            if interpreting.source != AUTO and not known.sources:
                why = "Leave `source` out: this model does not say which languages it reads."
                raise BadParams(why, field="source")
            if interpreting.source != AUTO and language_code(interpreting.source, known.sources) is None:
                raise BadParams(
                    f"`source` is one of {_listed(known.sources)} for this model.", field="source"
                )
            if language_code(interpreting.target, known.targets) is None:
                raise BadParams(
                    f"`target` is one of {_listed(known.targets)} for this model.", field="target"
                )
        elif "continue" not in facts.features:
            why = "This model can't interpret: the server behind it can't continue a reply."
            raise BadParams(why, field="model")

    @staticmethod
    def trial_request(
        message: MessageRecord,
        generation: GenerationConfig,
        interpreting: SourceState,
        facts: ModelFacts | None,
    ) -> tuple[MessageRecord, GenerationConfig]:
        """Return a request in place of a source that is still empty, to check the model. `facts`: the model's."""
        known = None if facts is None else facts.languages
        translation = None if known is None else _translation(interpreting, known)
        return (
            msgspec.structs.replace(message, content=PROMPT, parent_id=None),
            msgspec.structs.replace(generation, continues=False, translation=translation),
        )

    @staticmethod
    def open(source: SourceState, message: MessageRecord, text: str) -> Interpretation:
        """Begin a translation, or continue one after its `text`."""
        return Interpretation(source, message, text)

    async def outcome(self, run: Generation, request: Request) -> Outcome:
        """Translate the source of a run; return how the run ended. Raises OwnershipLost if the run does."""
        return await guarded_outcome(run, self._in_time(run, request))

    async def _in_time(self, run: Generation, request: Request) -> Outcome:
        if (interpretation := interpretation_of(run.live)) is None:
            raise RuntimeError("The turn translates nothing.")
        pieces = FilteredReplyStream(run, self._filters)
        decoder = _TurnDecoder(self._engine, run, request, interpretation, pieces)
        try:
            ended = await run.engine.in_time(self._interpret(run, interpretation, pieces, decoder))
            if ended is None:  # the engine does not confirm that it has stopped
                decoder.usage.steps_after = None
        finally:
            run.turn.count = decoder.usage.count()
        return ended or Outcome(Reason.CANCELLED)

    async def _interpret(
        self,
        run: Generation,
        interpretation: Interpretation,
        pieces: FilteredReplyStream,
        decoder: _TurnDecoder,
    ) -> Outcome:
        losses, stopping = 0, run.engine.stopping
        await pieces.begin()
        while not stopping.is_set():
            ask = await self._next(interpretation, stopping)
            if stopping.is_set():
                break
            if ask is None:
                await pieces.finish()
                done = Reason.STOP if interpretation.is_done else Reason.TIMEOUT
                return Outcome(Reason.FILTERED if pieces.filtered else done)
            try:
                ended = await decoder.decode(ask)
            except EngineLost:
                losses += 1
                if losses == TRIES or stopping.is_set():
                    raise
                run.retry()
                continue
            losses = 0
            if ended is not None:
                return ended
        return Outcome(Reason.FILTERED if pieces.filtered else Reason.CANCELLED)

    async def _next(self, interpretation: Interpretation, stopping: asyncio.Event) -> SegmentDecode | None:
        """Wait for something to decode; None if all is translated, or the source does not grow for too long."""
        paused = False
        while not stopping.is_set():
            interpretation.news.clear()
            ask = interpretation.translation.next(interpretation.source, paused=paused)
            if ask is not None or interpretation.is_done:
                return ask
            within_s = self._idle_s if paused else self._pause_s
            if await first_of(interpretation.news, stopping, within_s=within_s):
                paused = False
            elif paused:
                return None
            else:
                paused = True
        return None


class _TurnDecoder:
    """Decodes the segments of one turn, and publishes their translations."""

    def __init__(
        self,
        engine: Engine,
        run: Generation,
        request: Request,
        interpretation: Interpretation,
        pieces: FilteredReplyStream,
    ) -> None:
        self.usage = _TurnUsage()
        self._engine = served_models(engine)
        self._run = run
        self._request = request
        self._interpretation = interpretation
        self._pieces = pieces

    async def decode(self, ask: SegmentDecode) -> Outcome | None:
        """Decode a segment until its end or until the source grows; return an outcome only if it ends the turn.

        Raises EngineLost.
        """
        run, interpretation = self._run, self._interpretation
        self.usage.begin(len(ask.prefix), most=most_tokens(ask.text))
        engine_request = segment_request(
            self._request,
            interpretation.options,
            ask,
            number=self.usage.number,
            facts=self._engine.named(self._request.model).engine.facts,
        )
        stream = run.engine.stream = self._engine.generate(engine_request)
        interpretation.begin(ask, stream)
        whole = has_end = False
        try:
            finished = await self._read_outputs(stream)
            whole = finished.reason in (FinishReason.STOP, FinishReason.LENGTH) or self.usage.is_overlong
            has_end = whole and (ask.is_closed or finished.reason is FinishReason.STOP)
        finally:
            rest = interpretation.end(finished=has_end, enough=whole)
        self.usage.add(finished, stopping=run.engine.stopping.is_set())
        if whole:
            await self._publish(rest)
        is_long = finished.reason is FinishReason.LENGTH and ask.is_closed
        if is_long and not interpretation.translation.committed_in_segment:  # the model only reasoned
            return outcome_of(run.turn, finished)
        if whole and ask.is_closed:
            interpretation.translation.settle(ask)
        if whole or finished.reason is FinishReason.CANCELLED:
            return None
        return outcome_of(run.turn, finished)

    async def _read_outputs(self, stream: Streamer) -> Finished:
        """Take all of the engine's outputs. Raises EngineLost."""
        async for output in stream:
            match output:
                case Chunk():
                    await self._take_chunk(output, stream)
                case Finished():
                    return output
                case Queued() | Retried() | Prefilling() | Started():
                    self._report(output)
                case Reasoning() | ToolCallOutput():  # not a part of a translation
                    pass
                case _:
                    assert_never(output)
        raise EngineLost("The engine's stream has no end.")

    async def _take_chunk(self, chunk: Chunk, stream: Streamer) -> None:
        translation = self._interpretation.translation
        committed = translation.extend(chunk.text, self._interpretation.source)
        self.usage.extend(translation.hypothesis_chars, chunk.tokens)
        await self._publish(committed)
        if translation.is_enough or self.usage.is_overlong:
            stream.cancel()

    async def _publish(self, text: str) -> None:
        if text:
            tokens = self.usage.commit(self._interpretation.translation.committed_in_segment)
            await self._pieces.take(Chunk(self._run.turn.ids.turn_id, text, tokens))

    def _report(self, report: Queued | Retried | Prefilling | Started) -> None:
        turn = self._run.turn
        if not turn.has_begun:
            self._run.report(report)
        if isinstance(report, Started):
            turn.start(
                prompt_tokens=report.prompt_tokens, cached_tokens=report.cached_tokens, now=monotonic()
            )
