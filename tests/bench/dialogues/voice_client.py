"""A telephone in real time: a microphone that is always on, and a player whose clock runs while it has sound.

And what is said to it: sentences of the demo's, spoken by espeak-ng, with a pause inside if requested.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import numpy as np
import soxr
from numpy.typing import NDArray
from websockets.asyncio.client import ClientConnection, connect

from connections.protocol.audio import HEAD, SOUND
from speech.espeak import Espeak
from tests import serve_with
from tests.speech.numbers_in_words import in_words

RATE = 16_000
GRAMMAR = Path(__file__).parents[3] / "demo_model" / "spoken.jsgf"
LOUD = 200
"""Loudness, of 32,767: speech ends after the last louder sample, before any noise is added."""
Pcm = NDArray[np.int16]
SPEECH = {
    "MIDSTREAM_SPEECH": "both",
    "MIDSTREAM_SPEECH_RECOGNIZER": str(GRAMMAR),
    "MIDSTREAM_LIMITS": "message_rate=1000",
}
"""Settings of a service that hears and speaks."""
SERVE = serve_with.command(max_speech=64)
"""Such a service has room for all of them."""
VOICES = ("en-gb", "en-us")
TICK_S = 0.02
FRAME = RATE // 50
"""Samples of a tick."""
PLAYED_EVERY = 5
"""Ticks between two `played`, a tenth of a second; each word is told where it ends, too, as clients do."""
Frame = dict[str, Any]


class Answer(msgspec.Struct, kw_only=True):
    """One spoken reply, as its listener has it. Times are of the clock; `played_ms` and `got_ms` of its sound.

    `ended_ms`: when it ended, by the sound that the microphone had sent.
    """

    turn_id: str
    began_at: float
    first_sound_at: float | None = None
    last_played_at: float | None = None
    got_ms: float = 0.0
    played_ms: float = 0.0
    text: str = ""
    marks: list[Frame] = msgspec.field(default_factory=list)
    done: Frame | None = None
    ended_ms: float | None = None

    @property
    def heard_off(self) -> int:
        """End of the last word that was played."""
        played = [mark["off"] + mark["len"] for mark in self.marks if mark["end_ms"] <= self.played_ms]
        return max(played, default=0)


class RealtimeVoiceClient:
    """One conversation over a socket. Use `telephone`."""

    def __init__(
        self, socket: ClientConnection, conversation: str, *, silence_ms: int, noise: float, cascade: bool
    ) -> None:
        """`noise`: root mean square, of 32,767. `cascade`: nothing begins until `silence_ms` after the end of speech."""
        self.conversation = conversation
        self.frames: list[tuple[float, Frame]] = []
        self.answers: list[Answer] = []
        self.speech_ended_at = 0.0
        """Time at which the last sample of speech had left the microphone."""
        self.spoke_at = 0.0
        """Time at which the first one had."""
        self.spoke_ms = 0.0
        """The same, by the sound that the microphone had sent."""
        self._socket = socket
        self._silence_ms, self._cascade = silence_ms, cascade
        self._noise, self._random = noise, np.random.default_rng(0)
        self._line: deque[Pcm] = deque()
        self._left, self._begins = 0, False
        self._texts: dict[str, str] = {}
        self._stream = self._seq = self._ticks = 0
        self._news = asyncio.Condition()

    async def run(self) -> None:
        """Speak, listen and play, until cancelled."""
        await self._send(
            type="audio.start",
            conversation_id=self.conversation,
            input={"rate": RATE},
            output={"rate": RATE},
            turn_detection={"type": "none" if self._cascade else "vad"},
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read())
            await self.until(lambda: bool(self._stream))
            tasks.create_task(self._tick())

    @property
    def sent_ms(self) -> float:
        """How much sound the microphone has sent."""
        return self._seq * TICK_S * 1000

    async def speak(self, utterance: Utterance) -> None:
        """Say an utterance; return once it was said."""
        whole = np.pad(utterance.pcm, (0, -len(utterance.pcm) % FRAME))
        self._line.extend(whole[start : start + FRAME] for start in range(0, len(whole), FRAME))
        self._left, self._begins = -(-utterance.ends_at // FRAME), True
        await self.until(lambda: not self._left)
        if self._cascade:
            await asyncio.sleep(max(0.0, self.speech_ended_at + self._silence_ms / 1000 - monotonic()))
            await self._send(type="audio.commit", conversation_id=self.conversation)

    async def until(self, holds: Callable[[], Any], *, within_s: float = 30.0) -> None:
        """Return once `holds` is true. Raises TimeoutError."""
        async with asyncio.timeout(within_s), self._news:
            await self._news.wait_for(holds)

    async def answered(self, count: int) -> Answer:
        """Return the answer of this number once its first sound has come."""
        await self.until(lambda: len(self.answers) >= count and self.answers[count - 1].first_sound_at)
        return self.answers[count - 1]

    async def heard_out(self, answer: Answer) -> None:
        """Return once its turn is over: counting to sixty takes a minute."""
        await self.until(lambda: answer.done is not None, within_s=120.0)

    def frames_of(self, kind: str, since: float = 0.0) -> list[tuple[float, Frame]]:
        """Return the frames of a kind since a time."""
        return [(at, frame) for at, frame in self.frames if frame["type"] == kind and at >= since]

    async def history(self) -> list[Frame]:
        """Return the messages that the service stores."""
        since = monotonic()
        await self._send(type="history", conversation_id=self.conversation)
        await self.until(lambda: bool(self.frames_of("history", since)))
        messages: list[Frame] = self.frames_of("history", since)[-1][1]["messages"]
        return messages

    async def _send(self, **frame: Any) -> None:
        await self._socket.send(json.dumps(frame))

    async def _tick(self) -> None:
        begun = monotonic()
        while True:
            self._ticks += 1
            await self._speak()
            await self._play()
            await asyncio.sleep(max(0.0, begun + self._ticks * TICK_S - monotonic()))

    async def _speak(self) -> None:
        frame = self._line.popleft() if self._line else np.zeros(FRAME, np.int16)
        if self._noise:
            noisy = frame + self._random.normal(0, self._noise, FRAME)
            frame = np.clip(noisy, -32768, 32767).astype(np.int16)
        self._seq += 1
        await self._socket.send(HEAD.pack(SOUND, 0, self._stream, self._seq) + frame.astype("<i2").tobytes())
        if self._begins:
            self._begins, self.spoke_at, self.spoke_ms = False, monotonic(), self.sent_ms
        if self._left:
            self._left -= 1
            if not self._left:
                self.speech_ended_at = monotonic()
                await self._notify()

    async def _play(self) -> None:
        for answer in self.answers:
            if answer.done is None and answer.played_ms < answer.got_ms:
                answer.last_played_at = monotonic()
                before = answer.heard_off
                answer.played_ms = min(answer.got_ms, answer.played_ms + TICK_S * 1000)
                is_word = answer.heard_off > before
                if is_word or self._ticks % PLAYED_EVERY == 0 or answer.played_ms == answer.got_ms:
                    played = {"turn_id": answer.turn_id, "audio_ms": int(answer.played_ms)}
                    await self._send(type="played", conversation_id=self.conversation, **played)

    async def _read(self) -> None:
        async for message in self._socket:
            at = monotonic()
            if isinstance(message, bytes):
                self._take_sound(message, at)
            else:
                self._take(json.loads(message), at)
            await self._notify()

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()

    def _take_sound(self, message: bytes, at: float) -> None:
        answer = self.answers[-1]
        answer.first_sound_at = answer.first_sound_at or at
        answer.got_ms += (len(message) - HEAD.size) * 1000 / (2 * RATE)

    def _take(self, frame: Frame, at: float) -> None:
        self.frames.append((at, frame))
        match frame["type"]:
            case "audio.started":
                self._stream = frame["stream"]
            case "audio.reply":
                self.answers.append(Answer(turn_id=frame["turn_id"], began_at=at))
            case "delta":
                self._texts[frame["turn_id"]] = self._texts.get(frame["turn_id"], "") + frame["text"]
            case "marks":
                next(one for one in self.answers if one.turn_id == frame["turn_id"]).marks += frame["marks"]
            case "done":
                for answer in self.answers:
                    if answer.turn_id == frame["turn_id"]:
                        answer.done, answer.ended_ms = frame, self.sent_ms
                        answer.text = self._texts.get(answer.turn_id, "")


@asynccontextmanager
async def telephone(
    url: str, client_id: str, conversation: str, *, silence_ms: int, noise: float, cascade: bool = False
) -> AsyncIterator[RealtimeVoiceClient]:
    """Connect, say hello, and have a telephone run inside the block."""
    async with connect(url, max_queue=None) as socket:
        await socket.send(json.dumps({"type": "hello", "client_id": client_id, "features": ["audio"]}))
        while json.loads(await socket.recv())["type"] != "ready":
            pass
        phone = RealtimeVoiceClient(socket, conversation, silence_ms=silence_ms, noise=noise, cascade=cascade)
        line = asyncio.create_task(phone.run())
        try:
            yield phone
        finally:
            line.cancel()
            await asyncio.gather(line, return_exceptions=True)


class Utterance(msgspec.Struct, frozen=True):
    """Sound at `RATE`, and its words. `ends_at`: the sample after the last one of speech."""

    text: str
    pcm: Pcm
    ends_at: int


async def utterance(text: str, *, voice: str, pause_ms: int = 0) -> Utterance:
    """Speak a sentence; each ` | ` in it becomes a silence of `pause_ms`."""
    parts = [await _synthesize(part, voice) for part in text.split(" | ")]
    silence = np.zeros(RATE * pause_ms // 1000, np.int16)
    pcm = parts[0]
    for part in parts[1:]:
        pcm = np.concatenate((pcm, silence, part))
    ends_at = int(np.flatnonzero(np.abs(pcm) > LOUD)[-1]) + 1
    return Utterance(text.replace(" |", ""), pcm, ends_at)


async def _synthesize(text: str, voice: str) -> Pcm:
    speech = await Espeak((voice,)).speak(text, voice=voice)
    samples = np.frombuffer(speech.pcm, "<i2").astype(np.float32)
    pcm = np.clip(soxr.resample(samples, speech.rate, RATE), -32768, 32767).astype(np.int16)
    received = np.flatnonzero(np.abs(pcm) > LOUD)
    return np.asarray(pcm[received[0] : received[-1] + 1])


@cache
def _choices(rule: str) -> tuple[str, ...]:
    found = re.search(rf"<{rule}> = ([^;]*);", GRAMMAR.read_text())
    assert found is not None, rule
    return tuple(" ".join(one.split()) for one in found[1].split("|"))


def drawn(rule: str, rng: random.Random) -> str:
    """Return one of the words that a rule of the demo's grammar allows."""
    return rng.choice(_choices(rule))


def number(rng: random.Random, most: int) -> str:
    """Return a number in words, from one on."""
    return in_words(rng.randint(1, most))
