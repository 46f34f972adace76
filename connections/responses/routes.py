"""The routes of the Responses API's door."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp

from connections.gate.cross_origin import CrossOrigin
from connections.gate.origin import Origins
from connections.http.json_answers import foreign_page
from connections.http.refusals import Refusals
from connections.openai.reception import Reception
from connections.responses.conversations_door import Act, ConversationsDoor
from connections.responses.door import ResponsesDoor
from connections.responses.further_doors import CompactDoor, CountDoor
from connections.responses.kept_door import Does, KeptDoor
from connections.responses.socket import ResponsesSocket
from sessions.service import Sessions

PATH = "/v1/responses"
CONVERSATIONS = "/v1/conversations"


def responses_routes(
    sessions: Sessions, reception: Reception, socket: ResponsesSocket, origins: Origins, refusals: Refusals
) -> list[BaseRoute]:
    """Return the routes below `/v1/responses` and `/v1/conversations`."""
    creator = socket.creator

    def shown(door: ASGIApp, method: str) -> CrossOrigin:
        return CrossOrigin(door, origins, refusals, method=method, refusal=foreign_page)

    def kept(does: Does, method: str) -> CrossOrigin:
        return shown(KeptDoor(creator.keeper, reception, does), method)

    def conversations(path: str, **acts: Act) -> Route:
        methods = list(acts)
        door = ConversationsDoor(creator.keeper, reception, acts)
        return Route(CONVERSATIONS + path, shown(door, ", ".join(methods)), methods=[*methods, "OPTIONS"])

    does = ConversationsDoor
    item = "/{conversation_id}/items/{item_id}"
    one = f"{PATH}/{{response_id}}"
    count = CountDoor(sessions, creator, reception)
    compact = CompactDoor(sessions, creator, reception)
    return [
        WebSocketRoute(PATH, socket.accept),
        Route(f"{PATH}/input_tokens", shown(count, "POST"), methods=["POST", "OPTIONS"]),
        Route(f"{PATH}/compact", shown(compact, "POST"), methods=["POST", "OPTIONS"]),
        Route(one, kept(KeptDoor.show_or_delete, "GET, DELETE"), methods=["GET", "DELETE", "OPTIONS"]),
        Route(f"{one}/cancel", kept(KeptDoor.cancel, "POST"), methods=["POST", "OPTIONS"]),
        Route(f"{one}/input_items", kept(KeptDoor.input_items, "GET"), methods=["GET", "OPTIONS"]),
        Route(PATH, shown(ResponsesDoor(creator, reception), "POST"), methods=["POST", "OPTIONS"]),
        conversations("", POST=does.create),
        conversations("/{conversation_id}", GET=does.show, POST=does.update, DELETE=does.delete),
        conversations("/{conversation_id}/items", GET=does.list_items, POST=does.add_items),
        conversations(item, GET=does.show_item, DELETE=does.delete_item),
    ]
