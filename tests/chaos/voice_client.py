"""A client of a spoken conversation, and what it hears."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, TypeVar

import msgspec
from websockets.asyncio.client import ClientConnection, connect

from connections.protocol.audio import HEAD, SOUND
from tests.app.voice_client import OUTPUT, RATE

TICK_S = 0.02
PATIENCE_S = 60.0
Frame = dict[str, Any]


class Reply(msgspec.Struct, kw_only=True):
    """One spoken reply. Times are of the clock; `got_ms`, `played_ms` of its sound.

    `ended_ms`: when it ended, by the sound that the microphone had sent.
    """

    turn_id: str
    stream: int
    first_sound_at: float | None = None
    last_sound_at: float = 0.0
    last_played_at: float | None = None
    got_ms: float = 0.0
    played_ms: float = 0.0
    is_stopped: bool = False
    text: str = ""
    marks: list[Frame] = msgspec.field(default_factory=list)
    done: Frame | None = None
    ended_ms: float | None = None

    def heard_at(self, ms: float) -> int:
        """Return where its text ends that was heard once so much was played."""
        return max((mark["off"] + mark["len"] for mark in self.marks if mark["end_ms"] <= ms), default=0)


class VoiceClient:
    """One connection, in one conversation. Use `connected`."""

    def __init__(self, socket: ClientConnection, conversation: str) -> None:
        self.conversation = conversation
        self.frames: list[tuple[float, Frame]] = []
        self.replies: list[Reply] = []
        self._socket = socket
        self._stream = self._seq = 0
        self._texts: dict[str, str] = {}
        self._news = asyncio.Condition()

    @property
    def sent_ms(self) -> float:
        """How much sound the microphone has sent."""
        return 0.0

    async def run(self) -> None:
        """Read until cancelled."""
        async for message in self._socket:
            self._take(message, monotonic())
            await self._notify()

    async def send(self, **frame: Any) -> None:
        """Send a frame about the conversation."""
        await self._socket.send(json.dumps({"conversation_id": self.conversation} | frame))

    async def send_audio(self, sound: bytes) -> None:
        """Send one frame of sound."""
        self._seq += 1
        await self._socket.send(HEAD.pack(SOUND, 0, self._stream, self._seq) + sound)

    async def start(self, **more: Any) -> None:
        """Begin to speak in the conversation. Raises TimeoutError."""
        await self.send(type="audio.start", **({"input": OUTPUT, "output": OUTPUT} | more))
        self._stream = (await self.received("audio.started"))["stream"]

    async def received(self, kind: str, *, since: float = 0.0, **fields: Any) -> Frame:
        """Return the first frame of a kind, with these fields, that came since. Raises TimeoutError."""
        return (await self.arrived(kind, since=since, **fields))[1]

    async def arrived(self, kind: str, *, since: float = 0.0, **fields: Any) -> tuple[float, Frame]:
        """Return the same, and when it came. Raises TimeoutError."""
        await self.until(lambda: bool(self.frames_of(kind, since, **fields)))
        return self.frames_of(kind, since, **fields)[0]

    def frames_of(self, kind: str, since: float = 0.0, **fields: Any) -> list[tuple[float, Frame]]:
        """Return the frames of a kind, with these fields, since a time."""
        wanted = {"type": kind} | fields
        return [(at, frame) for at, frame in self.frames if at >= since and wanted.items() <= frame.items()]

    async def until(self, holds: Callable[[], Any], *, within_s: float = PATIENCE_S) -> None:
        """Return once something is so. Raises TimeoutError."""
        async with asyncio.timeout(within_s), self._news:
            await self._news.wait_for(holds)

    async def history(self) -> list[Frame]:
        """Return the messages that the service stores. Raises TimeoutError."""
        since = monotonic()
        await self.send(type="history")
        messages: list[Frame] = (await self.received("history", since=since))["messages"]
        return messages

    async def send_played(self, reply: Reply) -> None:
        """Report how far a reply was played."""
        await self.send(type="played", turn_id=reply.turn_id, audio_ms=int(reply.played_ms))

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()

    def _take(self, message: str | bytes, at: float) -> None:
        if isinstance(message, bytes):
            for reply in self.replies:
                if reply.stream == HEAD.unpack_from(message)[2]:
                    reply.first_sound_at, reply.last_sound_at = reply.first_sound_at or at, at
                    reply.got_ms += (len(message) - HEAD.size) * 1000 / (2 * RATE)
            return
        frame: Frame = json.loads(message)
        self.frames.append((at, frame))
        if frame["type"] == "audio.reply":
            self.replies.append(Reply(turn_id=frame["turn_id"], stream=frame["stream"]))
        elif frame["type"] == "delta":
            self._texts[frame["turn_id"]] = self._texts.get(frame["turn_id"], "") + frame["text"]
        for reply in self.replies:
            if reply.turn_id == frame.get("turn_id"):
                reply.marks += frame.get("marks", ())
                if frame["type"] == "done":
                    reply.done, reply.ended_ms = frame, self.sent_ms
                    reply.text = self._texts.get(reply.turn_id, "")


V = TypeVar("V", bound=VoiceClient)


@asynccontextmanager
async def connected(url: str, client_id: str, make: Callable[[ClientConnection], V]) -> AsyncIterator[V]:
    """Connect, say hello, and have a voice client run inside the block. Raises OSError, ConnectionClosed."""
    async with connect(url, max_queue=None) as socket:
        await socket.send(json.dumps({"type": "hello", "client_id": client_id, "features": ["audio"]}))
        while json.loads(await socket.recv())["type"] != "ready":
            pass
        made = make(socket)
        running = asyncio.create_task(made.run())
        try:
            yield made
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
