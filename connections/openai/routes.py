"""The routes of OpenAI's endpoints."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from connections.http.json_responses import forbidden_origin
from connections.http.refusal_counters import RefusalCounters
from connections.middleware.cors import CorsMiddleware
from connections.middleware.origins import AllowedOrigins
from connections.openai.generation_endpoint import ChatCompletionsEndpoint, CompletionsEndpoint
from connections.openai.models_endpoint import ModelsEndpoint
from connections.openai.request_context import RequestContext
from sessions.service import Sessions


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
