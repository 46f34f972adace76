"""Has an engine translate a growing source segment by segment, continuing what was published of each."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from math import ceil
from time import monotonic
from typing import assert_never

import msgspec

from engine.api import Engine, OutputStream
from engine.errors import EngineLost
from engine.messages import (
    Chunk,
    Finished,
    FinishReason,
    Languages,
    Message,
    ModelFacts,
    Params,
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
from sessions.conversation.conversation import Conversation
from sessions.errors import BadParams, Conflict, StoreDown, StoreFault
from sessions.events import Reason, SourceText
from sessions.filters.chain import NO_FILTERS, Filters
from sessions.generation import FilteredReplyStream, Generation, Outcome, guarded_outcome, outcome_of
from sessions.interpreting.interpretation import Grown, Growth, Interpretation, SegmentDecode
from sessions.interpreting.languages import AUTO, language_code, language_name
from sessions.records import Interpreting, MessageRecord
from sessions.store.history.codec import encode_message, encode_turn
from sessions.turn.message_request import GenerationConfig
from sessions.turn.turn import Turn
from sessions.turn.turn_state import EngineCount

PROMPT = "Translate into {target}: {text}"
"""`{target}` and `{source}` are names of languages."""
TOKENS_A_CHAR = 3
SPARE_TOKENS = 32
"""Tokens that any target may have: a model that does not end is stopped."""
THOUGHT_TOKENS = 1024
"""Tokens for reasoning, or a quarter of the window if that is less; chat models are asked to reason least."""
MOST_LISTED = 20
"""Languages that an error lists."""
_ANY = "any language"


def segment_request(
    base: Request,
    interpreting: Interpreting,
    ask: SegmentDecode,
    *,
    prompt: str,
    number: int,
    facts: ModelFacts | None,
) -> Request:
    """Return the request for one segment, the `number`th of its turn. `facts`: the model's."""
    languages = None if facts is None else facts.languages
    thinks = facts is not None and "reasoning" in facts.features
    if languages is None:
        messages = _messages(interpreting, ask.text, ask.prefix, prompt)
        reasoning = "least" if thinks and base.spec.reasoning == "auto" else base.spec.reasoning
        spec = ReplySpec(continues=bool(ask.prefix), reasoning=reasoning)
    else:
        messages = (Message("user", ask.text),)
        translation = msgspec.structs.replace(
            _translation(interpreting, languages, ask.prefix),
            unfinished=not ask.is_closed,
            draft=ask.draft,
            ahead=ask.ahead,
        )
        spec = ReplySpec(translation=translation)
    spare = 0 if facts is None or not thinks else min(THOUGHT_TOKENS, facts.context_tokens // 4)
    return msgspec.structs.replace(
        base,
        request_id=f"{base.request_id}.{number}",
        messages=messages,
        params=_params(base.params, ask.text, spare),
        spec=spec,
        shares_system=False,
        fallbacks=(),
    )


def trial_request(
    message: MessageRecord,
    generation: GenerationConfig,
    interpreting: Interpreting,
    facts: ModelFacts | None,
) -> tuple[MessageRecord, GenerationConfig]:
    """Return a request in place of a source that is still empty, to check the model. `facts`: the model's."""
    known = None if facts is None else facts.languages
    translation = None if known is None else _translation(interpreting, known)
    return (
        msgspec.structs.replace(message, content=PROMPT, parent_id=None),
        msgspec.structs.replace(generation, continues=False, translation=translation),
    )


def refuse_unable(facts: ModelFacts, interpreting: Interpreting) -> None:
    """Raise BadParams if a model can't continue words that were published, or does not know the languages."""
    if (known := facts.languages) is not None:
        if not known.targets:
            why = "This model does not say which languages it translates, so it can't interpret."
            raise BadParams(why, field="model")
        if interpreting.source != AUTO and not known.sources:
            why = "Leave `source` out: this model does not say which languages it reads."
            raise BadParams(why, field="source")
        if interpreting.source != AUTO and language_code(interpreting.source, known.sources) is None:
            raise BadParams(f"`source` is one of {_listed(known.sources)} for this model.", field="source")
        if language_code(interpreting.target, known.targets) is None:
            raise BadParams(f"`target` is one of {_listed(known.targets)} for this model.", field="target")
    elif "continue" not in facts.features:
        why = "This model can't interpret: the server behind it can't continue a reply."
        raise BadParams(why, field="model")


def _translation(interpreting: Interpreting, known: Languages, prefix: str = "") -> Translation:
    """Return the request to a translation model, in its own codes."""
    source = "" if interpreting.source == AUTO else language_code(interpreting.source, known.sources)
    return Translation(language_code(interpreting.target, known.targets) or "", source or "", prefix)


def _listed(known: Sequence[str]) -> str:
    names = ", ".join(known[:MOST_LISTED])
    return f"{names}, …" if len(known) > MOST_LISTED else names


def _messages(interpreting: Interpreting, text: str, prefix: str, prompt: str) -> tuple[Message, ...]:
    source = _ANY if interpreting.source == AUTO else language_name(interpreting.source)
    filled = (
        prompt.replace("{source}", source)
        .replace("{target}", language_name(interpreting.target))
        .replace("{text}", text)
    )
    messages = (Message("user", filled),)
    return (*messages, Message("assistant", prefix)) if prefix else messages


def _params(params: Params, text: str, spare: int) -> Params:
    """Return the parameters: a segment is one line, and so is its translation. `spare`: tokens for reasoning."""
    return msgspec.structs.replace(params, max_new_tokens=most_tokens(text) + spare, stop=("\n",))


def most_tokens(text: str) -> int:
    """Return the maximum number of tokens of a segment's target."""
    return TOKENS_A_CHAR * len(text) + SPARE_TOKENS


_LATE = "The store does not answer in time; send it again in a moment."
_OVER = "The interpretation was ended; further text is not translated."
FILTERED_CHARS = 1000
"""Characters before a growth that filters read again: a match may begin there."""


class SourceGrowth:
    """Grows sources of turns that run here."""

    def __init__(self, filters: Filters) -> None:
        self._filters = filters

    async def grow(
        self, conversation: Conversation, live: Turn, interpretation: Interpretation, growth: Growth
    ) -> Grown:
        """Take more of a source; text that was known before counts once.

        Raises Conflict, ContentTooLong, Filtered, OwnershipLost; StoreDown if it may or may not be stored: it
        may be sent again.
        """
        source = interpretation.source
        async with interpretation.growing:
            if (new := source.news(growth)) is not None:
                await self._filters.check(source.text[-FILTERED_CHARS:] + new)
            async with conversation.order_lock:
                await _write_rest(live)
                if new is not None:
                    await self._take(conversation, live, interpretation, new, final=growth.final)
        return Grown(
            turn_id=live.record.turn_id, chars=len(source.text), final=source.is_final, already=new is None
        )

    @staticmethod
    async def _take(
        conversation: Conversation,
        live: Turn,
        interpretation: Interpretation,
        new: str,
        *,
        final: bool,
    ) -> None:
        if live.turn.is_over or live.journal is None:
            raise Conflict(_OVER)
        event = SourceText(
            conversation_id=conversation.conversation_id,
            turn_id=live.record.turn_id,
            seq=conversation.next_seq(),
            off=len(interpretation.source.text),
            text=new,
            final=final,
        )
        interpretation.grow(new, final=final)
        live.record = msgspec.structs.replace(live.record, interprets=interpretation.state())
        try:
            saved = await live.journal.write(event, _patch(live, interpretation))
        except StoreFault:
            conversation.publish_control(event)  # the reader knows as much as this replica
            raise
        conversation.publish_control(event)
        if not saved:
            raise StoreDown(_LATE)


async def _write_rest(live: Turn) -> None:
    """Write earlier events, which may include this growth. Raises StoreDown if that is impossible now."""
    if live.journal is not None and not live.turn.is_over and not await live.journal.catch_up():
        raise StoreDown(_LATE)


def _patch(live: Turn, interpretation: Interpretation) -> bytes:
    """Return what the history has of the source from now on, and the turn's progress in case this replica dies."""
    message = interpretation.message
    kept = [f"message:{message.message_id}", encode_message(message).decode()]
    live.settled = live.record.interprets.off if live.record.interprets is not None else 0
    return msgspec.json.encode(
        {"set": [*kept, f"turn:{live.record.turn_id}", encode_turn(live.record).decode()]}
    )


IDLE_S = 600.0
"""A source that does not grow for so long ends its turn by `timeout`, since it takes a place that others need."""
PAUSE_S = 1.0
"""How long a source must pause after a sentence's end to close the sentence, whatever may follow."""
TRIES = 3
"""How often in a row the engine may be lost."""


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

    async def outcome(self, run: Generation, request: Request) -> Outcome:
        """Tell a run its translation; return how it ended. Raises OwnershipLost if the run does."""
        return await guarded_outcome(run, self._in_time(run, request))

    async def _in_time(self, run: Generation, request: Request) -> Outcome:
        usage = _TurnUsage()
        try:
            ended = await run.engine.in_time(self._interpret(run, request, usage))
            if ended is None:  # the engine does not confirm that it has stopped
                usage.steps_after = None
        finally:
            run.turn.count = usage.count()
        return ended or Outcome(Reason.CANCELLED)

    async def _interpret(self, run: Generation, request: Request, usage: _TurnUsage) -> Outcome:
        interpretation, losses = run.interpretation, 0
        pieces = FilteredReplyStream(run, self._filters)
        await pieces.begin()
        while not run.engine.stopping.is_set():
            if (ask := await self._next(run)) is None:
                if run.engine.stopping.is_set():
                    break
                await pieces.finish()
                done = Reason.STOP if interpretation.is_done else Reason.TIMEOUT
                return Outcome(Reason.FILTERED if pieces.filtered else done)
            try:
                ended = await self._decode(run, request, ask, pieces, usage)
            except EngineLost:
                losses += 1
                if losses == TRIES or run.engine.stopping.is_set():
                    raise
                run.retry()
                continue
            losses = 0
            if ended is not None:
                return ended
        return Outcome(Reason.FILTERED if pieces.filtered else Reason.CANCELLED)

    async def _next(self, run: Generation) -> SegmentDecode | None:
        """Wait for something to decode; None if all is translated, or the source does not grow for too long."""
        interpretation, stopping = run.interpretation, run.engine.stopping
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
        run: Generation,
        request: Request,
        ask: SegmentDecode,
        pieces: FilteredReplyStream,
        usage: _TurnUsage,
    ) -> Outcome | None:
        """Decode a segment until its end or until the source grows; return an outcome only if it ends the turn."""
        interpretation = run.interpretation
        if run.engine.stopping.is_set():
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
        stream = run.engine.stream = self._engine.generate(engine_request)
        interpretation.begin(ask, stream)
        whole = has_end = False
        try:
            finished = await self._read_outputs(run, stream, pieces, usage)
            whole = finished.reason in (FinishReason.STOP, FinishReason.LENGTH) or usage.is_overlong
            has_end = whole and (ask.is_closed or finished.reason is FinishReason.STOP)
        finally:
            rest = interpretation.end(finished=has_end, enough=whole)
        usage.add(finished, stopping=run.engine.stopping.is_set())
        if whole:
            await self._publish(run, pieces, rest, usage)
        is_long = finished.reason is FinishReason.LENGTH and ask.is_closed
        if is_long and not interpretation.translation.committed_in_segment:  # it only reasoned
            return outcome_of(run.turn, finished)
        if whole and ask.is_closed:
            interpretation.translation.settle(ask)
            run.settle()
        if whole or finished.reason is FinishReason.CANCELLED:
            return None
        return outcome_of(run.turn, finished)

    async def _read_outputs(
        self,
        run: Generation,
        stream: OutputStream,
        pieces: FilteredReplyStream,
        usage: _TurnUsage,
    ) -> Finished:
        """Take all of the engine's outputs. Raises EngineLost."""
        async for output in stream:
            match output:
                case Chunk():
                    await self._take_chunk(run, pieces, output, usage)
                case Finished():
                    return output
                case Queued() | Retried() | Prefilling() | Started():
                    self._report(run, output)
                case Reasoning() | ToolCallOutput():  # not a part of a translation
                    pass
                case _:
                    assert_never(output)
        raise EngineLost("The engine's stream has no end.")

    async def _take_chunk(
        self, run: Generation, pieces: FilteredReplyStream, chunk: Chunk, usage: _TurnUsage
    ) -> None:
        translation = run.interpretation.translation
        committed = run.interpretation.extend(chunk.text)
        usage.extend(translation.hypothesis_chars, chunk.tokens)
        await self._publish(run, pieces, committed, usage)
        if (translation.is_enough or usage.is_overlong) and run.engine.stream is not None:
            run.engine.stream.cancel()

    @staticmethod
    async def _publish(run: Generation, pieces: FilteredReplyStream, text: str, usage: _TurnUsage) -> None:
        if text:
            tokens = usage.commit(run.interpretation.translation.committed_in_segment)
            await pieces.take(Chunk(run.turn.ids.turn_id, text, tokens))

    @staticmethod
    def _report(run: Generation, report: Queued | Retried | Prefilling | Started) -> None:
        if not run.turn.has_begun:
            run.report(report)
        if isinstance(report, Started):
            run.turn.start(
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
