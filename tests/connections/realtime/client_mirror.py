"""A session without a socket, and a client that keeps what it is told as the stock ones do."""

from __future__ import annotations

from typing import Any

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
from connections.protocol.base import Limits
from sessions.events import CallState, Done, Reason, Timing, ToolCall, ToolState, Usage

LIMITS = Limits(
    max_frame_bytes=1,
    max_content_chars=200,
    max_new_tokens=100,
    context_tokens=100,
    max_active_turns=1,
    max_queued_turns=1,
    max_tool_rounds=16,
    messages_per_minute=None,
)


def done(turn_id: str, chars: int, reason: Reason = Reason.STOP, **more: Any) -> Done:
    return Done(
        conversation_id="c",
        turn_id=turn_id,
        message_id=f"reply_{turn_id}",
        seq=9,
        reason=reason,
        chars=chars,
        usage=Usage(prompt_tokens=7, cached_tokens=3, generated_tokens=5, sent_tokens=5, wasted_tokens=0),
        timing=Timing(queued_ms=None, first_token_ms=None, total_ms=1.0),
        text_sha256="",
        saved=True,
        **more,
    )


def text_of(item: Item) -> str:
    match item:
        case Message():
            return "".join(part.text for part in item.content)
        case FunctionCall():
            return item.arguments
        case FunctionCallOutput():
            return item.output


def call(turn_id: str, call_id: str, *, off: int = 0, index: int = 0, **more: Any) -> ToolCall:
    return ToolCall(
        conversation_id="c",
        turn_id=turn_id,
        seq=3,
        call_id=call_id,
        index=index,
        name="weather",
        args='{"city":"Bern"}',
        args_sha256="",
        where=more.get("where", "client"),
        needs="none",
        off=off,
        tokens=1,
    )


def call_finished(
    turn_id: str, call_id: str, content: str | None, state: CallState = CallState.DONE
) -> ToolState:
    return ToolState(
        conversation_id="c", turn_id=turn_id, seq=4, call_id=call_id, state=state, content=content
    )


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
