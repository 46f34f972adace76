"""Clients of the Responses endpoint's WebSocket, and the fields that Open Responses requires in its answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.app.in_process_service import InProcessService

MODEL = "midstream-demo"
TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")
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

Event = dict[str, Any]


class ResponsesSocket:
    """One socket."""

    def __init__(self, opened: ClientConnection) -> None:
        self.opened = opened

    async def send(self, **event: Any) -> None:
        await self.opened.send(json.dumps({"type": "response.create", "model": MODEL} | event))

    async def next(self, *kinds: str) -> Event:
        """Return the next event, or the next one of some types."""
        while True:
            event: Event = json.loads(await self.opened.recv())
            if not kinds or event["type"] in kinds:
                return event

    async def ask(self, **event: Any) -> list[Event]:
        """Ask for a response; return its events up to the last one."""
        await self.send(**event)
        events = [await self.next()]
        while events[-1]["type"] not in TERMINAL:
            events.append(await self.next())
        return events

    async def response(self, **event: Any) -> Event:
        """Ask; return the final response."""
        last = (await self.ask(**event))[-1]
        assert last["type"] == "response.completed", last
        return checked(last["response"])


def checked(response: Event) -> Event:
    """Return the response, after a check that it has all fields that the standard requires."""
    assert [field for field in REQUIRED if field not in response] == []
    assert (response["object"], response["status"]) == ("response", "completed")
    assert response["output"]
    return response


def text_of(response: Event) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


@asynccontextmanager
async def responses_socket(running: InProcessService, **options: Any) -> AsyncIterator[ResponsesSocket]:
    async with connect(f"{running.url.replace('http', 'ws')}/v1/responses", **options) as opened:
        yield ResponsesSocket(opened)
