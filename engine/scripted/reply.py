"""One request of the scripted engine: its place in the queue, the progress of its prompt, and the rest of its script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from engine.messages import (
    ChosenToken,
    Chunk,
    Finished,
    FinishReason,
    Output,
    Prefilling,
    Queued,
    Reasoning,
    Request,
    Started,
    TokenLogprob,
    ToolCallOutput,
)
from engine.scripted.steps import Call, Step, Thought, as_written
from engine.streamer import Streamer


class ScriptedReply:
    """`computed`: how many tokens of the prompt are done. `position`: the place in the queue that was told last."""

    def __init__(
        self,
        request: Request,
        stream: Streamer,
        *,
        prompt_tokens: int,
        max_new_tokens: int,
        script: Sequence[Step],
    ) -> None:
        self.request = request
        self.stream = stream
        self.prompt_tokens = prompt_tokens
        self.max_new_tokens = max_new_tokens
        self.script = script
        self.played: list[Step] = []
        self.cached = 0
        self.computed = 0
        self.generated = 0
        self.position: int | None = None
        self.started = False
        self.cancelled = False

    @property
    def prefilled(self) -> bool:
        """Whether the whole prompt is computed."""
        return self.computed >= self.prompt_tokens

    @property
    def is_played(self) -> bool:
        """Whether the whole script was played."""
        return len(self.played) >= len(self.script)

    def report_position(self, position: int) -> None:
        """Tell the place in the queue, if it has changed."""
        if position != self.position:
            self.position = position
            self.stream.put_nowait(Queued(self.request.request_id, position))

    def start(self, cached: int) -> None:
        """Leave the queue, with `cached` tokens of the prompt known. The last one is always computed."""
        self.started = True
        self.cached = self.computed = max(0, min(cached, self.prompt_tokens - 1))
        self.stream.put_nowait(Started(self.request.request_id, self.prompt_tokens, self.cached))

    def prefill(self, tokens: int | None) -> None:
        """Compute `tokens` tokens of the prompt, or the rest if it is None. Before its end, tell how far it is."""
        left = self.prompt_tokens - self.computed
        self.computed += left if tokens is None else min(tokens, left)
        if not self.prefilled:
            progress = self.computed / self.prompt_tokens
            self.stream.put_nowait(Prefilling(self.request.request_id, progress))

    def emit(self) -> None:
        """Tell the script's next piece, which is one token."""
        step = self.script[len(self.played)]
        self.played.append(step)
        self.stream.put_nowait(self._output(step))

    def _output(self, step: Step) -> Output:
        request_id = self.request.request_id
        match step:
            case Thought():
                return Reasoning(request_id, step.text, 1)
            case Call():
                return ToolCallOutput(request_id, step.name, step.arguments, 1, step.call_id)
            case str():
                return self._chunk(step)
            case _:
                assert_never(step)

    def _chunk(self, text: str) -> Chunk:
        """Return text. If log-probabilities were asked for, its token has probability 1, and no alternatives."""
        logprobs: tuple[ChosenToken, ...] = ()
        if (top := self.request.params.top_logprobs) is not None:
            token = TokenLogprob(text, 0.0, text.encode())
            end = sum(len(step) for step in self.played if isinstance(step, str))
            logprobs = (ChosenToken(token, (token,)[:top], end),)
        return Chunk(self.request.request_id, text, 1, logprobs)

    def finish(
        self, reason: FinishReason, *, steps_after: int | None = None, error: str | None = None
    ) -> None:
        """Tell the end."""
        counts = (self.prompt_tokens, self.cached, self.generated)
        end = Finished(
            self.request.request_id,
            reason,
            *counts,
            steps_after=steps_after,
            error=error,
            written=as_written(self.played),
        )
        self.stream.put_nowait(end)
