"""A bare client that shows every frame, and checks of the promises that every stream of frames must keep."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

Frame = dict[str, Any]
JOURNALLED = ("accepted", "delta", "reasoning", "tool_call", "tool_state", "done", "removed")


class WebSocketClient:
    """One socket. `seen` holds every received frame."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.seen: list[Frame] = []

    async def put(self, **frame: Any) -> None:
        """Send a frame."""
        await self.socket.send(json.dumps(frame))

    async def get(self) -> Frame:
        """Return the next frame."""
        frame: Frame = json.loads(await self.socket.recv())
        self.seen.append(frame)
        return frame

    async def until(self, wanted: str | Callable[[Frame], bool]) -> Frame:
        """Read up to the first frame of a type, or the first one that fits; return it."""
        while True:
            frame = await self.get()
            if frame["type"] == wanted if isinstance(wanted, str) else wanted(frame):
                return frame

    async def send_message(self, content: str, **fields: Any) -> Frame:
        """Send a message; return `accepted` or `error`."""
        ref = uuid.uuid4().hex
        await self.put(**({"type": "send", "client_msg_id": ref, "content": content, "ref": ref} | fields))
        return await self.until(lambda frame: frame.get("ref") == fields.get("ref", ref))

    async def chat(self, content: str, **fields: Any) -> tuple[str, Frame]:
        """Run a whole turn; return the reply's kept text, and `done`."""
        accepted = await self.send_message(content, **fields)
        assert accepted["type"] == "accepted", accepted
        done = await self.until(is_end_of(accepted["turn_id"]))
        return text_of(self.seen, accepted["turn_id"]), done

    async def history(self, **fields: Any) -> list[Frame]:
        """Return the messages of a page."""
        await self.put(**({"type": "history"} | fields))
        page = await self.until("history")
        messages: list[Frame] = page["messages"]
        return messages


@asynccontextmanager
async def connect_client(url: str, client_id: str, **options: Any) -> AsyncIterator[WebSocketClient]:
    """Open a connection that said hello."""
    async with connect(url, **options) as socket:
        opened = WebSocketClient(socket)
        await opened.put(type="hello", client_id=client_id)
        ready = await opened.get()
        assert ready["type"] == "ready", ready
        yield opened


def is_end_of(turn_id: str) -> Callable[[Frame], bool]:
    """Return a check: does a frame end this turn?"""
    return lambda frame: frame["type"] == "done" and frame["turn_id"] == turn_id


def has_text(turn_id: str, chars: int = 1) -> Callable[[Frame], bool]:
    """Return a check: does a frame bring a turn's text to so many code points?"""
    return lambda frame: (
        frame["type"] == "delta"
        and frame["turn_id"] == turn_id
        and frame["off"] + len(frame["text"]) >= chars
    )


def text_of(frames: list[Frame], turn_id: str) -> str:
    """Return the joined deltas of a turn, cut to `done.chars`, after checks of offsets, order and the hash."""
    text, done = "", None
    for frame in frames:
        if frame.get("turn_id") != turn_id:
            continue
        if frame["type"] == "delta":
            assert done is None, "a delta after the end"
            assert frame["text"], "an empty delta"
            assert frame["off"] == len(text)
            text += frame["text"]
        elif frame["type"] == "done":
            assert done is None, "two ends"
            done = frame
    if done is not None:
        text = text[: done["chars"]]
        assert len(text) == done["chars"]
        assert hashlib.sha256(text.encode()).hexdigest() == done["text_sha256"]
    return text


def assert_no_hole(frames: list[Frame], conversation_id: str = "default") -> None:
    """Check that every journalled event was received, or is covered by the `first_seq` of one that was."""
    last: int | None = None
    for frame in frames:
        if frame.get("conversation_id") != conversation_id or frame.get("duplicate"):
            continue
        if frame["type"] in JOURNALLED:
            assert last is None or frame.get("first_seq", frame["seq"]) == last + 1, frame
            last = frame["seq"]
