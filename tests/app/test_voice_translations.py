"""Translation sessions with sound on a real service: PocketSphinx hears, and espeak-ng speaks."""

from __future__ import annotations

import shutil
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from engine.scripted import ScriptedEngine
from tests.app.in_process_service import Frame, InProcessService, serving
from tests.app.test_translations import close, session, transcript
from tests.app.voice_client import GRAMMAR, synthesize

pytestmark = [
    pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng"),
    pytest.mark.asyncio(loop_scope="module"),
]
RATE = 24_000
SILENCE = bytes(2 * RATE)
CONFIG = {
    "audio": {"input": {"transcription": {"model": "gpt-realtime-whisper"}}, "output": {"language": "de"}},
    "publish_policy": "segment",
}
REPLY = "Was hast du zuletzt gesagt?"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcessService]:
    options: dict[str, Any] = {"speech": "both", "speech_recognizer": GRAMMAR}
    folder = tmp_path_factory.mktemp("spoken")
    async with serving(folder, ScriptedEngine(reply=REPLY), **options) as service:
        yield service


def sounded(frames: list[Frame]) -> bytes:
    return b"".join(b64decode(one["delta"]) for one in frames if one["type"] == "session.output_audio.delta")


async def test_what_is_said_is_told_translated_and_spoken(running: InProcessService) -> None:
    async with session(running, CONFIG, client_id="anna", conversation_id="said") as socket:
        sound = SILENCE[:24_000] + await synthesize("What did you say last?", RATE) + SILENCE[:4800]
        for at in range(0, len(sound), 9600):
            part = b64encode(sound[at : at + 9600]).decode()
            await socket.send(type="session.input_audio_buffer.append", audio=part)
        frames = await close(socket)
    assert {one["type"] for one in frames} == {
        "session.input_transcript.delta",
        "session.output_transcript.delta",
        "session.output_audio.delta",
        "session.closed",
    }
    assert transcript(frames, "input").strip() == "what did you say last"
    assert transcript(frames) == REPLY
    assert len(sounded(frames)) > 2 * RATE, "more than a second"
    async with running.socket({"client_id": "anna"}) as other:
        page = await other.ask(type="history", conversation_id="said")
    assert [one["content"].strip() for one in page["messages"]] == ["what did you say last", REPLY]


async def test_who_types_is_answered_in_sound_where_a_voice_is_named(running: InProcessService) -> None:
    config = {"audio": {"output": {"language": "de", "voice": "de"}}, "publish_policy": "segment"}
    async with session(running, config) as socket:
        await socket.send(type="session.input_text_buffer.append", text="What did you say last?")
        frames = await close(socket)
    assert (transcript(frames), bool(sounded(frames))) == (REPLY, True)


@pytest.mark.parametrize(
    ("audio", "source", "words"),
    [
        ("?", "en", "`audio` must be base64."),
        ("AAAA", "en", "two bytes per sample"),
        ("AAA=", "fr", "must be one of en"),
    ],
)
async def test_sound_that_cannot_be_heard_is_refused_in_words(
    running: InProcessService, audio: str, source: str, words: str
) -> None:
    config = CONFIG | {"audio": {"input": {"language": source}, "output": {"language": "de"}}}
    async with session(running, config) as socket:
        await socket.send(type="session.input_audio_buffer.append", audio=audio)
        assert words in (await socket.next("error"))["error"]["message"]
        await socket.send(type="session.input_text_buffer.append", text="What did you say last?")
        assert transcript(await close(socket)) == REPLY
