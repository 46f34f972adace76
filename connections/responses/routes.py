"""The routes of the Responses API's endpoint."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp

from connections.api.request_context import RequestContext
from connections.http.json_responses import forbidden_origin
from connections.http.refusal_counters import RefusalCounters
from connections.middleware.cors import CorsMiddleware
from connections.middleware.origins import AllowedOrigins
from connections.responses.conversations_endpoint import ConversationHandler, ConversationsEndpoint
from connections.responses.endpoint import ResponsesEndpoint
from connections.responses.input_endpoints import CompactionEndpoint, InputTokensEndpoint
from connections.responses.stored_response_endpoint import StoredResponseEndpoint, StoredResponseHandler
from connections.responses.websocket_endpoint import ResponsesWebSocketEndpoint
from sessions.service import Sessions

PATH = "/v1/responses"
CONVERSATIONS = "/v1/conversations"


def responses_routes(
    sessions: Sessions,
    request_context: RequestContext,
    socket: ResponsesWebSocketEndpoint,
    origins: AllowedOrigins,
    refusals: RefusalCounters,
) -> list[BaseRoute]:
    """Return the routes below `/v1/responses` and `/v1/conversations`."""
    creator = socket.creator

    def with_cors(endpoint: ASGIApp, method: str) -> CorsMiddleware:
        return CorsMiddleware(endpoint, origins, refusals, method=method, refusal=forbidden_origin)

    def kept(handler: StoredResponseHandler, method: str) -> CorsMiddleware:
        return with_cors(StoredResponseEndpoint(creator.response_store, request_context, handler), method)

    def conversations(path: str, **handlers: ConversationHandler) -> Route:
        methods = list(handlers)
        endpoint = ConversationsEndpoint(creator.response_store, request_context, handlers)
        return Route(
            CONVERSATIONS + path, with_cors(endpoint, ", ".join(methods)), methods=[*methods, "OPTIONS"]
        )

    handler = ConversationsEndpoint
    item = "/{conversation_id}/items/{item_id}"
    one = f"{PATH}/{{response_id}}"
    count = InputTokensEndpoint(sessions, creator, request_context)
    compact = CompactionEndpoint(sessions, creator, request_context)
    return [
        WebSocketRoute(PATH, socket.accept),
        Route(f"{PATH}/input_tokens", with_cors(count, "POST"), methods=["POST", "OPTIONS"]),
        Route(f"{PATH}/compact", with_cors(compact, "POST"), methods=["POST", "OPTIONS"]),
        Route(
            one,
            kept(StoredResponseEndpoint.retrieve_or_delete, "GET, DELETE"),
            methods=["GET", "DELETE", "OPTIONS"],
        ),
        Route(f"{one}/cancel", kept(StoredResponseEndpoint.cancel, "POST"), methods=["POST", "OPTIONS"]),
        Route(
            f"{one}/input_items", kept(StoredResponseEndpoint.input_items, "GET"), methods=["GET", "OPTIONS"]
        ),
        Route(
            PATH, with_cors(ResponsesEndpoint(creator, request_context), "POST"), methods=["POST", "OPTIONS"]
        ),
        conversations("", POST=handler.create),
        conversations("/{conversation_id}", GET=handler.show, POST=handler.update, DELETE=handler.delete),
        conversations("/{conversation_id}/items", GET=handler.list_items, POST=handler.add_items),
        conversations(item, GET=handler.show_item, DELETE=handler.delete_item),
    ]
