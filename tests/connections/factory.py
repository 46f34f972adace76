"""Events of one conversation, "c", limits, and a wait, as tests of this layer need them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from connections.protocol.base import Limits
from sessions.conversation.history_page import HistoryPage, ShownMessage
from sessions.events import (
    Accepted,
    CallState,
    Delta,
    Done,
    Reason,
    Reasoning,
    ShownCall,
    Timing,
    ToolCall,
    ToolState,
    Usage,
)

USAGE = Usage(prompt_tokens=7, cached_tokens=3, generated_tokens=5, sent_tokens=5, wasted_tokens=0)
TIMING = Timing(queued_ms=None, first_token_ms=None, total_ms=1.0)


def limits(**more: Any) -> Limits:
    given: dict[str, Any] = {
        "max_frame_bytes": 65_536,
        "max_content_chars": 100,
        "max_new_tokens": 64,
        "context_tokens": 4096,
        "max_active_turns": 4,
        "max_queued_turns": 4,
        "messages_per_minute": None,
        "max_tool_rounds": 16,
    }
    return Limits(**given | more)


def accepted(
    turn_id: str = "t", client_msg_id: str = "m1", content: str | None = None, **more: Any
) -> Accepted:
    given: dict[str, Any] = {"conversation_id": "c", "message_id": f"msg_{turn_id}", "epoch": "e", "seq": 1}
    return Accepted(turn_id=turn_id, client_msg_id=client_msg_id, content=content, **given | more)


def delta(text: str, off: int = 0, turn_id: str = "t", *, seq: int = 2, place: str = "c") -> Delta:
    return Delta(conversation_id=place, turn_id=turn_id, seq=seq, first_seq=seq, off=off, text=text, tokens=1)


def reasoning(text: str, off: int = 0, turn_id: str = "t", *, seq: int = 2) -> Reasoning:
    return Reasoning(
        conversation_id="c", turn_id=turn_id, seq=seq, first_seq=seq, off=off, text=text, tokens=1
    )


def done(turn_id: str = "t", chars: int = 0, reason: Reason = Reason.STOP, **more: Any) -> Done:
    given: dict[str, Any] = {
        "conversation_id": "c",
        "message_id": f"reply_{turn_id}",
        "seq": 9,
        "usage": USAGE,
        "timing": TIMING,
        "text_sha256": "",
        "saved": True,
    }
    return Done(turn_id=turn_id, chars=chars, reason=reason, **given | more)


_CALL: dict[str, Any] = {"index": 0, "name": "f", "args": "{}", "args_sha256": "", "needs": "none", "off": 0}


def call(call_id: str = "call_1", turn_id: str = "t", **more: Any) -> ToolCall:
    given = _CALL | {"conversation_id": "c", "seq": 3, "where": "client", "tokens": 1}
    return ToolCall(call_id=call_id, turn_id=turn_id, **given | more)


def call_state(
    call_id: str = "call_1", turn_id: str = "t", state: CallState = CallState.DONE, **more: Any
) -> ToolState:
    given: dict[str, Any] = {"conversation_id": "c", "seq": 6}
    return ToolState(call_id=call_id, turn_id=turn_id, state=state, **given | more)


def shown_call(call_id: str = "call_1", state: CallState = CallState.WAITING, **more: Any) -> ShownCall:
    return ShownCall(call_id=call_id, state=state, **_CALL | {"where": "client"} | more)


def shown_message(content: str, turn_id: str = "t", role: str = "assistant", **more: Any) -> ShownMessage:
    given: dict[str, Any] = {
        "message_id": f"msg_{turn_id}" if role == "user" else f"reply_{turn_id}",
        "parent_id": None,
        "status": "complete",
        "created_at": 0,
        "siblings": [],
        "sibling_count": 1,
        "sibling_index": 0,
    }
    return ShownMessage(content=content, turn_id=turn_id, role=role, **given | more)  # type: ignore[arg-type]


def page(*messages: ShownMessage, **more: Any) -> HistoryPage:
    return HistoryPage(conversation_id="c", epoch="e", seq=5, messages=list(messages), **more)


async def until(happened: Callable[[], object]) -> None:
    """Let the event loop turn until something has happened."""
    async with asyncio.timeout(60):
        while not happened():  # noqa: ASYNC110 - turns of the loop
            await asyncio.sleep(0)
