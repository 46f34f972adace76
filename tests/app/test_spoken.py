"""A spoken turn is a turn: said into a real service over its socket, heard by PocketSphinx, answered by espeak-ng, and interrupted."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import soxr
from jsonschema import Draft202012Validator

from connections.wire.audio import HEAD, LAST, SOUND
from engine.scripted.engine import ScriptedEngine
from specs import schemas
from speech.voice.timed_espeak import TimedEspeak
from tests.app.in_process import Frame, Running, Socket, serving
from tests.server_process import child_of

pytestmark = [
    pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng"),
    pytest.mark.asyncio(loop_scope="module"),
]
RATE = 16_000
OUTPUT = {"format": "pcm16", "rate": RATE}
GRAMMAR = str(Path(__file__).parent.parent / "e2e" / "demo.jsgf")
REPLY = "One, two, three, four, five, six, seven, eight, nine and ten."
SILENCE = bytes(2 * RATE)
FRAMES = Draft202012Validator(schemas.document())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    engine = ScriptedEngine(reply=REPLY)
    folder = tmp_path_factory.mktemp("spoken")
    options: dict[str, Any] = {"speech": "both", "speech_grammar": GRAMMAR, "message_rate": 1000}
    async with serving(folder, engine, **options) as service:
        yield service


async def spoken(text: str) -> bytes:
    said = await TimedEspeak(("en-gb",)).speak(text, voice="en-gb")
    samples = np.frombuffer(said.pcm, "<i2")
    return np.asarray(soxr.resample(samples, said.rate, RATE), "<i2").tobytes()


class Phone:
    """A client with a microphone and a player. It has played what it says that it has."""

    def __init__(self, socket: Socket, place: str) -> None:
        self.socket, self.place = socket, place
        self.stream = self.seq = 0
        self.turn, self.got, self.from_ms = "", 0, 0
        self.is_whole = False
        self.marks: list[Frame] = []
        self.frames: list[Frame] = []

    async def start(self, **more: Any) -> Phone:
        await self.socket.send(
            type="audio.start", conversation_id=self.place, input=OUTPUT, **({"output": OUTPUT} | more)
        )
        self.stream = (await self.until("audio.started"))["stream"]
        return self

    async def say(self, sound: bytes) -> None:
        for at in range(0, len(sound), 1280):
            self.seq += 1
            head = HEAD.pack(SOUND, 0, self.stream, self.seq)
            await self.socket.opened.send(head + sound[at : at + 1280])
            await asyncio.sleep(0)

    async def take(self) -> Frame | None:
        """The next frame; None where it was sound."""
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
    def has_ms(self) -> int:
        return self.from_ms + self.got * 1000 // (2 * RATE)

    async def play(self, ms: float, chance: random.Random | None = None) -> None:
        """Play so much of the reply, in steps that a player might tell of."""
        told = 0
        while told < ms and not (self.is_whole and told >= self.has_ms):
            while self.has_ms <= told:
                await self.take()
            step = 200 if chance is None else chance.randint(30, 350)
            told = int(min(told + step, self.has_ms, ms))
            await self.played(told)

    async def played(self, ms: int) -> None:
        await self.socket.send(type="played", conversation_id=self.place, turn_id=self.turn, audio_ms=ms)

    async def kept(self) -> list[str]:
        """The history."""
        await self.socket.send(type="history", conversation_id=self.place)
        return [message["content"] for message in (await self.until("history"))["messages"]]


async def test_what_is_said_is_a_message_and_its_turn_ends_when_it_was_played(running: Running) -> None:
    async with running.socket({"client_id": "anna", "features": ["audio"]}) as socket:
        assert "audio" in socket.ready["features"]
        phone = await Phone(socket, "whole").start()
        await phone.say(SILENCE[:16000] + await spoken("What did you say last?") + SILENCE)
        heard = await phone.until("heard", final=True)
        assert heard["text"] == "what did you say last"
        await phone.until("marks")
        assert await phone.kept() == ["what did you say last", REPLY]  # written, and not played so far
        assert not [frame for frame in phone.frames if frame["type"] == "done"]
        await phone.play(1e9)
        assert (await phone.until("done"))["reason"] == "stop"
        words = [REPLY[mark["off"] : mark["off"] + mark["len"]] for mark in phone.marks]
        assert " ".join(words) == REPLY


async def test_random_cuts_keep_the_word_that_was_heard(running: Running) -> None:
    """From the real service: its voice, its pacing, its history."""
    sound = SILENCE[:16000] + await spoken("Count from one to ten.") + SILENCE
    async with running.socket({"client_id": "ben", "features": ["audio"]}) as socket:
        for seed in range(20):
            chance = random.Random(seed)
            phone = await Phone(socket, f"cut-{seed}").start()
            await phone.say(sound)
            await phone.until("marks")
            until = chance.randint(0, phone.marks[-1]["end_ms"])
            await phone.play(until, chance)
            await socket.send(type="cancel", turn_id=phone.turn)
            await phone.played(999_999)  # too late
            done = await phone.until("done", turn_id=phone.turn)
            ends = [mark["off"] + mark["len"] for mark in phone.marks if mark["end_ms"] <= until]
            kept = REPLY[: ends[-1] if ends else 0]
            assert (done["chars"], done["cancel"]["precision"]) == (len(kept), "word"), seed
            assert (await phone.kept())[1:] == ([kept] if kept else [""]), seed
            await socket.send(type="audio.stop", conversation_id=phone.place)
            await phone.until("audio.stopped")


async def test_speech_over_a_reply_ends_it_at_what_was_heard_and_is_answered(running: Running) -> None:
    async with running.socket({"client_id": "cleo", "features": ["audio"]}) as socket:
        phone = await Phone(socket, "barge").start()
        await phone.say(SILENCE[:16000] + await spoken("Count from one to ten.") + SILENCE)
        await phone.until("marks")
        first, heard_ms = phone.turn, phone.marks[2]["end_ms"]
        await phone.play(heard_ms)
        await phone.say(await spoken("What did you say last?") + SILENCE)
        done = await phone.until("done", turn_id=first)
        assert (done["reason"], done["chars"]) == ("cancelled", len("One, two, three,"))
        while phone.turn == first:
            await phone.take()
        assert (await phone.kept())[:3] == [
            "count from one to ten",
            "One, two, three,",
            "what did you say last",
        ]


async def test_who_comes_back_hears_on_from_what_was_played(running: Running) -> None:
    async with running.socket({"client_id": "dora", "features": ["audio"]}) as socket:
        phone = await Phone(socket, "back").start()
        await phone.say(SILENCE[:16000] + await spoken("Count from one to ten.") + SILENCE)
        await phone.until("marks")
        await phone.play(700)
        await socket.send(type="ping")
        await phone.until("pong")
        turn = phone.turn
    async with running.socket({"client_id": "dora", "features": ["audio"]}) as socket:
        again = await Phone(socket, "back").start()
        reply = await again.until("audio.reply")
        assert (reply["turn_id"], reply["from_ms"]) == (turn, 700)
        await again.play(1e9)
        assert (await again.until("done"))["reason"] == "stop"


async def test_what_is_no_sound_is_refused_for_its_sender_alone(running: Running) -> None:
    async with running.socket({"client_id": "eve", "features": ["audio"]}) as socket:
        await socket.opened.send(HEAD.pack(SOUND, 0, 1, 1) + SILENCE[:100])
        assert (await socket.next("error"))["message"] == "Sound came before audio.start."
        for start, code in (
            ({"input": {"rate": 4000}}, "bad_frame"),
            ({"language": "de"}, "bad_params"),
            ({"output": {"voice": "nobody"}}, "bad_params"),
        ):
            await socket.send(type="audio.start", **start)
            assert (await socket.next("error"))["code"] == code
        phone = await Phone(socket, "noise").start()
        for message in (b"", b"\1", HEAD.pack(7, 0, 1, 1), HEAD.pack(SOUND, 0, phone.stream, 1) + b"odd"):
            await socket.opened.send(message)
            assert (await phone.until("error"))["code"] == "bad_frame"
        await phone.say(SILENCE + random.Random(0).randbytes(RATE) + SILENCE)
        await socket.send(type="audio.commit", conversation_id="noise")
        await phone.until("heard", final=True)
        await socket.send(type="ping", t=1)
        await phone.until("pong")
    async with running.socket({"client_id": "fay"}) as socket:
        await socket.send(type="audio.start")
        assert "`audio`" in (await socket.next("error"))["message"]
        await socket.opened.send(HEAD.pack(SOUND, 0, 1, 1))
        assert (await socket.next("error"))["message"] == "Frames are text; this one is binary."


async def test_a_recognizer_that_dies_in_the_middle_of_a_word_is_told_and_comes_back(
    running: Running,
) -> None:
    sound = await spoken("Count from one to ten.")
    async with running.socket({"client_id": "gus", "features": ["audio"]}) as socket:
        phone = await Phone(socket, "killed").start()
        await phone.say(SILENCE[:16000] + sound[: len(sound) // 2])
        await phone.until("speech", state="started")
        listener = child_of(os.getpid(), "speech.listening")
        assert listener is not None
        os.kill(listener, signal.SIGKILL)
        assert (await phone.until("error"))["code"] == "speech_unavailable"
        while not any(frame["type"] == "heard" and frame["final"] for frame in phone.frames):
            await phone.say(SILENCE[:8000] + sound + SILENCE)
            await socket.send(type="ping")
            await phone.until("pong")
