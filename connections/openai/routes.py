"""Where OpenAI's clients find their doors."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route

from connections.cross_origin import CrossOrigin
from connections.openai.chat_door import ChatDoor
from connections.openai.models_door import ModelsDoor
from connections.openai.problems import foreign_page
from connections.openai.reception import Reception
from sessions.service import Sessions


def openai_routes(sessions: Sessions, reception: Reception) -> list[BaseRoute]:
    """The routes below `/v1`."""
    chat = CrossOrigin(ChatDoor(sessions, reception), reception.origins, method="POST", refusal=foreign_page)
    models = CrossOrigin(ModelsDoor(reception), reception.origins, method="GET", refusal=foreign_page)
    return [
        Route("/v1/chat/completions", chat, methods=["POST", "OPTIONS"]),
        Route("/v1/models", models, methods=["GET", "OPTIONS"]),
        Route("/v1/models/{model:path}", models, methods=["GET", "OPTIONS"]),
    ]
