"""A spoken turn is a turn, on a real service over its socket: PocketSphinx hears, espeak-ng answers, and speech interrupts."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from app.settings import Settings
from app.speech import detected
from connections.protocol.audio import HEAD, SOUND
from engine.scripted import ScriptedEngine
from tests.app.in_process_service import InProcessService, serving
from tests.app.voice_client import (
    GRAMMAR,
    RATE,
    SILENCE,
    VoiceClient,
    speaking,
    synthesize,
    to_its_last_word,
)
from tests.server_process import child_of
from tests.speech.noise_samples import noise

pytestmark = [
    pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng"),
    pytest.mark.asyncio(loop_scope="module"),
]
REPLY = "One, two, three, four, five, six, seven, eight, nine and ten."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcessService]:
    engine = ScriptedEngine(reply=REPLY)
    folder = tmp_path_factory.mktemp("spoken")
    options: dict[str, Any] = {"speech": "both", "speech_recognizer": GRAMMAR, "message_rate": 1000}
    async with serving(folder, engine, **options) as service:
        yield service


async def test_what_is_said_is_a_message_and_its_turn_ends_when_it_was_played(
    running: InProcessService,
) -> None:
    async with speaking(running, "whole") as phone:
        assert "audio" in phone.socket.ready["features"]
        await phone.say("What did you say last?")
        heard = await phone.until("transcript", final=True)
        assert heard["text"] == "what did you say last"
        await phone.until("marks")
        assert await phone.kept() == ["what did you say last", REPLY]  # written, but not played yet
        assert not [frame for frame in phone.frames if frame["type"] == "done"]
        await phone.play(1e9)
        assert (await phone.until("done"))["reason"] == "stop"
        words = [REPLY[mark["off"] : mark["off"] + mark["len"]] for mark in phone.marks]
        assert " ".join(words) == REPLY


async def test_a_spoken_reply_has_the_pace_of_speech(tmp_path: Path) -> None:
    options: dict[str, Any] = {"speech": "both", "speech_recognizer": GRAMMAR, "chars_per_s": 0.01}
    async with (
        serving(tmp_path, ScriptedEngine(reply=REPLY), **options) as service,
        speaking(service, "pace") as phone,
    ):
        await phone.say("What did you say last?")
        await phone.until("marks")
        assert await phone.kept() == ["what did you say last", REPLY]


async def test_random_cuts_keep_the_word_that_was_heard(running: InProcessService) -> None:
    """With the real service's voice, pacing and history."""
    sound = SILENCE[:16000] + await synthesize("Count from one to ten.") + SILENCE
    async with running.socket({"client_id": "ben", "features": ["audio"]}) as socket:
        for seed in range(20):
            chance = random.Random(seed)
            phone = await VoiceClient(socket, f"cut-{seed}").start()
            await phone.send_audio(sound)
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


async def test_a_cough_a_tone_and_a_yes_over_a_reply_leave_it_playing(running: InProcessService) -> None:
    sounds = [noise(name).tobytes() for name in ("a cough with voice, 0.35 s", "a tone of 440 Hz, 1 s")]
    sounds += [await synthesize(text) for text in ("Yes.", "Okay.")]
    async with speaking(running, "cough") as phone:
        await phone.say("Count from one to ten.")
        await phone.until("marks")
        for number, sound in enumerate(sounds, 1):
            await phone.send_audio(sound)
            await phone.until("speech", state="started")
            await phone.play(600 * number)  # sound comes meanwhile
            await phone.send_audio(SILENCE * 2)
            while len(phone.final_transcripts) <= number:
                await phone.take()
            assert phone.final_transcripts[-1] == ""
        await phone.play(1e9)
        assert (await phone.until("done"))["reason"] == "stop"
        assert await phone.kept() == ["count from 1 to 10", REPLY]


async def test_a_stop_over_a_reply_ends_it_at_the_word_heard_and_is_not_answered(
    running: InProcessService,
) -> None:
    async with speaking(running, "stop") as phone:
        await phone.say("Count from one to ten.")
        await phone.until("marks")
        await phone.play(phone.marks[2]["end_ms"])
        await phone.send_audio(await synthesize("Stop.") + SILENCE)
        done = await phone.until("done")
        assert (done["reason"], done["chars"]) == ("cancelled", len("One, two, three,"))
        while len(phone.final_transcripts) == 1:
            await phone.take()
        assert phone.final_transcripts[-1] == ""
        assert await phone.kept() == ["count from 1 to 10", "One, two, three,"]
        await phone.send_audio(await synthesize("What did you say last?") + SILENCE)
        assert (await phone.until("transcript", final=True))["text"] == "what did you say last"


async def test_what_is_no_sound_is_refused_for_its_sender_alone(running: InProcessService) -> None:
    async with running.socket({"client_id": "eve", "features": ["audio"]}) as socket:
        await socket.opened.send(HEAD.pack(SOUND, 0, 1, 1) + SILENCE[:100])
        assert (await socket.next("error"))["message"] == "Audio arrived before audio.start."
        for start, code in (
            ({"input": {"rate": 4000}}, "bad_frame"),
            ({"language": "de"}, "bad_params"),
            ({"output": {"voice": "nobody"}}, "bad_params"),
        ):
            await socket.send(type="audio.start", **start)
            assert (await socket.next("error"))["code"] == code
        phone = await VoiceClient(socket, "noise").start()
        for message in (b"", b"\1", HEAD.pack(7, 0, 1, 1), HEAD.pack(SOUND, 0, phone.stream, 1) + b"odd"):
            await socket.opened.send(message)
            assert (await phone.until("error"))["code"] == "bad_frame"
        await phone.send_audio(SILENCE + random.Random(0).randbytes(RATE) + SILENCE)
        await socket.send(type="audio.commit", conversation_id="noise")
        await phone.until("transcript", final=True)
        await socket.send(type="ping", t=1)
        await phone.until("pong")
    async with running.socket({"client_id": "fay"}) as socket:
        await socket.send(type="audio.start")
        assert "`audio`" in (await socket.next("error"))["message"]
        await socket.opened.send(HEAD.pack(SOUND, 0, 1, 1))
        assert (await socket.next("error"))["message"] == "Frames must be text; this one is binary."


async def test_a_recognizer_that_dies_in_the_middle_of_a_word_is_told_and_comes_back(
    running: InProcessService,
) -> None:
    sound = await synthesize("Count from one to ten.")
    async with speaking(running, "killed") as phone:
        await phone.send_audio(SILENCE[:16000] + sound[: len(sound) // 2])
        await phone.until("speech", state="started")
        listener = child_of(os.getpid(), "speech listening")
        assert listener is not None
        os.kill(listener, signal.SIGKILL)
        error = await phone.until("error")
        assert (error["code"], "say it once more" in error["message"]) == ("speech_unavailable", True)
        while not any(frame["type"] == "transcript" and frame["final"] for frame in phone.frames):
            await phone.send_audio(SILENCE[:8000] + sound + SILENCE)
            await phone.socket.send(type="ping")
            await phone.until("pong")


async def test_a_microphone_that_is_switched_off_in_the_middle_of_a_word_ends_what_is_said(
    running: InProcessService,
) -> None:
    sound = await synthesize("Count from one to ten.")
    async with speaking(running, "muted") as phone:
        await phone.send_audio(SILENCE[:16000] + to_its_last_word(sound))
        await phone.until("speech", state="stopped")
        heard = await phone.until("transcript", final=True)
        assert heard["text"] == "count from 1 to 10"
        accepted = await phone.until("accepted")
        assert accepted["ref"].startswith(f"{heard['utterance_id']}.")


async def test_a_reply_ends_when_its_listener_stays_away_though_another_tab_is_there(
    running: InProcessService,
) -> None:
    async with running.socket({"client_id": "tabs"}) as tab:
        async with speaking(running, "tabs", grace_s=0) as phone:
            await phone.say("Count from one to ten.")
            await phone.until("marks")
            await tab.send(type="history", conversation_id="tabs")
            await tab.next("history")
            await phone.play(700)
            await phone.socket.send(type="ping")
            await phone.until("pong")
        done = await tab.next("done")
        assert (done["reason"], done["cancel"]["precision"]) == ("cancelled", "word")


async def test_the_bundled_model_is_spoken_to_without_a_setting_and_nothing_is_started_before(
    tmp_path: Path,
) -> None:
    listening = "speech listening .*spoken.jsgf"
    async with serving(tmp_path, ScriptedEngine(reply=REPLY), speech="auto") as service:
        assert child_of(os.getpid(), listening) is None
        async with speaking(service, "bundled") as phone:
            await phone.say("What is twenty two plus thirty one?")
            assert (await phone.until("transcript", final=True))["text"] == "what is 22 plus 31"
            assert child_of(os.getpid(), listening) is not None


async def test_a_model_of_the_operators_is_not_spoken_to_unless_he_says_so() -> None:
    assert detected(Settings(model="org/model")).speech == "off"
    assert detected(Settings(model="org/model", speech="both")).speech == "both"
