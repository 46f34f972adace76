"""A reader of event streams over a real socket; it sees ids, comments and retry times as a browser's EventSource does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.app.in_process_service import Frame, InProcessService


class EventSource:
    """An open stream. `last_id`: the id of the newest event that had one."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self.last_id = ""
        self.retry_ms = 0
        self._lines = answer.aiter_lines()

    async def next(self, kind: str | None = None) -> Frame:
        """Return the next frame, or the next one of a type. Raises StopAsyncIteration at the end of the stream."""
        while True:
            frame = await self._next()
            if kind in (None, frame["type"]):
                return frame

    async def _next(self) -> Frame:
        while True:
            match (await anext(self._lines)).split(": ", 1):
                case ["data", text]:
                    frame: Frame = json.loads(text)
                    return frame
                case ["id", text]:
                    self.last_id = text
                case ["retry", text]:
                    self.retry_ms = int(text)

    async def until(self, kind: str) -> list[Frame]:
        """Return all frames up to and with the first one of a type."""
        frames = [await self.next()]
        while frames[-1]["type"] != kind:
            frames.append(await self.next())
        return frames

    async def beat(self) -> None:
        """Wait for a comment."""
        while await anext(self._lines) != ":":
            pass

    async def rest(self) -> list[Frame]:
        """Return all frames up to the end of the stream."""
        frames: list[Frame] = []
        try:
            while True:
                frames.append(await self.next())
        except StopAsyncIteration:
            return frames


def path_of(conversation_id: str = "default") -> str:
    """Return the URL of a conversation's events."""
    return f"/v1/conversations/{conversation_id}/events"


@asynccontextmanager
async def open_event_source(
    running: InProcessService,
    client_id: str | None,
    last_id: str | None = None,
    *,
    place: str = "default",
    token: str | None = None,
    **query: Any,
) -> AsyncIterator[EventSource]:
    """Open a stream of a conversation, or resume it after an event."""
    headers = {"Last-Event-ID": last_id, "Authorization": token and f"Bearer {token}"}
    async with (
        httpx.AsyncClient(base_url=running.url, timeout=60) as client,
        client.stream(
            "GET",
            path_of(place),
            params=({"client_id": client_id} if client_id else {}) | query,
            headers={name: value for name, value in headers.items() if value is not None},
        ) as answer,
    ):
        yield EventSource(answer)


async def error_response(running: InProcessService, path: str = path_of(), **more: Any) -> tuple[int, str]:
    """Return the status and the error code of an answer that is no stream; `more` goes to httpx."""
    async with httpx.AsyncClient(base_url=running.url, timeout=60) as client:
        answer = await client.get(path, **more)
    return answer.status_code, answer.json()["error"]["code"]
