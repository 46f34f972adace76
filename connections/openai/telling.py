"""A turn in OpenAI's words: chunks of a stream (server-sent events), a whole reply, its totals, or the problem that ended it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from connections.openai import wire
from connections.openai.problems import Problem, problem_in
from connections.openai.wire import (
    Choice,
    Chunk,
    ChunkChoice,
    Completion,
    Delta,
    FinishReason,
    LikelyToken,
    Logprobs,
    Reply,
    ReplyToken,
)
from engine.messages import ChosenToken, TokenLogprob
from sessions.errors import Draining
from sessions.events import Done, Failure, Reason

END = b"data: [DONE]\n\n"

_REASONS: dict[Reason, FinishReason] = {
    Reason.STOP: "stop",
    Reason.LENGTH: "length",
    Reason.TIMEOUT: "length",
    Reason.FILTERED: "content_filter",
}
_STOPPED = Failure(code=Draining.code, message="The server is about to stop: the reply was interrupted.")

_encode = msgspec.json.Encoder().encode


class Telling(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same in all that is told of one turn. `created`: Unix seconds; `usage`: a stream tells its totals.

    `logprobs`: text comes with what is told of its tokens, which may be nothing: some leave with a later text.
    """

    turn_id: str
    model: str
    created: int
    usage: bool = False
    logprobs: bool = False

    def begin(self) -> bytes:
        """The first chunk."""
        return self._event(ChunkChoice(Delta(role="assistant", content="")))

    def text(self, text: str, tokens: Sequence[ChosenToken] = ()) -> bytes:
        """A chunk with text."""
        return self._event(ChunkChoice(Delta(content=text), logprobs=self._logprobs(tokens)))

    def end(self, done: Done) -> bytes:
        """What comes last: the reason, the totals where they were asked for, and the end or the problem."""
        problem = problem_at(done)
        reason = b"" if problem else self._event(ChunkChoice(Delta(), finish_reason=_REASONS[done.reason]))
        totals = self._totals(done) if self.usage else b""
        last = b"event: error\ndata: " + problem.body + b"\n\n" if problem else END
        return reason + totals + last

    def whole(self, text: str, done: Done, tokens: Sequence[ChosenToken] = ()) -> bytes:
        """A reply that came whole, as JSON. Raises Problem where it did not."""
        if (problem := problem_at(done)) is not None:
            raise problem
        return _encode(
            Completion(
                id=self._id,
                created=self.created,
                model=self.model,
                choices=(Choice(Reply(text), _REASONS[done.reason], logprobs=self._logprobs(tokens)),),
                usage=usage_of(done),
            )
        )

    @property
    def _id(self) -> str:
        return f"chatcmpl-{self.turn_id.removeprefix('turn_')}"

    def _logprobs(self, tokens: Sequence[ChosenToken]) -> Logprobs | None:
        return Logprobs(tuple(map(_reply_token, tokens))) if self.logprobs else None

    def _event(self, *choices: ChunkChoice, totals: wire.Usage | None = None) -> bytes:
        usage = totals if self.usage else msgspec.UNSET
        chunk = Chunk(id=self._id, created=self.created, model=self.model, choices=choices, usage=usage)
        return b"data: " + _encode(chunk) + b"\n\n"

    def _totals(self, done: Done) -> bytes:
        return self._event(totals=usage_of(done))


def _reply_token(token: ChosenToken) -> ReplyToken:
    chosen = _likely(token.chosen)
    return ReplyToken(chosen.token, chosen.logprob, chosen.bytes, tuple(map(_likely, token.top)))


def _likely(token: TokenLogprob) -> LikelyToken:
    return LikelyToken(token.token, token.logprob, None if token.raw is None else tuple(token.raw))


def usage_of(done: Done) -> wire.Usage:
    """The totals of an ended turn."""
    prompt, generated = done.usage.prompt_tokens, done.usage.generated_tokens
    return wire.Usage(prompt, generated, prompt + generated, wire.PromptTokens(done.usage.cached_tokens))


def problem_at(done: Done) -> Problem | None:
    """Why a reply has no regular end; None where it has one."""
    return None if done.reason in _REASONS else problem_in(done.error or _STOPPED)
