"""A client of the AI SDK's endpoint that sees chunks as they are."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.app.in_process_service import InProcessService

CHAT = "/v1/ai-sdk/chat"
Chunk = dict[str, Any]


def user(text: str, message_id: str = "m1") -> Chunk:
    """Return a message of the user."""
    return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}


class ChunkStream:
    """An open stream."""

    def __init__(self, answer: httpx.Response) -> None:
        self.http = answer
        self._lines = answer.aiter_lines()

    async def next(self, kind: str | None = None) -> Chunk:
        """Return the next chunk, or the next one of a type. Raises StopAsyncIteration after `[DONE]`."""
        while True:
            line = await anext(self._lines)
            if line == "data: [DONE]":
                raise StopAsyncIteration
            if line.startswith("data: "):
                chunk: Chunk = json.loads(line.removeprefix("data: "))
                if kind in (None, chunk["type"]):
                    return chunk

    async def rest(self) -> list[Chunk]:
        """Return all chunks up to `[DONE]`."""
        chunks = []
        try:
            while True:
                chunks.append(await self.next())
        except StopAsyncIteration:
            return chunks


class AiSdkChat:
    """One chat. `headers` go with each of its requests, `query` into each of its URLs."""

    def __init__(
        self, running: InProcessService, chat_id: str = "chat1", *, query: str = "", **headers: str
    ) -> None:
        self.id = chat_id
        self._url = running.url
        self._query = query
        self._headers = headers

    @asynccontextmanager
    async def sent(self, *messages: Chunk, **more: Any) -> AsyncIterator[ChunkStream]:
        """Send a request of `useChat`; return the stream that answers it."""
        body = {"id": self.id, "messages": messages, "trigger": "submit-message"} | more
        async with (
            httpx.AsyncClient(base_url=self._url, timeout=60) as client,
            client.stream("POST", f"{CHAT}{self._query}", headers=self._headers, json=body) as answer,
        ):
            yield ChunkStream(answer)

    async def messages(self) -> list[Chunk]:
        """Return the chat as the server stores it."""
        async with httpx.AsyncClient(base_url=self._url, timeout=60) as client:
            path = f"{CHAT}/{self.id}/messages{self._query}"
            kept: list[Chunk] = (await client.get(path, headers=self._headers)).json()
        return kept


def text_of(chunks: list[Chunk], kind: str = "text") -> str:
    """Return the text of a message."""
    return "".join(chunk["delta"] for chunk in chunks if chunk["type"] == f"{kind}-delta")


def text_in(message: Chunk) -> str:
    """Return the text of a stored message."""
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")
