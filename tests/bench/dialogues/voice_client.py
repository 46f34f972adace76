"""A telephone in real time: a microphone that is always on, and a player whose clock runs while it has sound.

And what is said to it: sentences of the demo's, spoken by espeak-ng, with a pause inside if requested.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from time import monotonic

import msgspec
import numpy as np
import soxr
from numpy.typing import NDArray
from websockets.asyncio.client import ClientConnection

from speech.espeak import Espeak
from tests import serve_with
from tests.app.voice_client import RATE
from tests.chaos.voice_client import TICK_S, Reply, VoiceClient, connected

GRAMMAR = Path(__file__).parents[3] / "demo_model" / "spoken.jsgf"
LOUD = 200
"""Loudness, of 32,767: speech ends after the last louder sample, before any noise is added."""
SILENCE_S = 0.5
"""A cascade takes so much silence for the end of an utterance."""
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
FRAME = RATE // 50
"""Samples of a tick."""
PLAYED_EVERY = 5
"""Ticks between two `played`, a tenth of a second; each word is told where it ends, too, as clients do."""


class RealtimeVoiceClient(VoiceClient):
    """One conversation over a socket. Use `telephone`."""

    def __init__(self, socket: ClientConnection, conversation: str, *, noise: float, cascade: bool) -> None:
        """`noise`: root mean square, of 32,767. `cascade`: nothing begins until `SILENCE_S` after the end of speech."""
        super().__init__(socket, conversation)
        self.speech_ended_at = 0.0
        """Time at which the last sample of speech had left the microphone."""
        self.spoke_at = 0.0
        """Time at which the first one had."""
        self.spoke_ms = 0.0
        """The same, by the sound that the microphone had sent."""
        self._cascade, self._noise, self._random = cascade, noise, np.random.default_rng(0)
        self._line: deque[Pcm] = deque()
        self._left, self._begins = 0, False
        self._ticks = 0

    async def run(self) -> None:
        """Speak, listen and play, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().run())
            await self.start(
                input={"rate": RATE},
                output={"rate": RATE},
                turn_detection={"type": "none" if self._cascade else "vad"},
            )
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
            await self.send(type="audio.commit")

    async def answered(self, count: int) -> Reply:
        """Return the answer of this number once its first sound has come."""
        await self.until(
            lambda: len(self.replies) >= count and self.replies[count - 1].first_sound_at, within_s=30.0
        )
        return self.replies[count - 1]

    async def heard_out(self, answer: Reply) -> None:
        """Return once its turn is over: counting to sixty takes a minute."""
        await self.until(lambda: answer.done is not None, within_s=120.0)

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
        await self.send_audio(frame.astype("<i2").tobytes())
        if self._begins:
            self._begins, self.spoke_at, self.spoke_ms = False, monotonic(), self.sent_ms
        if self._left:
            self._left -= 1
            if not self._left:
                self.speech_ended_at = monotonic()
                await self._notify()

    async def _play(self) -> None:
        for answer in self.replies:
            if answer.done is None and answer.played_ms < answer.got_ms:
                answer.last_played_at = monotonic()
                before = answer.heard_at(answer.played_ms)
                answer.played_ms = min(answer.got_ms, answer.played_ms + TICK_S * 1000)
                is_word = answer.heard_at(answer.played_ms) > before
                if is_word or self._ticks % PLAYED_EVERY == 0 or answer.played_ms == answer.got_ms:
                    await self.send_played(answer)


def telephone(
    url: str, client_id: str, conversation: str, *, noise: float, cascade: bool = False
) -> AbstractAsyncContextManager[RealtimeVoiceClient]:
    """Connect, say hello, and have a telephone run inside the block."""

    def make(socket: ClientConnection) -> RealtimeVoiceClient:
        return RealtimeVoiceClient(socket, conversation, noise=noise, cascade=cascade)

    return connected(url, client_id, make)


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


def names() -> list[str]:
    """Return the names that the demo's grammar knows."""
    rule = GRAMMAR.read_text().partition("<name> = ")[2].partition(";")[0]
    return [one.strip() for one in rule.split("|")]
