"""The routes of OpenAI's doors."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from connections.gate.cross_origin import CrossOrigin
from connections.gate.origin import Origins
from connections.http.json_answers import foreign_page
from connections.http.refusals import Refusals
from connections.openai.chat_door import ChatDoor
from connections.openai.completions_door import CompletionsDoor
from connections.openai.models_door import ModelsDoor
from connections.openai.reception import Reception
from sessions.service import Sessions


def openai_routes(
    sessions: Sessions, reception: Reception, origins: Origins, refusals: Refusals
) -> list[BaseRoute]:
    """Return the routes below `/v1`."""

    def shown(door: ASGIApp, method: str) -> CrossOrigin:
        return CrossOrigin(door, origins, refusals, method=method, refusal=foreign_page)

    chat = shown(ChatDoor(sessions, reception), "POST")
    completions = shown(CompletionsDoor(sessions, reception), "POST")
    models = shown(ModelsDoor(reception), "GET")
    return [
        Route("/v1/chat/completions", chat, methods=["POST", "OPTIONS"]),
        Route("/v1/completions", completions, methods=["POST", "OPTIONS"]),
        Route("/v1/models", models, methods=["GET", "OPTIONS"]),
        Route("/v1/models/{model:path}", models, methods=["GET", "OPTIONS"]),
    ]
