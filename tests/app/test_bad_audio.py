"""Bad days of a service with speech recognition: sound that nobody would send, vanishing speakers, silent crowds."""

from __future__ import annotations

import random
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from connections.protocol.audio import HEAD, SOUND
from engine.scripted import ScriptedEngine
from tests.app.in_process_service import InProcessService, serving
from tests.app.voice_client import GRAMMAR, SILENCE, speaking, synthesize

pytestmark = [
    pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng"),
    pytest.mark.asyncio(loop_scope="module"),
]
PLACES = 64
IDLE = 200
COUNT = "Count from one to ten."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcessService]:
    options: dict[str, Any] = {
        "speech": "recognition",
        "speech_recognizer": GRAMMAR,
        "message_rate": 1000,
        "max_speech": PLACES,
        "log_level": "debug",
    }
    async with serving(
        tmp_path_factory.mktemp("bad_sound"), ScriptedEngine(reply="One."), **options
    ) as service:
        yield service


async def assert_other_client_served(running: InProcessService, place: str) -> None:
    """Somebody else is, who does nothing odd."""
    async with speaking(running, place, output=None) as phone:
        await phone.say(COUNT)
        assert (await phone.until("transcript", final=True))["text"] == "count from 1 to 10"
        assert (await phone.until("done"))["reason"] == "stop"


async def test_minutes_of_noise_and_silence_at_once_hold_nobody_up(running: InProcessService) -> None:
    chance = np.random.default_rng(0)
    second = {"noise": chance.integers(0, 256, 16000, np.uint8).tobytes(), "silence": bytes(16000)}
    async with AsyncExitStack() as stack:
        phones = []
        for what, sound in second.items():
            start = {"input": {"rate": 8000}, "output": None}
            phone = await stack.enter_async_context(speaking(running, what, **start))
            for number in range(90):
                await phone.socket.opened.send(HEAD.pack(SOUND, 0, phone.stream, number) + sound)
            await phone.socket.send(type="ping")
            phones.append(phone)
        await assert_other_client_served(running, "beside-noise")
        for phone in phones:
            await phone.until("pong")
            assert sum(frame["type"] == "error" for frame in phone.frames) <= 90
            assert {frame["code"] for frame in phone.frames if frame["type"] == "error"} <= {"rate_limited"}


async def test_who_vanishes_in_the_middle_of_a_word_leaves_his_place(running: InProcessService) -> None:
    sound = await synthesize(COUNT)
    for _ in range(PLACES // 8):
        async with speaking(running, "cut", output=None) as phone:
            await phone.send_audio(SILENCE[:16000] + sound[: len(sound) // 2])
            phone.socket.opened.transport.abort()
    await assert_other_client_served(running, "cut")


async def test_any_bytes_are_sound_or_refused(running: InProcessService) -> None:
    chance = random.Random(1)
    for seed in range(4):
        microphone = {"format": "pcm16", "rate": chance.choice((8000, 11_111, 44_100, 48_000))}
        async with speaking(running, f"fuzz-{seed}", output=None, input=microphone) as phone:
            for number in range(40):
                head = HEAD.pack(SOUND, chance.randrange(256), phone.stream, chance.randrange(1 << 32))
                body = chance.randbytes(2 * chance.randrange(1000))
                is_odd = number % 5 == 0
                await phone.socket.opened.send(
                    chance.randbytes(chance.randrange(12)) if is_odd else head + body
                )
            await phone.socket.send(type="audio.commit", conversation_id=phone.place)
            await phone.until("transcript", final=True)
    await assert_other_client_served(running, "beside-fuzz")


async def test_a_crowd_that_listens_and_says_nothing_takes_places_and_no_more(
    running: InProcessService,
) -> None:
    """Each is listened to or told that there is no place; a place is free again once its speaker leaves."""
    async with AsyncExitStack() as stack:

        async def come(number: int) -> str:
            opened = running.socket(
                {"client_id": f"idle-{number}", "features": ["audio"]},
                local_addr=(f"127.0.{3 + number // 20}.1", 0),
            )
            socket = await stack.enter_async_context(opened)
            await socket.send(type="audio.start", conversation_id="idle")
            answer = await socket.next()
            while answer["type"] not in ("audio.started", "error"):
                answer = await socket.next()
            return str(answer.get("code", answer["type"]))

        answers = [await come(number) for number in range(IDLE)]
        assert set(answers) == {"audio.started", "overloaded"}
        assert PLACES // 2 <= answers.count("audio.started") <= PLACES
        async with running.socket({"client_id": "typing"}) as typing:
            await typing.send(type="send", client_msg_id="m", content="Count.")
            assert (await typing.next("done"))["reason"] == "stop"
    await assert_other_client_served(running, "behind-the-crowd")


async def test_sound_and_words_reach_neither_the_log_nor_the_disk(
    tmp_path_factory: pytest.TempPathFactory, capfd: pytest.CaptureFixture[str]
) -> None:
    """The message itself is stored like any other; its sound is not."""
    folder = tmp_path_factory.mktemp("nothing_kept")
    sound = await synthesize(COUNT)
    async with serving(
        folder,
        ScriptedEngine(reply="One."),
        speech="recognition",
        speech_recognizer=GRAMMAR,
        log_level="debug",
    ) as running:
        await assert_other_client_served(running, "private")
        middle = len(sound) // 2
        kept = [file.read_bytes() for file in folder.rglob("*") if file.is_file()]
    assert any(b"count from 1 to 10" in one for one in kept)
    for piece in (sound[at : at + 32] for at in range(middle, middle + 320, 32)):
        assert not any(piece in one for one in kept)
    reported = "".join(capfd.readouterr()).lower()
    assert "count from" not in reported
