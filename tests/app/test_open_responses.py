"""The assertions of Open Responses' compliance runner, each as a test: over HTTP, then over a WebSocket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from engine.messages import Message
from engine.scripted import FEATURES, Call, ScriptedEngine
from tests.app.in_process_service import InProcessService, serving
from tests.app.openai_client import MODEL
from tests.sample_images import PNG

REQUIRED = [
    "id",
    "object",
    "created_at",
    "completed_at",
    "status",
    "incomplete_details",
    "model",
    "previous_response_id",
    "instructions",
    "output",
    "error",
    "tools",
    "tool_choice",
    "truncation",
    "parallel_tool_calls",
    "text",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "temperature",
    "reasoning",
    "usage",
    "max_output_tokens",
    "max_tool_calls",
    "store",
    "background",
    "service_tier",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
]
"""The fields that the standard's schema of a response requires, which may be null."""

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
    },
}


def input_message(role: str, text: Any, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text} | more


def checked(response: dict[str, Any]) -> dict[str, Any]:
    """Return the response, after a check that it has all fields that the standard requires."""
    assert [field for field in REQUIRED if field not in response] == []
    assert (response["object"], response["status"]) == ("response", "completed")
    assert response["output"]
    return response


async def response(running: InProcessService, *items: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = await running.request("POST", "/v1/responses", json={"model": MODEL, "input": items} | more)
    assert answer.status_code == 200, answer.text
    return checked(answer.json())


@pytest.mark.parametrize(
    "items",
    [
        [("user", "Say hello in exactly 3 words.", {})],
        [
            ("assistant", "I should answer with the saved number.", {"phase": "commentary"}),
            ("assistant", "The number is four.", {"phase": "final_answer"}),
            ("user", "Repeat only the number.", {}),
        ],
        [("system", "You are a pirate.", {}), ("user", "Say hello.", {})],
        [("user", "My name is Alice.", {}), ("assistant", "Hello Alice!", {}), ("user", "My name?", {})],
    ],
    ids=["basic_response", "assistant_phase", "system_prompt", "multi_turn"],
)
async def test_text(items: list[tuple[str, str, dict[str, str]]], running: InProcessService) -> None:
    await response(running, *(input_message(role, text, **more) for role, text, more in items))
    assert [one.role for one in running.engine.requests[0].messages] == [role for role, *_ in items]


async def test_tool_calling(running: InProcessService) -> None:
    running.engine.script([Call("get_weather", '{"location":"San Francisco"}')])
    reported = await response(running, input_message("user", "What's the weather like?"), tools=[TOOL])
    assert [item["type"] for item in reported["output"]] == ["function_call"]


LOOK = input_message(
    "user", [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": PNG.url}]
)


async def test_image_input(tmp_path: Path) -> None:
    engine = ScriptedEngine(features=(*FEATURES, "images"))
    async with serving(tmp_path, engine) as running:
        await response(running, LOOK)
    assert engine.requests[0].messages == (Message("user", "What is this?", images=(PNG.image.moved(13),)),)


async def test_websocket_response(running: InProcessService) -> None:
    create = {
        "type": "response.create",
        "model": MODEL,
        "input": [input_message("user", "Count from 1 to 3.")],
    }
    events: list[dict[str, Any]] = []
    async with connect(f"{running.url.replace('http', 'ws')}/v1/responses") as socket:
        await socket.send(json.dumps(create))
        while not events or events[-1]["type"] != "response.completed":
            events.append(json.loads(await socket.recv()))
    assert events[0]["type"] == "response.created"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    checked(events[-1]["response"])
