"""A client that keeps what it is told as the stock ones do, for a session without a socket."""

from __future__ import annotations

from typing import Any

from connections.api.realtime.events import Event
from tests.connections.factory import limits

LIMITS = limits(max_content_chars=200, max_new_tokens=100)


def text_of(item: dict[str, Any]) -> str:
    if item["type"] == "message":
        return "".join(part["text"] for part in item["content"])
    return str(item.get("arguments", item.get("output")))


class ClientMirror:
    """Puts items behind the ones that they are said to follow, and joins text."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.texts: dict[str, str] = {}
        self.open: set[str] = set()
        self.ended: list[str] = []

    def apply(self, *events: Event) -> None:
        for event in events:
            self._apply(event)

    def _apply(self, event: Event) -> None:
        match event:
            case {"type": "conversation.item.added", "previous_item_id": previous, "item": item}:
                assert item["id"] not in self.order
                self.order.insert(0 if previous is None else self.order.index(previous) + 1, item["id"])
                self.texts[item["id"]] = text_of(item)
            case {"type": "conversation.item.done", "previous_item_id": previous, "item": item}:
                place = self.order.index(item["id"])
                assert previous == (self.order[place - 1] if place else None)
                assert self.texts[item["id"]].startswith(text_of(item))
            case {"type": "conversation.item.deleted", "item_id": item_id}:
                self.order.remove(item_id)
            case {"type": "response.output_text.done", "item_id": item_id, "text": text}:
                assert self.texts[item_id].startswith(text)
                self.texts[item_id] = text
            case {"type": "response.created", "response": response}:
                assert response["id"] not in [*self.open, *self.ended]
                self.open.add(response["id"])
            case {"type": "response.done", "response": response}:
                self.open.remove(response["id"])
                self.ended.append(response["id"])
            case {"response_id": response, "item_id": item_id, "delta": delta}:
                assert response in self.open
                self.texts[item_id] += delta
