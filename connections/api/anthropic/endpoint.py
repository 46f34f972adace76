"""`POST /v1/messages`: turns without a conversation. `POST /v1/messages/count_tokens`: the length of a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import ClassVar, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from connections.api.anthropic.encoder import MessagesEncoder, encode_message
from connections.api.anthropic.errors import error_response, foreign_page, request_id
from connections.api.anthropic.parser import (
    FIELD_NAMES,
    count_turn_request,
    message_turn_request,
    parse_count_request,
    parse_message_request,
)
from connections.api.anthropic.schema import CountRequest, MessageRequest, TokensCount
from connections.api.endpoint import ModelEndpoint, RequestContext, SingleReplyEndpoint, ignored_header
from connections.api.replies import stream_reply
from connections.authentication.caller import Caller
from connections.http.exchange import Exchange
from connections.http.refusal_counters import EndpointName, RefusalCounters
from connections.middleware.origins import AllowedOrigins, CorsMiddleware
from connections.protocol.server_info import Limits
from sessions.errors import Refused
from sessions.limits.rates import FrameCost
from sessions.running.ephemeral import EphemeralReply, EphemeralRequest
from sessions.service import Sessions

R = TypeVar("R", bound=CountRequest)


class _AnthropicEndpoint(ModelEndpoint[R]):
    """Common parts of both endpoints. A key may be in `x-api-key` if there is no `Authorization`."""

    endpoint: ClassVar[EndpointName] = EndpointName.MESSAGES

    def names(self, request: R) -> Mapping[str, str]:  # noqa: ARG002 - they are the same for all
        """Return this client's names of fields."""
        return FIELD_NAMES

    def refusal(self, refused: Refused) -> Response:
        """Return the answer to a refused request."""
        return error_response(refused, request_id())

    def token(self, request: Request) -> str | None:
        """Return a key as Anthropic's clients send it."""
        return request.headers.get("x-api-key")


class MessagesEndpoint(_AnthropicEndpoint[MessageRequest], SingleReplyEndpoint[MessageRequest]):
    """Answers messages."""

    def read(self, body: bytes) -> MessageRequest:
        """Return the request in a body. Raises Problem, TooManyValues."""
        return parse_message_request(body)

    def turn_request(self, request: MessageRequest, limits: Limits) -> EphemeralRequest:
        """Return what the turn is asked. Raises Problem."""
        return message_turn_request(request, limits)

    async def send_reply(self, exchange: Exchange, request: MessageRequest, reply: EphemeralReply) -> None:
        """Send a reply as a stream of events, or whole. Raises Problem if a whole one has no regular end."""
        headers = {"Request-Id": reply.turn_id, **ignored_header(reply)}
        if request.stream:
            await stream_reply(
                exchange,
                reply,
                MessagesEncoder(reply.turn_id, shows_reasoning=request.shows_reasoning),
                headers,
            )
            return
        pieces = [piece async for piece in reply]
        body = encode_message(reply, pieces, shows_reasoning=request.shows_reasoning)
        shown = {"Cache-Control": "no-store", "X-Request-Id": reply.turn_id, **headers}
        await exchange.answer(Response(body, headers=shown, media_type="application/json"))


class CountTokensEndpoint(_AnthropicEndpoint[CountRequest]):
    """Counts tokens."""

    counts: ClassVar[FrameCost] = FrameCost.READ

    def read(self, body: bytes) -> CountRequest:
        """Return the request in a body. Raises Problem, TooManyValues."""
        return parse_count_request(body)

    def turn_request(self, request: CountRequest, limits: Limits) -> EphemeralRequest:
        """Return what a turn would be asked. Raises Problem."""
        return count_turn_request(request, limits)

    async def answer(
        self,
        exchange: Exchange,
        caller: Caller,
        request: CountRequest,
        body_lease: ExitStack,  # noqa: ARG002 - held until all is counted
    ) -> None:
        """Answer with the count. Raises Refused."""
        tokens = await self.sessions.ephemeral.count(
            caller.owner, await self.build_request(exchange, caller, request)
        )
        body = msgspec.json.encode(TokensCount(tokens))
        headers = {"Cache-Control": "no-store", "Request-Id": request_id()}
        await exchange.answer(Response(body, headers=headers, media_type="application/json"))


def messages_routes(
    sessions: Sessions, request_context: RequestContext, origins: AllowedOrigins, refusals: RefusalCounters
) -> list[BaseRoute]:
    """Return the routes below `/v1`."""

    def with_cors(endpoint: MessagesEndpoint | CountTokensEndpoint) -> CorsMiddleware:
        return CorsMiddleware(endpoint, origins, refusals, method="POST", refusal=foreign_page)

    return [
        Route(
            "/v1/messages",
            with_cors(MessagesEndpoint(sessions, request_context)),
            methods=["POST", "OPTIONS"],
        ),
        Route(
            "/v1/messages/count_tokens",
            with_cors(CountTokensEndpoint(sessions, request_context)),
            methods=["POST", "OPTIONS"],
        ),
    ]
