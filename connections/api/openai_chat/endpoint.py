"""`POST /v1/chat/completions`, `POST /v1/completions` and `GET /v1/models`."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import ClassVar, TypeVar

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from connections.api.chat_requests import (
    BaseRequest,
    ChatRequest,
    CompletionRequest,
    chat_turn_request,
    completion_turn_requests,
    field_names,
    parse_chat_request,
    parse_completion_request,
    shows_reasoning,
)
from connections.api.endpoint import IGNORED_HEADER, HttpEndpoint, RequestContext
from connections.api.errors import Problem, with_client_field
from connections.api.openai_chat.encoder import (
    Architecture,
    ChatCompletionsEncoder,
    CompletionsEncoder,
    Model,
    Models,
)
from connections.authentication.caller import Caller
from connections.http.exchange import Exchange
from connections.http.json_responses import forbidden_origin
from connections.http.refusal_counters import EndpointName, RefusalCounters
from connections.middleware.origins import AllowedOrigins, CorsMiddleware
from connections.protocol.scopes import Grant
from connections.protocol.server_info import Limits
from engine.messages import ModelFacts, ToolCall
from engine.served_models import ServedModel
from sessions.errors import BadParams, Refused
from sessions.events import Done
from sessions.running.ephemeral import EphemeralRequest, Piece, ReplySet
from sessions.service import Sessions

R = TypeVar("R", bound=BaseRequest)


ReplyEncoder = ChatCompletionsEncoder | CompletionsEncoder


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


class ModelsEndpoint:
    """Answers requests."""

    def __init__(self, request_context: RequestContext) -> None:
        self._request_context = request_context
        self._created = int(time.time())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            response = await self._answer(Request(scope, receive))
        except Refused as refused:
            response = self._request_context.refusal(refused, EndpointName.MODELS)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        grant = (await self._request_context.caller(request)).grant
        name: str | None = request.path_params.get("model")
        answer: Model | Models
        if name is None:
            answer = Models(data=tuple(self._all(grant)))
        else:
            answer = self._shown(self._request_context.model(name, grant), name)
        body = msgspec.json.encode(answer)
        return Response(body, headers={"Cache-Control": "no-store"}, media_type="application/json")

    def _all(self, grant: Grant) -> Iterator[Model]:
        for model in self._request_context.models(grant):
            for name in (model.name, *model.aliases):
                yield self._shown(model, name)

    def _shown(self, model: ServedModel, name: str) -> Model:
        facts = model.engine.facts
        window = UNSET if facts is None else facts.context_tokens
        return Model(
            id=name,
            created=self._created,
            max_model_len=window,
            context_length=window,
            root=UNSET if name == model.name else model.name,
            languages=UNSET if facts is None or facts.languages is None else facts.languages,
            architecture=UNSET if facts is None else _architecture(facts),
        )


def _architecture(facts: ModelFacts) -> Architecture:
    return Architecture(input_modalities=("text", "image") if "images" in facts.features else ("text",))


def openai_routes(
    sessions: Sessions, request_context: RequestContext, origins: AllowedOrigins, refusals: RefusalCounters
) -> list[BaseRoute]:
    """Return the routes below `/v1`."""

    def with_cors(endpoint: ASGIApp, method: str) -> CorsMiddleware:
        return CorsMiddleware(endpoint, origins, refusals, method=method, refusal=forbidden_origin)

    chat = with_cors(ChatCompletionsEndpoint(sessions, request_context), "POST")
    completions = with_cors(CompletionsEndpoint(sessions, request_context), "POST")
    models = with_cors(ModelsEndpoint(request_context), "GET")
    return [
        Route("/v1/chat/completions", chat, methods=["POST", "OPTIONS"]),
        Route("/v1/completions", completions, methods=["POST", "OPTIONS"]),
        Route("/v1/models", models, methods=["GET", "OPTIONS"]),
        Route("/v1/models/{model:path}", models, methods=["GET", "OPTIONS"]),
    ]
