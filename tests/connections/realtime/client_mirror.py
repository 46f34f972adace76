"""A session without a socket, and a client that keeps what it is told as the stock ones do."""

from __future__ import annotations

from connections.api.realtime.events import (
    ArgumentsDelta,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemAdded,
    ItemDeleted,
    ItemDone,
    Message,
    OutputTextDelta,
    OutputTextDone,
    ResponseCreated,
    ResponseDone,
    ServerEvent,
)
from tests.connections.factory import limits

LIMITS = limits(max_content_chars=200, max_new_tokens=100)


def text_of(item: Item) -> str:
    match item:
        case Message():
            return "".join(part.text for part in item.content)
        case FunctionCall():
            return item.arguments
        case FunctionCallOutput():
            return item.output


class ClientMirror:
    """Puts items behind the ones that they are said to follow, and joins text."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.texts: dict[str, str] = {}
        self.open: set[str] = set()
        self.ended: list[str] = []

    def apply(self, *events: ServerEvent) -> None:
        for event in events:
            self._apply(event)

    def _apply(self, event: ServerEvent) -> None:
        match event:
            case ItemAdded(previous_item_id=previous, item=item):
                assert item.id not in self.order
                self.order.insert(0 if previous is None else self.order.index(previous) + 1, item.id)
                self.texts[item.id] = text_of(item)
            case ItemDone(previous_item_id=previous, item=item):
                place = self.order.index(item.id)
                assert previous == (self.order[place - 1] if place else None)
                assert self.texts[item.id].startswith(text_of(item))
            case ItemDeleted(item_id=item_id):
                self.order.remove(item_id)
            case ArgumentsDelta(item_id=item_id, delta=delta):
                self.texts[item_id] += delta
            case OutputTextDelta(response_id=response, item_id=item_id, delta=delta):
                assert response in self.open
                self.texts[item_id] += delta
            case OutputTextDone(response_id=response, item_id=item_id, text=text):
                assert response in self.open
                assert self.texts[item_id].startswith(text)
                self.texts[item_id] = text
            case ResponseCreated(response=response):
                assert response.id not in [*self.open, *self.ended]
                self.open.add(response.id)
            case ResponseDone(response=response):
                self.open.remove(response.id)
                self.ended.append(response.id)
