"""A client with a microphone and a player, for tests of spoken conversations."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import soxr
from jsonschema import Draft202012Validator

from connections.protocol.audio import HEAD, LAST, SOUND
from specs import schemas
from speech.espeak import Espeak
from tests.app.in_process_service import Frame, InProcessService, Socket

RATE = 16_000
OUTPUT = {"format": "pcm16", "rate": RATE}
GRAMMAR = str(Path(__file__).parent.parent / "e2e" / "demo.jsgf")
SILENCE = bytes(2 * RATE)
"""One second of silence."""
FRAMES = Draft202012Validator(schemas.document())


async def synthesize(text: str, rate: int = RATE) -> bytes:
    """Return a text in the voice of espeak-ng, as 16-bit PCM."""
    spoken = await Espeak(("en-gb",)).speak(text, voice="en-gb")
    samples = np.frombuffer(spoken.pcm, "<i2")
    return np.asarray(soxr.resample(samples, spoken.rate, rate), "<i2").tobytes()


def to_its_last_word(sound: bytes) -> bytes:
    """Return sound without the silence at its end."""
    samples = np.frombuffer(sound, "<i2")
    return samples[: int(np.flatnonzero(np.abs(samples) > 200)[-1]) + 1].tobytes()


class VoiceClient:
    """A client with a microphone and a player. It has played as much as it reports."""

    def __init__(self, socket: Socket, place: str) -> None:
        self.socket, self.place = socket, place
        self.stream = self.seq = 0
        self.turn, self.got, self.from_ms = "", 0, 0
        self.is_whole = False
        self.marks: list[Frame] = []
        self.frames: list[Frame] = []

    async def start(self, **more: Any) -> VoiceClient:
        await self.socket.send(
            type="audio.start", conversation_id=self.place, **({"input": OUTPUT, "output": OUTPUT} | more)
        )
        self.stream = (await self.until("audio.started"))["stream"]
        return self

    async def send_audio(self, sound: bytes) -> None:
        for at in range(0, len(sound), 1280):
            self.seq += 1
            head = HEAD.pack(SOUND, 0, self.stream, self.seq)
            await self.socket.opened.send(head + sound[at : at + 1280])
            await asyncio.sleep(0)

    async def say(self, text: str) -> None:
        """Send a sentence between silences."""
        await self.send_audio(SILENCE[:16000] + await synthesize(text) + SILENCE)

    async def take(self) -> Frame | None:
        """Return the next frame, or None for a frame of sound."""
        message = await self.socket.opened.recv()
        if isinstance(message, bytes):
            self.got += len(message) - HEAD.size
            self.is_whole = bool(HEAD.unpack_from(message)[1] & LAST)
            return None
        frame: Frame = json.loads(message)
        assert FRAMES.is_valid(frame), frame
        self.frames.append(frame)
        if frame["type"] == "audio.reply":
            self.turn, self.got, self.from_ms = frame["turn_id"], 0, frame["from_ms"]
            self.is_whole, self.marks = False, []
        elif frame["type"] == "marks":
            self.marks += frame["marks"]
        return frame

    async def until(self, kind: str, **fields: Any) -> Frame:
        while True:
            frame = await self.take()
            if frame is not None and frame["type"] == kind and fields.items() <= frame.items():
                return frame

    @property
    def final_transcripts(self) -> list[str]:
        """The words of all utterances that have ended."""
        return [frame["text"] for frame in self.frames if frame["type"] == "transcript" and frame["final"]]

    @property
    def received_ms(self) -> int:
        return self.from_ms + self.got * 1000 // (2 * RATE)

    async def play(self, ms: float, chance: random.Random | None = None) -> None:
        """Play part of the reply, in steps that a real player might report."""
        reported = 0
        while reported < ms and not (self.is_whole and reported >= self.received_ms):
            while self.received_ms <= reported:
                await self.take()
            step = 200 if chance is None else chance.randint(30, 350)
            reported = int(min(reported + step, self.received_ms, ms))
            await self.played(reported)

    async def played(self, ms: int) -> None:
        await self.socket.send(type="played", conversation_id=self.place, turn_id=self.turn, audio_ms=ms)

    async def kept(self) -> list[str]:
        """Return the history."""
        await self.socket.send(type="history", conversation_id=self.place)
        return [message["content"] for message in (await self.until("history"))["messages"]]


@asynccontextmanager
async def speaking(running: InProcessService, place: str, **start: Any) -> AsyncIterator[VoiceClient]:
    """Connect a client that speaks in a conversation, both of the same name."""
    async with running.socket({"client_id": place, "features": ["audio"]}) as socket:
        yield await VoiceClient(socket, place).start(**start)
