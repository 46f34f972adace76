"""An engine whose replies are scripts, for tests with exact timing and benchmarks of the gateway. It ships with the product.

It behaves like the real one to its callers (waiting, merging, cancels, deaths), but has no model and no process.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import assert_never

import msgspec

from engine.api import EngineState, Streamer
from engine.errors import EngineLost, PromptRejected
from engine.messages import (
    PLAIN,
    REPLY_TOKENS,
    ChosenToken,
    Chunk,
    EngineStatistics,
    Finished,
    FinishReason,
    Message,
    ModelFacts,
    Output,
    Params,
    Prefilling,
    Queued,
    Reasoning,
    Regex,
    ReplySpec,
    Request,
    Started,
    TokenLogprob,
    ToolCallOutput,
)
from engine.process.supervision import Lifecycle, SingleEngine
from engine.text.reply_text import Thought

_WORDS = re.compile(r"\s*\S+|\s+")


class Call(msgspec.Struct, frozen=True):
    """A call of a tool. `arguments`: the text of a JSON object. `call_id`: the one that an upstream would give."""

    name: str
    arguments: str = "{}"
    call_id: str = ""


Step = str | Thought | Call


def words_of(text: str) -> list[str]:
    """Return a text's words, each with the space before it."""
    return _WORDS.findall(text)


def count_words(messages: Sequence[Message], spec: ReplySpec = PLAIN) -> int:
    """Return the scripted tokenizer's count: the words of messages and tools, plus four for each of either."""
    calls = [call for message in messages for call in message.calls]
    texts = [message.content for message in messages] + [message.reasoning for message in messages]
    texts += [f"{call.name} {call.arguments}" for call in calls]
    texts += [f"{tool.name} {tool.description} {tool.parameters}" for tool in spec.shown_tools]
    return sum(len(text.split()) for text in texts) + 4 * (len(messages) + len(spec.shown_tools))


def refuse_bad_format(spec: ReplySpec) -> None:
    """Raise PromptRejected for an invalid regular expression, like an engine that can't compile it."""
    if isinstance(spec.format, Regex):
        try:
            re.compile(spec.format.pattern)
        except re.error as error:
            raise PromptRejected(
                f"The format's pattern can't be compiled: {error}.", field="format"
            ) from error


@dataclass(slots=True, eq=False)
class ScriptedReply:
    """One request of the scripted engine.

    `computed`: how many tokens of the prompt are done. `position`: the last reported place in the queue.
    """

    request: Request
    stream: Streamer
    prompt_tokens: int
    max_new_tokens: int
    script: Sequence[Step]
    played: list[Step] = field(default_factory=list)
    cached: int = 0
    computed: int = 0
    generated: int = 0
    position: int | None = None
    started: bool = False
    cancelled: bool = False

    @property
    def prefilled(self) -> bool:
        """Whether the whole prompt is computed."""
        return self.computed >= self.prompt_tokens

    def report_position(self, position: int) -> None:
        """Emit the place in the queue, if it has changed."""
        if position != self.position:
            self.position = position
            self.stream.put_nowait(Queued(self.request.request_id, position))

    def start(self, cached: int) -> None:
        """Leave the queue, with `cached` tokens of the prompt known. The prompt's last one is always computed."""
        self.started = True
        self.cached = self.computed = max(0, min(cached, self.prompt_tokens - 1))
        self.stream.put_nowait(Started(self.request.request_id, self.prompt_tokens, self.cached))

    def prefill(self, tokens: int | None) -> None:
        """Compute `tokens` tokens of the prompt, or the rest if None. Reports progress until the prompt is done."""
        left = self.prompt_tokens - self.computed
        self.computed += left if tokens is None else min(tokens, left)
        if not self.prefilled:
            progress = self.computed / self.prompt_tokens
            self.stream.put_nowait(Prefilling(self.request.request_id, progress))

    def emit(self) -> None:
        """Emit the script's next piece, which is one token."""
        step = self.script[len(self.played)]
        self.played.append(step)
        request_id = self.request.request_id
        match step:
            case Thought():
                output: Output = Reasoning(request_id, step.text, 1)
            case Call():
                output = ToolCallOutput(request_id, step.name, step.arguments, 1, step.call_id)
            case str():
                output = self._chunk(step)
            case _:
                assert_never(step)
        self.stream.put_nowait(output)

    def _chunk(self, text: str) -> Chunk:
        """Return text as a chunk. If log-probabilities were requested, its token has probability 1, and no alternatives."""
        logprobs: tuple[ChosenToken, ...] = ()
        if (top := self.request.params.top_logprobs) is not None:
            token = TokenLogprob(text, 0.0, text.encode())
            end = sum(len(step) for step in self.played if isinstance(step, str))
            logprobs = (ChosenToken(token, (token,)[:top], end),)
        return Chunk(self.request.request_id, text, 1, logprobs)

    def finish(
        self, reason: FinishReason, *, steps_after: int | None = None, error: str | None = None
    ) -> None:
        """Emit the end."""
        counts = (self.prompt_tokens, self.cached, self.generated)
        self.stream.put_nowait(
            Finished(self.request.request_id, reason, *counts, steps_after=steps_after, error=error)
        )


FEATURES = ("tools", "format", "reasoning", "effort", "template", "continue")
"""All features, since a script does not depend on them."""


class ScriptedEngine(SingleEngine):
    """An `Engine` that plays scripts: text, thoughts and calls, whatever was requested. Each piece is one token.

    Without `by_hand` it steps by itself, at each turn of the event loop or every `pace_s` seconds. Like a separate
    process, it makes up for a step that the event loop was late for, but for no more than one.
    With `by_hand` only `step` makes it move, except that cancels are confirmed at the loop's next turn.
    With `hold_cancels` cancels wait for a `step`, which then counts as the one already under way.

    At most `max_batch` requests play at once; the others queue. A step computes `prefill_tokens` tokens of a prompt, or
    all if it is None. The first `cached_tokens` of every prompt count as cached by an earlier turn.
    """

    def __init__(
        self,
        *,
        context_tokens: int = 4096,
        reply_tokens: int = REPLY_TOKENS,
        reply: str = "This reply was written before it was asked for.",
        by_hand: bool = False,
        pace_s: float = 0.0,
        max_batch: int = 1_000_000,
        features: tuple[str, ...] = FEATURES,
    ) -> None:
        """Make a ready engine. `reply` is played if no `script` is queued. `features`: as in `ModelFacts`."""
        self.hold_cancels = False
        self.prefill_tokens: int | None = None
        self.cached_tokens = 0
        self.requests: list[Request] = []
        self._reply = reply
        self._by_hand = by_hand
        self._pace_s = pace_s
        self._scripts: deque[Sequence[Step]] = deque()
        self._runs: dict[str, ScriptedReply] = {}
        self._tick: asyncio.Handle | None = None
        self._due = 0.0  # when the next step is, by the event loop's clock
        self._life = Lifecycle()
        self._facts = ModelFacts(
            model="scripted",
            context_tokens=context_tokens,
            defaults=Params(max_new_tokens=reply_tokens, do_sample=False),
            device="none",
            dtype="none",
            max_batch=max_batch,
            parameters=0,
            features=features,
        )
        self._counts: Counter[str] = Counter()
        self._life.loaded(self._facts)

    @property
    def facts(self) -> ModelFacts | None:
        """Facts about the scripted model."""
        return self._facts

    async def count_tokens(
        self,
        messages: Sequence[Message],
        *,
        client: str = "",  # noqa: ARG002 - counts never wait here
        spec: ReplySpec = PLAIN,
    ) -> int:
        """Count words, plus four for each message and tool.

        Raises PromptRejected if there is no message, or if a regular expression is invalid; EngineUnavailable.
        """
        await self.ready()
        if not messages:
            raise PromptRejected("There is no message to answer.")
        refuse_bad_format(spec)
        return count_words(messages, spec)

    def generate(self, request: Request) -> Streamer:
        """Start the next script for this request. Raises EngineUnavailable, ValueError as `Engine.generate` does."""
        self._life.refuse_when_over()
        if request.request_id in self._runs:
            raise ValueError(f"request {request.request_id!r} is still open")
        self.requests.append(request)
        stream = Streamer(request.request_id, self._cancel)
        script = self._scripts.popleft() if self._scripts else words_of(self._reply)
        prompt_tokens = count_words(request.messages, request.spec)
        requested = request.params.max_new_tokens or self._facts.defaults.max_new_tokens or REPLY_TOKENS
        self._runs[request.request_id] = ScriptedReply(
            request,
            stream,
            prompt_tokens=prompt_tokens,
            max_new_tokens=min(requested, self._facts.context_tokens - prompt_tokens),
            script=script,
        )
        self._report_positions()
        self._keep_ticking()
        return stream

    def statistics(self) -> EngineStatistics:
        """Return the numbers so far."""
        running = sum(run.started for run in self._runs.values())
        return EngineStatistics(running=running, queued=len(self._runs) - running, **self._counts)

    async def run(self) -> None:
        """Wait until this is cancelled. Scripts are played without it."""
        await asyncio.Event().wait()

    def script(self, reply: str | Sequence[Step]) -> None:
        """Queue the reply to the next request: text, which is played word by word, or pieces of text, thoughts and calls."""
        self._scripts.append(words_of(reply) if isinstance(reply, str) else tuple(reply))

    def step(self, steps: int = 1) -> None:
        """Make one token for every request of the batch, `steps` times. Nothing happens while the engine is not ready."""
        for _ in range(steps if self._ready else 0):
            self._counts["steps"] += 1
            for run in list(islice(self._runs.values(), self._facts.max_batch)):
                self._advance(run)

    def die(self, why: str = "The engine's process died.", *, revive: bool = True) -> None:
        """Lose all open requests, as a killed process does. Without `revive`, further requests wait."""
        self._life.died(why)
        self._lose_all(why)
        if revive:
            self.revive()

    def revive(self) -> None:
        """Serve again after `die`. Requests that waited begin."""
        self._life.loaded(self._facts)
        self._keep_ticking()

    def fail(self, why: str = "The engine crashed too often.") -> None:
        """Give up, as after a crash loop."""
        self._life.failed(why)
        self._lose_all(why)

    def stop(self) -> None:
        """Stop for good."""
        self._life.stopped()
        self._lose_all("The engine is stopped.")

    @property
    def _ready(self) -> bool:
        return self._life.status.state is EngineState.READY

    def _lose_all(self, why: str) -> None:
        for run in list(self._runs.values()):
            del self._runs[run.request.request_id]
            run.stream.fail(EngineLost(why))

    def _advance(self, run: ScriptedReply) -> None:
        if run.cancelled:
            self._confirm_cancel(run, steps_after=1)
        elif run.prompt_tokens >= self._facts.context_tokens:
            self._finish(run, FinishReason.ERROR, error="The prompt is longer than the model's window.")
        else:
            self._play(run)

    def _play(self, run: ScriptedReply) -> None:
        if not run.started:
            run.start(self.cached_tokens)
            self._counts["cached_tokens"] += run.cached
        if not run.prefilled:
            before = run.computed
            run.prefill(self.prefill_tokens)
            self._counts["prompt_tokens"] += run.computed - before
        if not run.prefilled:
            return
        run.generated += 1
        self._counts["generated_tokens"] += 1
        if len(run.played) >= len(run.script):
            self._finish(run, FinishReason.STOP)
            return
        run.emit()
        if run.generated >= run.max_new_tokens:
            self._finish(run, FinishReason.LENGTH)

    def _cancel(self, request_id: str) -> None:
        run = self._runs[request_id]
        run.cancelled = True
        if not self.hold_cancels:
            asyncio.get_running_loop().call_soon(self._confirm_cancel, run)

    def _confirm_cancel(self, run: ScriptedReply, steps_after: int = 0) -> None:
        if not run.stream.closed:
            self._counts.update(cancels=1, steps_after_cancel=steps_after)
            self._finish(run, FinishReason.CANCELLED, steps_after=steps_after)

    def _finish(
        self,
        run: ScriptedReply,
        reason: FinishReason,
        *,
        steps_after: int | None = None,
        error: str | None = None,
    ) -> None:
        del self._runs[run.request.request_id]
        self._report_positions()
        run.finish(reason, steps_after=steps_after, error=error)

    def _report_positions(self) -> None:
        waiting = islice(self._runs.values(), self._facts.max_batch, None)
        for position, run in enumerate(waiting, start=1):
            run.report_position(position)

    def _keep_ticking(self, late_s: float = 0.0) -> None:
        idle = not self._runs or not self._ready
        if self._by_hand or idle or self._tick is not None:
            return
        loop = asyncio.get_running_loop()
        again = self._step_itself
        if not self._pace_s:
            self._tick = loop.call_soon(again)
            return
        self._due = loop.time() + max(self._pace_s - late_s, 0.0)
        self._tick = loop.call_at(self._due, again)

    def _step_itself(self) -> None:
        self._tick = None
        self.step()
        self._keep_ticking(late_s=asyncio.get_running_loop().time() - self._due if self._pace_s else 0.0)
