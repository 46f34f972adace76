"""Realtime clients over real sockets, and their events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect

from engine.messages import Message
from engine.scripted import ScriptedEngine
from tests.app.in_process_service import Frame, InProcessService, Socket, serving

LONG = "word " * 20_000
LONGEST = {"max_output_tokens": 4000}
PACE_S = 0.01
"""Seconds between tokens. The longest reply takes 40 seconds, so that it is still being written whatever a test does."""


def paced(folder: Path, **settings: Any) -> AbstractAsyncContextManager[InProcessService]:
    """A service with slow replies."""
    return serving(folder, ScriptedEngine(pace_s=PACE_S), **settings)


@asynccontextmanager
async def session(
    running: InProcessService, *, token: str | None = None, **query: str
) -> AsyncIterator[Socket]:
    """Open a session and read its first event."""
    headers = {"Authorization": f"Bearer {token}"} if token else None
    async with connect(url_of(running, **query), max_queue=None, additional_headers=headers) as opened:
        socket = Socket(opened)
        socket.ready = (await socket.next("session.created"))["session"]
        yield socket


def url_of(running: InProcessService, **query: str) -> str:
    shown = "&".join(f"{name}={value}" for name, value in query.items())
    return f"{running.url.replace('http', 'ws')}/v1/realtime?{shown}"


async def create(socket: Socket, text: str, **more: Any) -> Frame:
    """Create an item of the user; return the event that adds it."""
    content = [{"type": "input_text", "text": text}]
    item = {"type": "message", "role": "user", "content": content} | more.pop("item", {})
    await socket.send(type="conversation.item.create", item=item, **more)
    added = await socket.next("conversation.item.added")
    done = await socket.next()
    assert done == {**added, "type": "conversation.item.done", "event_id": done["event_id"]}
    return added


async def turn(socket: Socket, text: str, **response: Any) -> list[Frame]:
    """Ask; return all events of the reply."""
    await create(socket, text)
    await socket.send(type="response.create", response=response)
    return await socket.until("response.done")


async def begin(socket: Socket, running: InProcessService) -> list[Frame]:
    """Start a long reply; return its events up to its first text."""
    running.engine.script(LONG)
    await create(socket, "Go on.")
    await socket.send(type="response.create", response=LONGEST)
    return await socket.until("response.output_text.delta")


def output_text(events: list[Frame]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


def prompts(engine: ScriptedEngine) -> list[tuple[Message, ...]]:
    return [request.messages for request in engine.requests]
