"""The routes of the AI SDK's door."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp

from connections.aisdk.door import ChatDoor
from connections.aisdk.problems import foreign
from connections.aisdk.socket_door import ChatSocketDoor
from connections.gate.cross_origin import CrossOrigin
from connections.gate.origin import Origins
from connections.http.refusals import Refusals

PATH = "/v1/ai-sdk/chat"


def aisdk_routes(
    door: ChatDoor, socket: ChatSocketDoor, origins: Origins, refusals: Refusals
) -> list[BaseRoute]:
    """Return the routes below `/v1`."""

    def route(path: str, answers: ASGIApp, method: str) -> Route:
        shown = CrossOrigin(answers, origins, refusals, method=method, refusal=foreign)
        return Route(f"{PATH}{path}", shown, methods=[method, "OPTIONS"])

    return [
        route("", door.send, "POST"),
        route("/{chat_id}/stream", door.resume, "GET"),
        route("/{chat_id}/stop", door.stop, "POST"),
        route("/{chat_id}/messages", door.messages, "GET"),
        WebSocketRoute(PATH, socket.accept),
    ]
