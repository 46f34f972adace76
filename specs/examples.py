"""One example of each frame. Read in their order they are one conversation; lines that would only repeat others are left out.

Ann asks how green tea is made and stops the reply. She has it go on, asks for the weather by a tool of her page, has what she
says translated while she says it, and tidies up.
`tests/specs/test_examples.py` holds each to the codec, and all of them to each other.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec

from connections.protocol.frames import ClientFrame

Example = dict[str, Any]

KEPT = "Heat the water to 75 °C. Pour it over"
"""What Ann saw of the reply when she stopped it."""
_ARGS = '{"city": "Bern"}'
_TEA = {"conversation_id": "tea"}
_MODEL = "midstream-demo"
_USAGE: Example = {
    "prompt_tokens": 18,
    "cached_tokens": 0,
    "generated_tokens": 26,
    "sent_tokens": 21,
    "wasted_tokens": 5,
    "reasoning_tokens": 6,
    "reasoning_ms": 61.5,
}


def _sha256(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _by_type(*examples: Example) -> dict[str, Example]:
    return {example["type"]: example for example in examples}


_CALL: Example = {"call_id": "call_1"}
_LISTED: Example = {**_TEA, "title": "Green tea", "updated_at": 1790000042000, "messages": 5}

REQUEST_EXAMPLES = _by_type(
    {
        "type": "hello",
        "client_id": "ann-laptop",
        "features": ["reasoning", "tools", "continue", "titles", "interpret", "audio"],
    },
    {
        "type": "send",
        "client_msg_id": "m1",
        **_TEA,
        "content": "How do I make green tea?",
        "params": {"temperature": 0.7, "max_new_tokens": 200},
    },
    {"type": "cancel", "turn_id": "turn_1", "seen_off": len(KEPT)},
    {"type": "history", **_TEA, "limit": 20},
    {"type": "continue", **_TEA, "message_id": "msg_2", "client_msg_id": "m2"},
    {"type": "ack", **_TEA, "seq": 8},
    {
        "type": "edit",
        **_TEA,
        "message_id": "msg_1",
        "client_msg_id": "m3",
        "content": "Is it the weather for tea in Bern?",
        "tools": [
            {
                "name": "weather",
                "description": "The weather in a city now.",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
                "approval": "always",
            }
        ],
    },
    {"type": "tool_decision", **_TEA, **_CALL, "args_sha256": _sha256(_ARGS), "decision": "allow"},
    {"type": "tool_result", **_TEA, **_CALL, "content": "12 °C, rain"},
    {"type": "regenerate", **_TEA, "message_id": "msg_5", "client_msg_id": "m4"},
    {"type": "interpret.start", **_TEA, "client_msg_id": "m5", "source": "en", "target": "zh"},
    {"type": "source", **_TEA, "off": 0, "text": "Good morning ", "ref": "s1"},
    {"type": "resume", **_TEA, "epoch": "94ad68f5e69c58e4", "after_seq": 12},
    {"type": "conversations", "limit": 50},
    {"type": "rename", **_TEA, "title": "Green tea"},
    {"type": "search", "query": "green"},
    {"type": "share", **_TEA},
    {"type": "unshare", **_TEA},
    {"type": "auth.refresh", "token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl"},
    {"type": "ping", "t": 1790000050000},
    {
        "type": "audio.start",
        **_TEA,
        "input": {"format": "pcm16", "rate": 16000},
        "output": {"format": "pcm16", "rate": 24000, "voice": "en-us"},
        "turn_detection": {"type": "vad", "silence_ms": 400, "interrupt_ms": 300},
        "language": "en",
    },
    {"type": "audio.commit", **_TEA},
    {"type": "audio.clear", **_TEA},
    {"type": "played", **_TEA, "turn_id": "turn_5", "audio_ms": 860},
    {"type": "audio.stop", **_TEA},
    {"type": "delete", **_TEA, "ref": "r1"},
)
"""What a client sends, by its type."""

EVENT_EXAMPLES = _by_type(
    {
        "type": "ready",
        "connection_id": "conn_20abb47e3dfee2f6",
        "client_id": "ann-laptop",
        "features": ["reasoning", "tools", "continue", "titles", "interpret", "share", "audio"],
        "model": _MODEL,
        "models": [{"name": _MODEL, "context_tokens": 4096, "features": ["tools", "reasoning", "continue"]}],
        "heartbeat_ms": 20000,
        "resume_ttl_s": 2592000,
        "limits": {
            "max_frame_bytes": 65536,
            "max_content_chars": 32000,
            "max_new_tokens": 4096,
            "context_tokens": 4096,
            "max_active_turns": 1024,
            "max_queued_turns": 16,
            "messages_per_minute": None,
            "max_tool_rounds": 64,
            "max_images": 0,
            "max_image_bytes": 0,
        },
        "server": {"name": "midstream", "version": "0.1.0"},
    },
    {
        "type": "accepted",
        **_TEA,
        "client_msg_id": "m1",
        "turn_id": "turn_1",
        "message_id": "msg_1",
        "epoch": "94ad68f5e69c58e4",
        "seq": 1,
        "ref": "m1",
        "parent_id": None,
        "model": _MODEL,
    },
    {"type": "status", **_TEA, "turn_id": "turn_1", "state": "queued", "queue_position": 1},
    {
        "type": "reasoning",
        **_TEA,
        "turn_id": "turn_1",
        "seq": 2,
        "first_seq": 2,
        "off": 0,
        "text": "Three steps are enough.",
        "tokens": 6,
    },
    {
        "type": "delta",
        **_TEA,
        "turn_id": "turn_1",
        "seq": 3,
        "first_seq": 3,
        "off": 0,
        "text": "Heat the water to 75 °C. ",
        "tokens": 10,
    },
    {"type": "cancelled", "turn_id": "turn_1", "already": False},
    {
        "type": "done",
        **_TEA,
        "turn_id": "turn_1",
        "message_id": "msg_2",
        "seq": 5,
        "reason": "cancelled",
        "chars": len(KEPT),
        "usage": {**_USAGE},
        "timing": {"queued_ms": 1.4, "first_token_ms": 23.0, "total_ms": 812.6},
        "text_sha256": _sha256(KEPT),
        "saved": True,
        "cancel": {"cause": "client", "latency_ms": 0.4, "steps_after": 0},
        "model": _MODEL,
        "reasoning_chars": 23,
    },
    {
        "type": "history",
        **_TEA,
        "epoch": "94ad68f5e69c58e4",
        "seq": 5,
        "messages": [
            {
                "message_id": "msg_1",
                "parent_id": None,
                "siblings": ["msg_1"],
                "sibling_count": 1,
                "sibling_index": 0,
                "turn_id": "turn_1",
                "role": "user",
                "content": "How do I make green tea?",
                "status": "complete",
                "created_at": 1790000000000,
                "usage": None,
                "model": None,
            },
            {
                "message_id": "msg_2",
                "parent_id": "msg_1",
                "siblings": ["msg_2"],
                "sibling_count": 1,
                "sibling_index": 0,
                "turn_id": "turn_1",
                "role": "assistant",
                "content": KEPT,
                "status": "cancelled",
                "created_at": 1790000000813,
                "usage": {**_USAGE},
                "model": _MODEL,
                "reasoning": "Three steps are enough.",
            },
        ],
        "has_more": False,
    },
    {"type": "title", **_TEA, "title": "Making green tea"},
    {
        "type": "tool_call",
        **_TEA,
        "turn_id": "turn_3",
        "seq": 10,
        **_CALL,
        "index": 0,
        "name": "weather",
        "args": _ARGS,
        "args_sha256": _sha256(_ARGS),
        "where": "client",
        "needs": "approval",
        "off": 0,
        "tokens": 12,
        "expires_at": 1790003620000,
    },
    {
        "type": "tool_state",
        **_TEA,
        "turn_id": "turn_3",
        "seq": 13,
        **_CALL,
        "state": "done",
        "content": "12 °C, rain",
    },
    {"type": "tool_ack", **_TEA, **_CALL, "state": "done", "already": False},
    {"type": "resumed", **_TEA, "epoch": "94ad68f5e69c58e4", "replayed": 2, "live": "turn_4"},
    {"type": "gap", **_TEA, "epoch": "94ad68f5e69c58e4", "min_seq": 14},
    {
        "type": "snapshot",
        **_TEA,
        "epoch": "94ad68f5e69c58e4",
        "seq": 15,
        "turn_id": "turn_4",
        "text": "It rains. That is ",
    },
    {"type": "removed", **_TEA, "turn_id": "turn_5", "seq": 19},
    {
        "type": "source",
        **_TEA,
        "turn_id": "turn_6",
        "seq": 21,
        "off": 0,
        "text": "Good morning ",
    },
    {
        "type": "source_ack",
        "ref": "s1",
        **_TEA,
        "turn_id": "turn_6",
        "chars": 13,
        "final": False,
        "already": False,
    },
    {"type": "conversations", "conversations": [_LISTED], "has_more": False},
    {
        "type": "found",
        "hits": [
            {
                **_LISTED,
                "snippet": "How do I make green tea?",
                "at": 14,
                "chars": 5,
                "message_id": "msg_1",
                "role": "user",
            }
        ],
    },
    {"type": "shared", **_TEA, "share_id": "UuIIj9E5dyI3sfpZiUBEfg"},
    {"type": "pong", "t": 1790000050000},
    {"type": "audio.started", **_TEA, "stream": 1, "voice": "en-us"},
    {"type": "speech", **_TEA, "state": "started", "at_ms": 480},
    {"type": "heard", **_TEA, "text": "and black tea", "final": True, "item": "item_1"},
    {
        "type": "audio.reply",
        **_TEA,
        "turn_id": "turn_5",
        "stream": 1,
        "format": "pcm16",
        "rate": 24000,
        "from_ms": 0,
    },
    {
        "type": "marks",
        **_TEA,
        "turn_id": "turn_5",
        "marks": [
            {"off": 0, "len": 3, "start_ms": 12, "end_ms": 240},
            {"off": 4, "len": 7, "start_ms": 251, "end_ms": 780},
        ],
    },
    {"type": "audio.stopped", **_TEA, "reason": "stop"},
    {"type": "limits", "name": "tokens_per_day", "remaining": 4200, "reset_s": 18000},
    {
        "type": "error",
        "ref": "m4",
        "code": "busy",
        "message": "Another reply of this conversation is being written.",
        "retryable": True,
    },
    {"type": "deleted", **_TEA, "ref": "r1"},
    {"type": "goaway", "drain_ms": 30000, "reason": "The server is about to stop."},
)
"""What the server sends, by its type."""


def example_of(frame: type[msgspec.Struct]) -> Example:
    """Return the example of a kind of frame."""
    return (REQUEST_EXAMPLES if issubclass(frame, ClientFrame) else EVENT_EXAMPLES)[
        str(frame.__struct_config__.tag)
    ]
