"""Replies as several APIs send them: a stream of server-sent events, how it ended, and its tokens' log-probabilities."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from connections.api.errors import Problem, problem_from_failure
from connections.http import Exchange
from engine.messages import ChosenToken, TokenLogprob
from sessions.errors import Draining, Forbidden, Refused
from sessions.events import Cause, Done, Failure, Reason

PING_S = 10.0
"""Pause before a ping: proxies and clients take a silent stream for dead."""
SERVER_STOPPING = Failure(
    code=Draining.code, message="The server is about to stop: the reply was interrupted."
)
_OPERATOR_ENDED = Failure(code=Forbidden.code, message="The operator ended this reply.")
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
_FINISH_REASONS: dict[Reason, FinishReason] = {
    Reason.STOP: "stop",
    Reason.TOOLS: "tool_calls",
    Reason.LENGTH: "length",
    Reason.TIMEOUT: "length",
    Reason.FILTERED: "content_filter",
}

P_co = TypeVar("P_co", covariant=True)
P_contra = TypeVar("P_contra", contravariant=True)
R_contra = TypeVar("R_contra", contravariant=True)


class ReplySource(Protocol[P_co]):
    """A reply that is being written, of a stored turn or another."""

    cut_off: Callable[[], None]

    @property
    def turn_id(self) -> str:
        """Its turn's id."""

    @property
    def model(self) -> str:
        """The model that writes it."""

    @property
    def ignored(self) -> tuple[str, ...]:
        """The ignored fields of its request."""

    @property
    def ended(self) -> Done:
        """Its end."""

    def get_nowait(self) -> P_co | None:
        """Return the next piece, or None. Raises StopAsyncIteration at the end."""

    async def __anext__(self) -> P_co: ...


R = TypeVar("R", bound=ReplySource[Any])


class StreamEncoder(Protocol[P_contra, R_contra]):
    """Converts a reply for an endpoint. Each method may return nothing."""

    def open(self) -> bytes:
        """Return what is sent at once."""

    def begin(self, reply: R_contra) -> bytes:
        """Return what is sent once the model has read its prompt, before any text."""

    def piece(self, piece: P_contra) -> bytes:
        """Return a piece of the reply."""

    def end(self, reply: R_contra) -> bytes:
        """Return the end, of any kind; `begin` was called only if a piece came."""

    def fail(self, refused: Refused) -> bytes:
        """Return the end of a reply that can't be sent to its end."""

    def ping(self) -> bytes:
        """Return what is sent in a pause."""


async def stream_reply(
    exchange: Exchange, reply: R, encoder: StreamEncoder[Any, R], headers: Mapping[str, str]
) -> None:
    """Send the whole reply. A client that does not read is cut off."""
    reply.cut_off = exchange.cut_off
    await exchange.begin_events(reply.turn_id, headers)
    await _write(exchange, encoder.open())
    try:
        await _send_pieces(exchange, reply, encoder)
        last = encoder.end(reply)
    except Refused as refused:  # its conversation was deleted, or its events were lost
        last = encoder.fail(refused)
    await exchange.write(last, more=False)


async def _send_pieces(exchange: Exchange, reply: R, encoder: StreamEncoder[Any, R]) -> None:
    """Send the pieces. Raises Refused."""
    has_begun = False
    with suppress(StopAsyncIteration):
        while True:
            if (piece := await _next(reply)) is None:
                await _write(exchange, encoder.ping())
                continue
            first = b"" if has_begun else encoder.begin(reply)
            has_begun = True
            await _write(exchange, first + encoder.piece(piece))


async def _next(reply: ReplySource[Any]) -> Any:
    """Return the next piece; None if none comes in time. Raises StopAsyncIteration at the end."""
    if (piece := reply.get_nowait()) is not None:
        return piece
    try:
        async with asyncio.timeout(PING_S):
            return await reply.__anext__()
    except TimeoutError:
        return None


async def _write(exchange: Exchange, part: bytes) -> None:
    if part:
        await exchange.write(part)


def finish_reason(done: Done) -> FinishReason:
    """Return why a reply ended. Raises Problem if it has no regular end."""
    if (problem := problem_at_end(done)) is not None:
        raise problem
    return _FINISH_REASONS[done.reason]


def problem_at_end(done: Done) -> Problem | None:
    """Return why a reply has no regular end; None if it has one."""
    if done.reason in _FINISH_REASONS:
        return None
    by_operator = done.cancel is not None and done.cancel.cause is Cause.OPERATOR
    return problem_from_failure(done.error or (_OPERATOR_ENDED if by_operator else SERVER_STOPPING))


class LikelyToken(msgspec.Struct, frozen=True):
    """A token and the natural logarithm of its probability. Its bytes may be a part of a character; null: no text."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None


class ReplyToken(LikelyToken, frozen=True):
    """A token of a reply, and the likeliest ones at its place."""

    top_logprobs: tuple[LikelyToken, ...]


def reply_token(token: ChosenToken) -> ReplyToken:
    """Return a token with its log-probability."""
    chosen = _likely(token.chosen)
    return ReplyToken(chosen.token, chosen.logprob, chosen.bytes, tuple(map(_likely, token.top)))


def _likely(token: TokenLogprob) -> LikelyToken:
    return LikelyToken(token.token, token.logprob, None if token.raw is None else tuple(token.raw))
