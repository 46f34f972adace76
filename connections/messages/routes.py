"""The routes of Anthropic's doors."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route

from connections.gate.cross_origin import CrossOrigin
from connections.gate.origin import Origins
from connections.http.refusals import Refusals
from connections.messages.door import CountingDoor, MessagesDoor
from connections.messages.problems import foreign_page
from connections.openai.reception import Reception
from sessions.service import Sessions


def messages_routes(
    sessions: Sessions, reception: Reception, origins: Origins, refusals: Refusals
) -> list[BaseRoute]:
    """Return the routes below `/v1`."""

    def shown(door: MessagesDoor | CountingDoor) -> CrossOrigin:
        return CrossOrigin(door, origins, refusals, method="POST", refusal=foreign_page)

    return [
        Route("/v1/messages", shown(MessagesDoor(sessions, reception)), methods=["POST", "OPTIONS"]),
        Route(
            "/v1/messages/count_tokens",
            shown(CountingDoor(sessions, reception)),
            methods=["POST", "OPTIONS"],
        ),
    ]
