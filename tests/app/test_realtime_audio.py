"""OpenAI's Realtime protocol with sound on a real service: PocketSphinx hears, espeak-ng answers, and speech interrupts."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import wave
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import websockets

from engine.messages import Message
from engine.scripted import FEATURES, ScriptedEngine
from tests.app.in_process_service import InProcessService, serving
from tests.app.voice_client import GRAMMAR, synthesize
from tests.docs.documents import ROOT, snippets
from tests.jwt_signing import KEY
from tests.sample_images import PNG

pytestmark = [
    pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng"),
    pytest.mark.asyncio(loop_scope="module"),
]
RATE = 24_000
REPLY = "One, two, three, four, five, six, seven, eight, nine and ten."
SILENCE = bytes(2 * RATE)
PATIENCE_S = 60
Event = Mapping[str, Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcessService]:
    engine = ScriptedEngine(reply=REPLY, features=(*FEATURES, "images"))
    folder = tmp_path_factory.mktemp("realtime")
    options: dict[str, Any] = {"speech": "both", "speech_recognizer": GRAMMAR, "message_rate": 1000}
    async with serving(folder, engine, **options) as service:
        yield service


class VoiceSession:
    """A client like OpenAI's: it plays what it gets, and says how much it played when it stops."""

    def __init__(self, socket: websockets.ClientConnection) -> None:
        self.socket = socket
        self.events: list[Event] = []
        self.sound = bytearray()

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind} | fields))

    async def until(self, kind: str) -> Event:
        while True:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    event: Event = json.loads(await self.socket.recv())
            except TimeoutError:
                raise AssertionError(f"no {kind} behind {self.events[-3:]}") from None
            self.events.append(event)
            if event["type"] == "response.output_audio.delta":
                self.sound += b64decode(event["delta"])
            if event["type"] == kind:
                return event

    async def set(self, **audio: Any) -> Event:
        await self.send("session.update", session={"type": "realtime", "audio": audio})
        updated = await self.until("session.updated")
        session: Event = updated["session"]
        return session

    async def send_audio(self, sound: bytes) -> None:
        for at in range(0, len(sound), 4800):
            await self.send("input_audio_buffer.append", audio=b64encode(sound[at : at + 4800]).decode())

    async def say(self, sentence: str) -> None:
        """Send a sentence between silences."""
        await self.send_audio(SILENCE[:24000] + await synthesize(sentence, RATE) + SILENCE)

    async def receive_audio(self, ms: int, *, a_second: int = 2 * RATE) -> None:
        while len(self.sound) * 1000 < ms * a_second:
            await self.until("response.output_audio.delta")

    def types(self) -> list[str]:
        return [event["type"] for event in self.events]


@asynccontextmanager
async def connected(running: InProcessService, query: str) -> AsyncIterator[VoiceSession]:
    url = f"{running.url.replace('http', 'ws')}/v1/realtime?{query}"
    async with websockets.connect(url, additional_headers={"Authorization": f"Bearer {KEY}"}) as socket:
        yield VoiceSession(socket)


def calls(running: InProcessService, place: str) -> AbstractAsyncContextManager[VoiceSession]:
    return connected(running, f"conversation_id={place}&client_id={place}")


async def history_of(running: InProcessService, place: str) -> list[str]:
    async with running.socket({"client_id": place}) as socket:
        await socket.send(type="history", conversation_id=place)
        return [message["content"] for message in (await socket.next("history"))["messages"]]


async def test_what_is_said_is_answered_aloud(running: InProcessService) -> None:
    async with calls(running, "whole") as phone:
        session = (await phone.until("session.created"))["session"]
        assert session["output_modalities"] == ["audio"]
        assert session["audio"]["input"]["turn_detection"]["type"] == "server_vad"
        await phone.set(input={"transcription": {"model": "whisper-1"}}, output={"voice": "marin"})
        await phone.say("What did you say last?")
        done = await phone.until("response.done")
        assert done["response"]["status"] == "completed"
        (item,) = done["response"]["output"]
        assert item["content"] == [{"type": "output_audio", "transcript": REPLY}]
        types = [one for one in phone.types() if not one.endswith(".delta")]
        assert types == [
            "session.created",
            "session.updated",
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
            "conversation.item.added",
            "conversation.item.done",
            "conversation.item.input_audio_transcription.completed",
            "response.created",
            "response.output_item.added",
            "conversation.item.added",
            "response.content_part.added",
            "response.output_audio.done",
            "response.output_audio_transcript.done",
            "response.content_part.done",
            "conversation.item.done",
            "response.output_item.done",
            "response.done",
        ]
        assert 2.5 < len(phone.sound) / (2 * RATE) < 10
    assert await history_of(running, "whole") == ["what did you say last", REPLY]


async def test_speech_over_a_reply_ends_it_where_its_listener_says_that_he_stopped(
    running: InProcessService,
) -> None:
    async with calls(running, "barge") as phone:
        await phone.say("Count from one to ten.")
        await phone.receive_audio(1500)
        await phone.send_audio(await synthesize("What did you say last?", RATE))
        await phone.until("input_audio_buffer.speech_started")
        item = next(one["item_id"] for one in phone.events if one["type"] == "response.output_audio.delta")
        await phone.send("conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=900)
        truncated = await phone.until("conversation.item.truncated")
        assert truncated["audio_end_ms"] == 900
        assert REPLY.startswith(truncated["transcript"])
        assert 0 < len(truncated["transcript"]) < len("One, two, three, four, five,")
        done = next(one["response"] for one in phone.events if one["type"] == "response.done")
        assert done["status_details"]["reason"] == "turn_detected"
        await phone.send_audio(SILENCE)
        await phone.until("response.done")
    assert (await history_of(running, "barge"))[:3] == [
        "count from 1 to 10",
        truncated["transcript"],
        "what did you say last",
    ]


async def test_without_a_word_of_its_listener_a_reply_ends_where_the_clock_says(
    running: InProcessService,
) -> None:
    async with calls(running, "silent") as phone:
        await phone.say("Count from one to ten.")
        await phone.receive_audio(1500)
        await phone.send("response.cancel")
        done = (await phone.until("response.done"))["response"]
        assert (done["status"], done["status_details"]["reason"]) == ("cancelled", "client_cancelled")
        (item,) = done["output"]
        received = item["content"][0]["transcript"]
        assert REPLY.startswith(received)
        assert 0 < len(received) < len(REPLY)
        await phone.send("conversation.item.truncate", item_id=item["id"], content_index=0, audio_end_ms=0)
        late = await phone.until("conversation.item.truncated")
        assert late["transcript"] == received
        assert 400 <= late["audio_end_ms"] < len(phone.sound) * 1000 // (2 * RATE)
    assert (await history_of(running, "silent"))[1] == received


async def test_a_truncate_ends_a_reply_and_no_more_was_heard_than_was_sent(running: InProcessService) -> None:
    for place, ms in (("all", 999_999), ("none", 0)):
        async with calls(running, place) as phone:
            await phone.send("conversation.item.create", item=text("Count from one to ten."))
            await phone.send("response.create")
            await phone.receive_audio(1000)
            item = next(
                one["item_id"] for one in phone.events if one["type"] == "response.output_audio.delta"
            )
            await phone.send("conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=ms)
            await phone.send("response.cancel")  # its response may have ended by then, which is no error
            truncated = await phone.until("conversation.item.truncated")
            assert truncated["audio_end_ms"] == min(ms, len(phone.sound) * 1000 // (2 * RATE))
            assert "error" not in phone.types()
        assert (await history_of(running, place))[1] == truncated["transcript"]
        assert bool(truncated["transcript"]) == bool(ms)


async def test_what_a_client_commits_is_heard_and_answered_at_its_own_rate(running: InProcessService) -> None:
    async with calls(running, "telephone") as phone:
        form = {"format": {"type": "audio/pcm", "rate": 8000}}
        session = await phone.set(input=form | {"turn_detection": None}, output=form)
        assert session["audio"]["output"]["format"] == form["format"]
        await phone.send_audio(await synthesize("What did you say last?", 8000))
        await phone.send("input_audio_buffer.commit")
        await phone.send("response.create")
        done = await phone.until("response.done")
        assert done["response"]["status"] == "completed"
        assert not [one for one in phone.types() if "speech_" in one]
        pcm = np.frombuffer(phone.sound, "<i2").astype(int)
        assert 2.5 < len(pcm) / 8000 < 10
        assert np.abs(pcm).max() > 500
        spoken = next(one["item"] for one in phone.events if one["type"] == "conversation.item.done")
        assert spoken["content"] == [{"type": "input_audio", "transcript": "what did you say last"}]


async def test_what_was_said_waits_for_its_answer_and_text_stands_beside_it(
    running: InProcessService,
) -> None:
    async with calls(running, "mixed") as phone:
        await phone.set(input={"turn_detection": {"type": "semantic_vad", "create_response": False}})
        await phone.send("conversation.item.create", item=text("Listen."))
        await phone.say("Count from one to ten.")
        await phone.until("input_audio_buffer.committed")
        await phone.send("response.create", response={"output_modalities": ["text"]})
        done = (await phone.until("response.done"))["response"]
        assert done["output"][0]["content"] == [{"type": "output_text", "text": REPLY}]
        assert not phone.sound
    assert await history_of(running, "mixed") == ["Listen.\n\ncount from 1 to 10", REPLY]


async def test_an_image_is_asked_about_and_answered_aloud(running: InProcessService) -> None:
    """By a written message, and by the words that are spoken after it."""
    parts = [{"type": "input_text", "text": "Look!"}, {"type": "input_image", "image_url": PNG.url}]
    item = {"type": "message", "role": "user", "content": parts}
    async with calls(running, "pictured") as phone:
        await phone.send("conversation.item.create", item=item)
        await phone.send("response.create")
        await phone.receive_audio(400)
    async with calls(running, "described") as phone:
        await phone.send("conversation.item.create", item=item)
        await phone.say("Count from one to ten.")
        await phone.receive_audio(400)
    written = next(one.messages[-1] for one in running.engine.requests if one.messages[-1].images)
    assert written == Message("user", "Look!", images=(PNG.image.moved(5),))
    spoken = running.engine.requests[-1].messages[-1]
    assert spoken == Message("user", "Look!\n\ncount from 1 to 10", images=(PNG.image.moved(5),))


async def test_a_transcription_session_says_what_was_said_and_answers_nothing(
    running: InProcessService,
) -> None:
    requested = len(running.engine.requests)
    async with connected(running, "intent=transcription") as phone:
        session = (await phone.until("session.created"))["session"]
        assert (session["type"], session["object"]) == ("transcription", "realtime.transcription_session")
        config = {
            "format": {"type": "audio/pcm", "rate": RATE},
            "transcription": {"model": "gpt-4o-transcribe", "language": "en"},
            "turn_detection": {"type": "server_vad", "silence_duration_ms": 500},
            "noise_reduction": None,
        }
        await phone.send("session.update", session={"type": "transcription", "audio": {"input": config}})
        updated = (await phone.until("session.updated"))["session"]
        assert updated["audio"]["input"]["transcription"]["model"] == "gpt-4o-transcribe"
        assert updated["audio"]["input"]["turn_detection"]["silence_duration_ms"] == 500
        for spoken, words in (
            ("What did you say last?", "what did you say last"),
            ("Count from one to ten.", "count from 1 to 10"),
        ):
            phone.events.clear()
            await phone.say(spoken)
            completed = await phone.until("conversation.item.input_audio_transcription.completed")
            assert (completed["transcript"], completed["usage"]["type"]) == (words, "duration")
            kinds = [kind for kind in phone.types() if not kind.endswith(".delta")]
            assert kinds == [
                "input_audio_buffer.speech_started",
                "input_audio_buffer.speech_stopped",
                "input_audio_buffer.committed",
                "conversation.item.added",
                "conversation.item.done",
                "conversation.item.input_audio_transcription.completed",
            ]
            assert {one.get("item_id", one.get("item", {}).get("id")) for one in phone.events} == {
                completed["item_id"]
            }
            deltas = [one["delta"] for one in phone.events if one["type"].endswith(".delta")]
            assert words.startswith("".join(deltas))
    assert len(running.engine.requests) == requested


async def test_a_session_becomes_one_of_transcriptions_whose_client_commits(
    running: InProcessService,
) -> None:
    by_hand = {"type": "transcription", "audio": {"input": {"turn_detection": None}}}
    async with calls(running, "become") as phone:
        for _ in range(2):
            await phone.send("session.update", session=by_hand)
            session = (await phone.until("session.updated"))["session"]
            assert (session["type"], session["audio"]["input"]["turn_detection"]) == ("transcription", None)
            await phone.send_audio(await synthesize("Count from one to ten.", RATE))
            await phone.send("input_audio_buffer.commit")
            completed = await phone.until("conversation.item.input_audio_transcription.completed")
            assert completed["transcript"] == "count from 1 to 10"


async def test_the_guides_example_works(running: InProcessService, tmp_path: Path) -> None:
    _, code = snippets(ROOT / "docs" / "speech.md", "python")
    with wave.open(str(tmp_path / "question.wav"), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(await synthesize("What did you say last?", RATE))
    here = code.replace("http://127.0.0.1:8000", running.url)
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", here, cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await program.communicate()
    assert printed.decode() == f"{REPLY}\n"
    with wave.open(str(tmp_path / "answer.wav")) as file:
        assert 2.5 < file.getnframes() / RATE < 10


def text(content: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": content}]}
