"""Common parts of the endpoints for replies: the client, its rights, and its replies, as a stream of events or whole."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import ClassVar, Protocol, TypeVar

from starlette.responses import Response

from connections.http.exchange import Exchange
from connections.http.refusal_counters import EndpointName
from connections.limits.caller import Caller
from connections.openai.chat_encoder import ChatCompletionsEncoder
from connections.openai.completions_encoder import CompletionsEncoder
from connections.openai.endpoint import HttpEndpoint
from connections.openai.parser import (
    chat_turn_request,
    completion_turn_requests,
    field_names,
    parse_chat_request,
    parse_completion_request,
)
from connections.openai.problems import Problem, with_client_field
from connections.openai.request_context import RequestContext
from connections.openai.requests.models import BaseRequest, ChatRequest, CompletionRequest
from connections.openai.requests.reasoning import shows_reasoning
from connections.protocol.server_info import Limits
from engine.messages import ToolCall
from sessions.errors import BadParams
from sessions.events import Done
from sessions.running.ephemeral import EphemeralRequest, Piece, ReplySet
from sessions.service import Sessions

IGNORED_HEADER = "X-Midstream-Ignored"
"""The header with the ignored fields of a request: hints, and tools that can't be called if the operator allows that."""

R = TypeVar("R", bound=BaseRequest)


class ReplyEncoder(Protocol):
    """Converts replies for an endpoint; see `ChatCompletionsEncoder`."""

    def begin(self, number: int, model: str) -> bytes:
        """Return the beginning of a reply."""

    def piece(self, number: int, model: str, piece: Piece, calls: int) -> bytes:
        """Return a piece of a reply, possibly empty."""

    def end(self, number: int, model: str, done: Done) -> bytes:
        """Return the end of a reply. Raises Problem if it is not a regular one."""

    def close(self, model: str, ends: Sequence[Done], prompts: Sequence[int]) -> bytes:
        """Return the end of the stream."""

    def fail(self, model: str, problem: Problem, ends: Sequence[Done], prompts: Sequence[int]) -> bytes:
        """Return the end of the stream if a reply has no regular end."""

    def whole(
        self, model: str, replies: Sequence[tuple[Sequence[Piece], Done]], prompts: Sequence[int]
    ) -> bytes:
        """Return all replies. Raises Problem if one has no regular end."""


class GenerationEndpoint(HttpEndpoint[R]):
    """Answers requests. A client that leaves stops its turns."""

    def __init__(self, sessions: Sessions, request_context: RequestContext) -> None:
        super().__init__(request_context)
        self._sessions = sessions

    @abstractmethod
    def turn_requests(self, request: R, limits: Limits) -> list[EphemeralRequest]:
        """Return what turns are asked. Raises Refused."""

    @abstractmethod
    def encoder(self, request: R, turn_id: str, created: int) -> ReplyEncoder:
        """Return what converts the replies."""

    async def serve(self, exchange: Exchange, caller: Caller, request: R, body_lease: ExitStack) -> None:
        """Have turns write the replies. Raises Refused."""
        turn_requests = await self._build_requests(exchange, caller, request)
        await self._count(caller, turn_requests)
        try:
            replies = await self._sessions.ephemeral.answers(caller.owner, turn_requests)
        except BadParams as refused:
            raise with_client_field(refused, field_names(request)) from None
        body_lease.close()
        encoder = self.encoder(request, replies.first.turn_id, int(time.time()))
        prompts = list(_prompt_numbers(turn_requests))
        try:
            await (_send_stream if request.stream else _send_complete)(exchange, replies, encoder, prompts)
        finally:
            replies.cancel()

    async def _build_requests(self, exchange: Exchange, caller: Caller, request: R) -> list[EphemeralRequest]:
        model = self.request_context.model(request.model, caller.grant)
        limits = await self.request_context.limits(model)
        turn_requests = await self.request_context.run_in_thread(
            exchange, lambda: self.turn_requests(request, limits)
        )
        return [
            self.request_context.for_caller(caller, ask, model, field_names(request)) for ask in turn_requests
        ]

    async def _count(self, caller: Caller, turn_requests: Sequence[EphemeralRequest]) -> None:
        """Count each reply as a message; one was counted when the request came. Raises RateLimited."""
        replies = sum(ask.replies for ask in turn_requests)
        self.request_context.take(caller, replies - 1)
        await self.request_context.count(caller, replies)


def _prompt_numbers(turn_requests: Sequence[EphemeralRequest]) -> Iterator[int]:
    """Return the number of its prompt for each reply."""
    for number, ask in enumerate(turn_requests):
        yield from [number] * ask.replies


def _headers(replies: ReplySet) -> dict[str, str]:
    return {IGNORED_HEADER: ", ".join(replies.first.ignored)} if replies.first.ignored else {}


async def _send_stream(
    exchange: Exchange, replies: ReplySet, encoder: ReplyEncoder, prompts: Sequence[int]
) -> None:
    replies.on_overflow(exchange.cut_off)
    await exchange.begin_events(replies.first.turn_id, _headers(replies))
    first = (encoder.begin(number, reply.model) for number, reply in enumerate(replies.all))
    await exchange.write(b"".join(first))
    last = await _send_pieces(exchange, replies, encoder, prompts)
    await exchange.write(last, more=False)


async def _send_pieces(
    exchange: Exchange, replies: ReplySet, encoder: ReplyEncoder, prompts: Sequence[int]
) -> bytes:
    """Send all pieces; return the end of the stream, with the replies' ends that nothing followed."""
    calls, ended = [0] * len(replies), b""
    try:
        async for number, piece in replies:
            model = replies[number].model  # a fallback may answer
            if piece is None:
                ended += encoder.end(number, model, replies[number].ended)
                continue
            part = ended + encoder.piece(number, model, piece, calls[number])
            calls[number] += isinstance(piece, ToolCall)
            ended = b""
            if part:
                await exchange.write(part)
    except Problem as problem:
        return ended + encoder.fail(replies.first.model, problem, *_ended_replies(replies, prompts))
    return ended + encoder.close(replies.first.model, *_ended_replies(replies, prompts))


def _ended_replies(replies: ReplySet, prompts: Sequence[int]) -> tuple[list[Done], list[int]]:
    """Return the ends so far, and the numbers of their prompts."""
    ended = [(reply.done, prompt) for reply, prompt in zip(replies.all, prompts, strict=True) if reply.done]
    return [done for done, _ in ended], [prompt for _, prompt in ended]


async def _send_complete(
    exchange: Exchange, replies: ReplySet, encoder: ReplyEncoder, prompts: Sequence[int]
) -> None:
    """Send all replies at once. Raises Problem if a reply has no regular end."""
    pieces: list[list[Piece]] = [[] for _ in replies.all]
    async for number, piece in replies:
        if piece is None:
            encoder.end(number, replies[number].model, replies[number].ended)
        else:
            pieces[number].append(piece)
    complete = [(some, reply.ended) for some, reply in zip(pieces, replies.all, strict=True)]
    body = encoder.whole(replies.first.model, complete, prompts)
    headers = {"Cache-Control": "no-store", "X-Request-Id": replies.first.turn_id, **_headers(replies)}
    await exchange.answer(Response(body, headers=headers, media_type="application/json"))


class ChatCompletionsEndpoint(GenerationEndpoint[ChatRequest]):
    """`POST /v1/chat/completions`."""

    endpoint: ClassVar[EndpointName] = EndpointName.CHAT

    def read(self, body: bytes) -> ChatRequest:
        """Return the request in a body. Raises Problem, TooManyValues."""
        return parse_chat_request(body)

    def turn_requests(self, request: ChatRequest, limits: Limits) -> list[EphemeralRequest]:
        """Return what the turns are asked. Raises Problem."""
        return [chat_turn_request(request, limits)]

    def encoder(self, request: ChatRequest, turn_id: str, created: int) -> ChatCompletionsEncoder:
        """Return what converts the replies."""
        return ChatCompletionsEncoder(
            turn_id=turn_id,
            created=created,
            usage=request.includes_usage,
            logprobs=bool(request.logprobs),
            reasoning=shows_reasoning(request),
        )


class CompletionsEndpoint(GenerationEndpoint[CompletionRequest]):
    """`POST /v1/completions`: prompts without a chat template."""

    endpoint: ClassVar[EndpointName] = EndpointName.COMPLETIONS

    def read(self, body: bytes) -> CompletionRequest:
        """Return the request in a body. Raises Problem, TooManyValues."""
        return parse_completion_request(body)

    def turn_requests(self, request: CompletionRequest, limits: Limits) -> list[EphemeralRequest]:
        """Return what the turns are asked. Raises Problem."""
        return completion_turn_requests(request, limits)

    def encoder(self, request: CompletionRequest, turn_id: str, created: int) -> CompletionsEncoder:
        """Return what converts the texts."""
        return CompletionsEncoder(
            turn_id=turn_id,
            created=created,
            usage=request.includes_usage,
            logprobs=request.logprobs is not None,
        )
