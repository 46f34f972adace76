"""What honest clients send at the WebSockets beside the native one: the material of the odd frames."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.chaos.report import Part

MODEL = "midstream-demo"
_INPUT = [{"role": "user", "content": "Say something."}]
_PART = {"type": "input_text", "text": "Say something."}
_TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}
_ITEM = {"type": "message", "role": "user", "content": [_PART]}
_UI = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Say something."}]}
_CHAT = {"requestId": "r1", "id": "c0", "trigger": "submit-message", "headers": {}, "body": {}}


class WebSocketEndpoint(msgspec.Struct, frozen=True):
    """A WebSocket without a hello. `honest`: messages whose fields may each become odd."""

    part: Part
    path: str
    honest: tuple[dict[str, Any], ...]


REALTIME = WebSocketEndpoint(
    Part.REALTIME_FRAMES,
    "/v1/realtime?client_id=fuzz",
    (
        {"type": "session.update", "session": {"type": "realtime", "instructions": "Be kind."}},
        {"type": "session.update", "session": {"type": "realtime", "tools": [_TOOL], "tool_choice": "auto"}},
        {"type": "conversation.item.create", "item": _ITEM, "event_id": "e1", "previous_item_id": "root"},
        {
            "type": "conversation.item.create",
            "item": {"type": "function_call_output", "call_id": "c", "output": "1"},
        },
        {"type": "conversation.item.retrieve", "item_id": "i"},
        {"type": "conversation.item.delete", "item_id": "i"},
        {"type": "conversation.item.truncate", "item_id": "i", "content_index": 0, "audio_end_ms": 3},
        {"type": "response.create", "response": {"instructions": "Be brief.", "max_output_tokens": 3}},
        {"type": "response.create", "response": {"conversation": "none", "input": [_ITEM]}},
        {"type": "response.cancel", "response_id": "resp_0"},
        {"type": "input_audio_buffer.append", "audio": "AAAA"},
        {"type": "input_audio_buffer.commit"},
        {"type": "input_audio_buffer.clear"},
    ),
)
TRANSLATIONS = WebSocketEndpoint(
    Part.TRANSLATIONS_FRAMES,
    "/v1/realtime/translations?client_id=fuzz",
    (
        {
            "type": "session.update",
            "session": {
                "audio": {
                    "input": {"transcription": {"model": "m"}, "language": "en", "noise_reduction": None},
                    "output": {"language": "zh", "voice": None},
                },
                "told": "wait",
                "wait": 3,
            },
        },
        {"type": "session.update", "session": {"audio": {"output": {"language": "de"}}, "told": "segment"}},
        {"type": "session.input_text_buffer.append", "text": "Say something. ", "event_id": "e1"},
        {"type": "session.input_text_buffer.append", "text": "\n"},
        {"type": "session.input_audio_buffer.append", "audio": "AAAA"},
        {"type": "session.close"},
    ),
)
RESPONSES = WebSocketEndpoint(
    Part.RESPONSES_FRAMES,
    "/v1/responses",
    (
        {"type": "response.create", "model": MODEL, "input": "Say something.", "stream_id": "s1"},
        {"type": "response.create", "model": MODEL, "input": _INPUT, "store": False, "tools": [_TOOL]},
        {
            "type": "response.create",
            "input": _INPUT,
            "previous_response_id": "resp_0",
            "metadata": {"a": "b"},
        },
        {"type": "response.create", "input": _INPUT, "conversation": {"id": "c0"}, "truncation": "auto"},
        {
            "type": "response.create",
            "input": _INPUT,
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
            "reasoning": {"effort": "low"},
        },
        {"type": "response.create", "input": [{"type": "item_reference", "id": "msg_0.c_0"}]},
        {"type": "midstream:response.cancel", "response_id": "resp_0", "stream_id": "s1"},
        {"type": "response.cancel"},
    ),
)
AI_SDK = WebSocketEndpoint(
    Part.AI_SDK_FRAMES,
    "/v1/ai-sdk/chat?client_id=fuzz",
    (
        {"type": "send", "messages": [_UI], **_CHAT},
        {"type": "send", "messages": [_UI], **_CHAT, "trigger": "regenerate-message", "messageId": "m2"},
        {
            "type": "send",
            "messages": [
                _UI,
                {
                    "id": "m2",
                    "role": "assistant",
                    "parts": [
                        {
                            "type": "dynamic-tool",
                            "toolName": "look",
                            "toolCallId": "c",
                            "state": "output-available",
                            "input": {},
                            "output": 1,
                        }
                    ],
                },
            ],
            **_CHAT,
        },
        {"type": "resume", "requestId": "r1", "id": "c0"},
        {"type": "abort", "requestId": "r1"},
    ),
)
