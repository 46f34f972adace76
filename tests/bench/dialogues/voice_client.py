"""A telephone in real time: a microphone that is always on, and a player whose clock runs while it has sound.

And what is said to it: sentences of the demo's, spoken by espeak-ng, with a pause inside if requested.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
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
from tests.app.voice_client import RATE

GRAMMAR = Path(__file__).parents[3] / "demo_model" / "spoken.jsgf"
LOUD = 200
"""Loudness, of 32,767: speech ends after the last louder sample, before any noise is added."""
SILENCE_S = 0.5
"""A cascade takes so much silence for the end of an utterance."""
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
PATIENCE_S = 60.0
Frame = dict[str, Any]
Pcm = NDArray[np.int16]


class Reply(msgspec.Struct, kw_only=True):
    """One spoken reply. Times are of the clock; `got_ms`, `played_ms` of its sound.

    `ended_ms`: when it ended, by the sound that the microphone had sent.
    """

    turn_id: str
    stream: int
    first_sound_at: float | None = None
    last_played_at: float | None = None
    got_ms: float = 0.0
    played_ms: float = 0.0
    text: str = ""
    marks: list[Frame] = msgspec.field(default_factory=list)
    done: Frame | None = None
    ended_ms: float | None = None

    def heard_at(self, ms: float) -> int:
        """Return where its text ends that was heard once so much was played."""
        return max((mark["off"] + mark["len"] for mark in self.marks if mark["end_ms"] <= ms), default=0)


class VoiceClient:
    """One connection, in one conversation. Use `telephone`."""

    def __init__(self, socket: ClientConnection, conversation: str, *, noise: float, cascade: bool) -> None:
        """`noise`: root mean square, of 32,767. `cascade`: nothing begins until `SILENCE_S` after the end of speech."""
        self.frames: list[tuple[float, Frame]] = []
        self.replies: list[Reply] = []
        self.speech_ended_at = 0.0
        """Time at which the last sample of speech had left the microphone."""
        self.spoke_at = 0.0
        """Time at which the first one had."""
        self.spoke_ms = 0.0
        """The same, by the sound that the microphone had sent."""
        self._socket, self._conversation = socket, conversation
        self._cascade, self._noise, self._random = cascade, noise, np.random.default_rng(0)
        self._news = asyncio.Condition()
        self._stream = self._seq = 0
        self._line: deque[Pcm] = deque()
        self._left, self._begins = 0, False

    async def run(self) -> None:
        """Speak, listen and play, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen())
            await self._send(
                type="audio.start",
                input={"rate": RATE},
                output={"rate": RATE},
                turn_detection={"type": "none" if self._cascade else "vad"},
            )
            self._stream = (await self._received("audio.started"))["stream"]
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
            await asyncio.sleep(max(0.0, self.speech_ended_at + SILENCE_S - monotonic()))
            await self._send(type="audio.commit")

    async def answered(self, count: int) -> Reply:
        """Return the answer of this number once its first sound has come."""
        await self.until(
            lambda: len(self.replies) >= count and self.replies[count - 1].first_sound_at, within_s=30.0
        )
        return self.replies[count - 1]

    async def heard_out(self, answer: Reply) -> None:
        """Return once its turn is over: counting to sixty takes a minute."""
        await self.until(lambda: answer.done is not None, within_s=120.0)

    def frames_of(self, kind: str, since: float = 0.0) -> list[tuple[float, Frame]]:
        """Return the frames of a kind since a time."""
        return [(at, frame) for at, frame in self.frames if at >= since and frame["type"] == kind]

    async def until(self, holds: Callable[[], Any], *, within_s: float = PATIENCE_S) -> None:
        """Return once something is so. Raises TimeoutError."""
        async with asyncio.timeout(within_s), self._news:
            await self._news.wait_for(holds)

    async def history(self) -> list[Frame]:
        """Return the messages that the service stores. Raises TimeoutError."""
        since = monotonic()
        await self._send(type="history")
        messages: list[Frame] = (await self._received("history", since))["messages"]
        return messages

    async def _received(self, kind: str, since: float = 0.0) -> Frame:
        await self.until(lambda: self.frames_of(kind, since))
        return self.frames_of(kind, since)[0][1]

    async def _send(self, **frame: Any) -> None:
        await self._socket.send(json.dumps({"conversation_id": self._conversation} | frame))

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def _listen(self) -> None:
        async for message in self._socket:
            self._take(message, monotonic())
            await self._notify()

    def _take(self, message: str | bytes, at: float) -> None:
        if isinstance(message, bytes):
            for reply in self.replies:
                if reply.stream == HEAD.unpack_from(message)[2]:
                    reply.first_sound_at = reply.first_sound_at or at
                    reply.got_ms += (len(message) - HEAD.size) * 1000 / (2 * RATE)
            return
        frame: Frame = json.loads(message)
        self.frames.append((at, frame))
        if frame["type"] == "audio.reply":
            texts = [one["text"] for _, one in self.frames_of("delta") if one["turn_id"] == frame["turn_id"]]
            reply = Reply(turn_id=frame["turn_id"], stream=frame["stream"], text="".join(texts))
            self.replies.append(reply)
        for reply in self.replies:
            if reply.turn_id == frame.get("turn_id"):
                reply.marks += frame.get("marks", ())
                if frame["type"] == "delta":
                    reply.text += frame["text"]
                elif frame["type"] == "done":
                    reply.done, reply.ended_ms = frame, self.sent_ms

    async def _tick(self) -> None:
        begun, ticks = monotonic(), 0
        while True:
            ticks += 1
            await self._speak()
            await self._play(is_due=ticks % PLAYED_EVERY == 0)
            await asyncio.sleep(max(0.0, begun + ticks * TICK_S - monotonic()))

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

    async def _play(self, *, is_due: bool) -> None:
        for answer in self.replies:
            if answer.done is None and answer.played_ms < answer.got_ms:
                answer.last_played_at = monotonic()
                before = answer.heard_at(answer.played_ms)
                answer.played_ms = min(answer.got_ms, answer.played_ms + TICK_S * 1000)
                is_word = answer.heard_at(answer.played_ms) > before
                if is_word or is_due or answer.played_ms == answer.got_ms:
                    await self._send(type="played", turn_id=answer.turn_id, audio_ms=int(answer.played_ms))


@asynccontextmanager
async def telephone(
    url: str, client_id: str, conversation: str, *, noise: float, cascade: bool = False
) -> AsyncIterator[VoiceClient]:
    """Connect, say hello, and have a telephone run inside the block. Raises OSError, ConnectionClosed."""
    async with connect(url, max_queue=None) as socket:
        await socket.send(json.dumps({"type": "hello", "client_id": client_id, "features": ["audio"]}))
        while json.loads(await socket.recv())["type"] != "ready":
            pass
        phone = VoiceClient(socket, conversation, noise=noise, cascade=cascade)
        running = asyncio.create_task(phone.run())
        try:
            yield phone
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


class Utterance(msgspec.Struct, frozen=True):
    """Sound at `RATE`, and its words. `ends_at`: the sample after the last one of speech."""

    text: str
    pcm: Pcm
    ends_at: int


async def utterance(text: str, *, voice: str, pause_ms: int = 0) -> Utterance:
    """Speak a sentence; each ` | ` in it becomes a silence of `pause_ms`."""
    first, *others = [await _synthesize(part, voice) for part in text.split(" | ")]
    silence = np.zeros(RATE * pause_ms // 1000, np.int16)
    pcm = np.concatenate([first, *(sound for part in others for sound in (silence, part))])
    ends_at = int(np.flatnonzero(np.abs(pcm) > LOUD)[-1]) + 1
    return Utterance(text.replace(" |", ""), pcm, ends_at)


async def _synthesize(text: str, voice: str) -> Pcm:
    speech = await Espeak((voice,)).speak(text, voice=voice)
    samples = np.frombuffer(speech.pcm, "<i2").astype(np.float32)
    pcm = np.clip(soxr.resample(samples, speech.rate, RATE), -32768, 32767).astype(np.int16)
    received = np.flatnonzero(np.abs(pcm) > LOUD)
    return np.asarray(pcm[received[0] : received[-1] + 1])


def names() -> list[str]:
    """Return the names that the demo's grammar knows."""
    rule = GRAMMAR.read_text().partition("<name> = ")[2].partition(";")[0]
    return [one.strip() for one in rule.split("|")]
