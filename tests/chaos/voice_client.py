"""Somebody who says one thing and listens to its reply: with a player whose clock is off, and whose word of it comes late."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from random import Random
from time import monotonic
from typing import Any

import msgspec
import numpy as np
import soxr
from websockets.asyncio.client import ClientConnection

from connections.protocol.audio import HEAD, SOUND
from speech.espeak import Espeak

RATE = 16_000
FRAME = RATE // 25 * 2
"""Bytes of 40 ms."""
FRAME_S = 0.04
TICK_S = 0.02
DRIFT = 0.03
"""A player's clock may be so much faster or slower than the sound's."""
PLAYED_EVERY_MS = (100, 250)
"""Between two `played`, as the protocol asks for it."""
LATE_S = 0.2
"""So late they may come."""
PATIENCE_S = 60.0
SILENCE = bytes(2 * RATE)
"""A second."""
SOUND_FORMAT = {"format": "pcm16", "rate": RATE}
Frame = dict[str, Any]


async def synthesize(text: str) -> bytes:
    """A text in the voice of espeak-ng."""
    speech = await Espeak(("en-gb",)).speak(text, voice="en-gb")
    samples = np.frombuffer(speech.pcm, "<i2")
    return np.asarray(soxr.resample(samples, speech.rate, RATE), "<i2").tobytes()


class Reply(msgspec.Struct, kw_only=True):
    """One spoken reply. Times are of the clock; `got_ms`, `played_ms` of its sound."""

    turn_id: str
    stream: int
    got_ms: float = 0.0
    played_ms: float = 0.0
    last_sound_at: float = 0.0
    is_stopped: bool = False
    marks: list[Frame] = msgspec.field(default_factory=list)

    def heard_at(self, ms: int) -> int:
        """Where its text ends that was heard once so much was played."""
        return max((mark["off"] + mark["len"] for mark in self.marks if mark["end_ms"] <= ms), default=0)


class VoiceClient:
    """One connection, in one conversation. Use `listening` around everything else."""

    def __init__(self, socket: ClientConnection, place: str, chance: Random) -> None:
        self.frames: list[tuple[float, Frame]] = []
        self.replies: list[Reply] = []
        self._socket, self._place, self._chance = socket, place, chance
        self._drift = 1 + chance.uniform(-DRIFT, DRIFT)
        self._stream = self._seq = 0
        self._news = asyncio.Condition()
        self._late: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Read and play, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read())
                tasks.create_task(self._play())
        finally:
            for task in self._late:
                task.cancel()
            await asyncio.gather(*self._late, return_exceptions=True)

    async def start(self, **more: Any) -> None:
        """Begin to speak in the conversation. Raises TimeoutError."""
        await self.send(type="audio.start", input=SOUND_FORMAT, output=SOUND_FORMAT, grace_s=0, **more)
        self._stream = (await self.received("audio.started"))["stream"]

    async def send_audio(self, sound: bytes, *, in_time: bool = False) -> None:
        """Send audio: at once, or as long as it takes."""
        begun = monotonic()
        for number, at in enumerate(range(0, len(sound), FRAME)):
            self._seq += 1
            head = HEAD.pack(SOUND, 0, self._stream, self._seq)
            await self._socket.send(head + sound[at : at + FRAME])
            await asyncio.sleep(max(0.0, begun + number * FRAME_S - monotonic()) if in_time else 0)

    async def send(self, **frame: Any) -> None:
        """Send a frame about the conversation."""
        await self._socket.send(json.dumps({"conversation_id": self._place} | frame))

    async def received(self, kind: str, *, since: float = 0.0, **fields: Any) -> Frame:
        """The first frame of a kind, with these fields, that came since. Raises TimeoutError."""
        return (await self.arrived(kind, since=since, **fields))[1]

    async def arrived(self, kind: str, *, since: float = 0.0, **fields: Any) -> tuple[float, Frame]:
        """The same, and when it came. Raises TimeoutError."""

        def fits(at: float, frame: Frame) -> bool:
            return at >= since and frame["type"] == kind and fields.items() <= frame.items()

        def found() -> list[tuple[float, Frame]]:
            return [(at, frame) for at, frame in self.frames if fits(at, frame)]

        await self.until(lambda: bool(found()))
        return found()[0]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return once something is so. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(holds)

    async def stop_playing(self, reply: Reply) -> int:
        """Stop playing, and report exactly how far it came; gives that."""
        reply.is_stopped = True
        await self._send_played(reply.turn_id, int(reply.played_ms))
        return int(reply.played_ms)

    async def history(self) -> list[Frame]:
        """The messages that are kept. Raises TimeoutError."""
        since = monotonic()
        await self.send(type="history")
        messages: list[Frame] = (await self.received("history", since=since))["messages"]
        return messages

    async def _send_played(self, turn_id: str, ms: int) -> None:
        await self.send(type="played", turn_id=turn_id, audio_ms=ms)

    async def _send_played_late(self, turn_id: str, ms: int, late_s: float) -> None:
        await asyncio.sleep(late_s)
        await self._send_played(turn_id, ms)

    async def _play(self) -> None:
        """Play what is there, in jumps, and say so now and then, later than it was so."""
        before, due = monotonic(), 0.0
        while True:
            await asyncio.sleep(self._chance.uniform(0.2, 1.8) * TICK_S)
            now = monotonic()
            passed_ms, before = (now - before) * 1000 * self._drift, now
            for reply in self.replies:
                if not reply.is_stopped:
                    reply.played_ms = min(reply.got_ms, reply.played_ms + passed_ms)
            if now >= due and self.replies and not self.replies[-1].is_stopped:
                due = now + self._chance.uniform(*PLAYED_EVERY_MS) / 1000
                late = self._send_played_late(
                    self.replies[-1].turn_id, int(self.replies[-1].played_ms), self._chance.uniform(0, LATE_S)
                )
                self._late.add(task := asyncio.create_task(late))
                task.add_done_callback(self._late.discard)
            async with self._news:
                self._news.notify_all()

    async def _read(self) -> None:
        async for message in self._socket:
            at = monotonic()
            if isinstance(message, bytes):
                self._take_sound(message, at)
            else:
                self._take(json.loads(message), at)
            async with self._news:
                self._news.notify_all()

    def _take_sound(self, message: bytes, at: float) -> None:
        stream = HEAD.unpack_from(message)[2]
        for reply in self.replies:
            if reply.stream == stream:
                reply.got_ms += (len(message) - HEAD.size) * 1000 / (2 * RATE)
                reply.last_sound_at = at

    def _take(self, frame: Frame, at: float) -> None:
        self.frames.append((at, frame))
        if frame["type"] == "audio.reply":
            self.replies.append(Reply(turn_id=frame["turn_id"], stream=frame["stream"]))
        elif frame["type"] == "marks":
            for reply in self.replies:
                if reply.turn_id == frame["turn_id"]:
                    reply.marks += frame["marks"]
