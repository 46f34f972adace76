"""A session's microphone, without a socket: what listens and what speaks are scripted, all between is real."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest
import pytest_asyncio

from connections.api.realtime.encoder import RealtimeEventEncoder, RealtimeFrame
from connections.api.realtime.events import (
    AudioOptions,
    AudioOutputOptions,
    Event,
    InvalidEvent,
    SessionUpdate,
)
from connections.api.realtime.session import RealtimeSession
from connections.api.realtime.settings import AudioConfig, with_audio_options
from connections.api.realtime.voice import RealtimeVoiceConnection
from connections.connection import Connection
from connections.protocol.audio import AudioOutput, AudioStart, AudioStopped
from connections.protocol.base import AUDIO
from connections.protocol.frames import Cancel, Error, Frame, Send
from connections.spoken_reply import SpokenReply
from connections.voice import VoiceMessage as Message
from connections.voice import VoiceService
from sessions.limits.shares import Subject
from sessions.records import Owner
from sessions.service import Sessions
from sessions.turn import turn
from speech.errors import RecognizerLost
from speech.interfaces import Heard, Listening, Paused, Resumed, Started, Stopped
from tests.connections.factory import until
from tests.connections.realtime.client_mirror import LIMITS
from tests.connections.voice.test_audio_reply import Beeps

pytestmark = pytest.mark.asyncio
TENTH = bytes(4800)


class Stream:
    """Sound that is listened to; a commit of any is understood as its length."""

    def __init__(self, listening: Listening) -> None:
        self.listening = listening
        self.sound = bytearray()
        self.results: asyncio.Queue[Heard | None] = asyncio.Queue()

    def feed(self, sound: bytes) -> None:
        self.sound += sound

    def commit(self) -> None:
        self.results.put_nowait(Stopped(0, 0, str(len(self.sound)), is_committed=True))

    def clear(self) -> None:
        self.sound.clear()

    async def events(self) -> AsyncIterator[Heard]:
        while (heard := await self.results.get()) is not None:
            yield heard
        raise RecognizerLost("The recognizer ended.")


class ScriptedRecognizer:
    """Listens once it may."""

    languages = ("en", "de")

    def __init__(self) -> None:
        self.opens = asyncio.Event()
        self.opens.set()
        self.streams: list[Stream] = []
        self.began = asyncio.Event()

    @asynccontextmanager
    async def listen(self, listening: Listening, *, owner: str) -> AsyncIterator[Stream]:
        await self.opens.wait()
        stream = Stream(listening)
        self.streams.append(stream)
        self.began.set()
        yield stream


class StubConnection:
    """A connection, and the sessions and the frames' handler behind it."""

    owner = Owner("anna", "")
    features = frozenset({AUDIO})

    def __init__(self) -> None:
        self.caller = self
        self.subject = Subject("anna")
        self.frames: list[Frame] = []
        self.cancelled: list[str | None] = []
        self.messages: list[Message] = []
        self.counted = asyncio.Event()
        self.counted.set()
        self.mic: RealtimeVoiceConnection

    def push(self, frame: Frame) -> None:
        self.frames.append(frame)

    def events(self, kind: str) -> list[Event]:
        frames = [frame for frame in self.frames if isinstance(frame, RealtimeFrame)]
        return [event for frame in frames for event in frame.events if event["type"].endswith(kind)]

    def errors(self) -> list[str]:
        return [frame.code for frame in self.frames if isinstance(frame, Error)]

    @property
    def turns(self) -> StubConnection:
        return self

    async def history(self, *_: Any, **__: Any) -> None:
        """There is none."""

    def cancel(self, _owner: Owner, cancel: turn.Cancel) -> turn.Cancelled:
        self.reply(cancel.turn_id).stop()
        return turn.Cancelled(cancel.turn_id or "", already=False)

    def handle(self, _: Connection, frame: Any) -> Coroutine[None, None, None] | None:
        match frame:
            case AudioStart():
                return self.mic.handle(frame)
            case Message():
                self.messages.append(frame)
                return self._turn(frame)
            case Cancel():
                return self._cancel(frame)
        raise TypeError

    async def _turn(self, message: Message) -> None:
        await self.counted.wait()
        if not message.is_withdrawn and message.player is not None:
            message.player.begin(f"turn_{len(self.messages)}")
            await message.player.over()

    async def _cancel(self, cancel: Cancel) -> None:
        self.cancelled.append(cancel.turn_id)
        self.reply(cancel.turn_id).stop()

    def reply(self, turn_id: str | None) -> SpokenReply:
        replies = [message.player for message in self.messages]
        return next(one for one in replies if one is not None and one.turn_id == turn_id)


class SessionHarness:
    """A server with one session."""

    def __init__(self, slots: int = 10, commit_timeout_s: float = 60.0) -> None:
        self.ear, self.person = ScriptedRecognizer(), StubConnection()
        self.voice_service = VoiceService(
            sessions=cast("Sessions", self.person), ear=self.ear, voice=Beeps(), slots=slots
        )
        sound = AudioConfig.of(("beep",), ("en", "de"))
        self.session = RealtimeSession(conversation_id="c", model="m", limits=LIMITS, sound=sound)
        self.items = self.session.items
        self.encoder = RealtimeEventEncoder(self.session)
        self.mic = self.person.mic = RealtimeVoiceConnection(
            self.voice_service,
            cast("Connection", self.person),
            self.encoder,
            commit_timeout_s=commit_timeout_s,
        )

    def set(self, **audio: Any) -> None:
        session = {"type": "session.update", "session": {"audio": audio}}
        self.session.update(msgspec.json.decode(msgspec.json.encode(session), type=SessionUpdate))
        self.mic.changed()

    def append(self, sound: bytes = TENTH) -> None:
        self.mic.append(b64encode(sound).decode())

    async def heard(self) -> Stream:
        """The newest stream, once somebody listens to it."""
        async with asyncio.timeout(60):
            await self.ear.began.wait()
        self.ear.began.clear()
        return self.ear.streams[-1]

    def ask(self, name: str) -> asyncio.Task[None]:
        send = Send(client_msg_id=name, content="Hi!", conversation_id="c")
        return asyncio.create_task(self.mic.answer(send, AudioOutput()))

    async def client_sends(self, count: int) -> None:
        await until(lambda: len(self.person.messages) >= count)


@pytest_asyncio.fixture
async def room() -> AsyncIterator[SessionHarness]:
    room = SessionHarness()
    async with room.voice_service.running(), room.mic.running(cast("Any", room.person)):
        yield room


async def test_a_typed_message_is_answered_though_nobody_can_listen(room: SessionHarness) -> None:
    room.ear.opens.clear()
    requested = room.ask("one")
    await room.client_sends(1)
    assert not room.ear.streams
    requested.cancel()


async def test_a_commit_is_refused_while_nobody_can_listen() -> None:
    room = SessionHarness(commit_timeout_s=0.01)
    async with room.voice_service.running(), room.mic.running(cast("Any", room.person)):
        room.ear.opens.clear()
        room.append()
        with pytest.raises(InvalidEvent) as refused:
            await room.mic.commit()
    assert refused.value.code == "speech_unavailable"


async def test_a_commit_after_the_recognizer_was_lost_waits_for_the_next_one(room: SessionHarness) -> None:
    room.append()
    stream = await room.heard()
    stream.results.put_nowait(None)
    await until(room.person.errors)
    async with asyncio.timeout(60):
        room.append()
        await room.mic.commit()
    assert len(room.ear.streams) == 2
    assert bytes(room.ear.streams[1].sound) == TENTH


async def test_a_commit_that_the_recognizer_took_with_it_is_answered(room: SessionHarness) -> None:
    room.append()
    stream = await room.heard()
    committing = asyncio.create_task(room.mic.commit())
    await until(lambda: not stream.results.empty())
    stream.results.get_nowait()
    room.mic.push(Error(code="overloaded", message="Something else."))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not committing.done()
    stream.results.put_nowait(None)
    with pytest.raises(InvalidEvent, match="No speech was recognized"):
        async with asyncio.timeout(60):
            await committing


async def test_sound_that_was_refused_is_never_heard() -> None:
    room = SessionHarness(slots=1)
    async with room.voice_service.running(), room.mic.running(cast("Any", room.person)):
        with room.voice_service.slot(Subject("somebody")):
            room.append(b"old!" * 100)
            await until(room.person.errors)
            room.append(b"old!" * 100)
        assert room.person.errors() == ["overloaded"]
        room.mic.changed()
        room.append()
        await room.heard()
        await room.mic.commit()
    assert bytes(room.ear.streams[0].sound) == TENTH


async def test_sound_at_another_rate_than_what_listens_is_not_heard_as_that(room: SessionHarness) -> None:
    room.ear.opens.clear()
    room.append()
    await asyncio.sleep(0)
    room.set(input={"format": {"type": "audio/pcm", "rate": 8000}, "turn_detection": None})
    room.append(b"even")
    room.ear.opens.set()
    async with asyncio.timeout(60):
        await room.mic.commit()
    assert bytes(room.ear.streams[-1].sound) == b"even"
    assert room.ear.streams[-1].listening.rate == 8000


async def test_a_commit_behind_other_settings_is_of_what_listens_then(room: SessionHarness) -> None:
    room.append()
    await room.heard()
    room.set(input={"turn_detection": None})
    room.append()
    async with asyncio.timeout(60):
        await room.mic.commit()
    assert len(room.ear.streams) == 2
    assert not room.ear.streams[1].listening.detects


async def test_what_was_committed_lasted_as_long_as_its_own_sound(room: SessionHarness) -> None:
    room.set(input={"turn_detection": None, "transcription": {}})
    for tenths in (2, 3):
        for _ in range(tenths):
            room.append()
        await room.mic.commit()
        await until(room.items.waiting)
    completed = room.person.events("input_audio_transcription.completed")
    assert [event["usage"]["seconds"] for event in completed] == [0.2, 0.3]


async def test_no_reply_begins_at_a_pause(room: SessionHarness) -> None:
    room.append()
    stream = await room.heard()
    for heard in (Started(0), Paused(600, "count"), Resumed(700), Stopped(0, 1800, "count to ten")):
        stream.results.put_nowait(heard)
    await room.client_sends(1)
    assert [message.send.content for message in room.person.messages] == ["count to ten"]


async def test_who_speaks_elsewhere_leaves_no_sound_behind(room: SessionHarness) -> None:
    room.append()
    await room.heard()
    room.mic.stop(AudioStopped(conversation_id="c", reason="elsewhere"))
    while not room.person.errors():
        room.append(b"old!")
        await asyncio.sleep(0)
    assert room.person.errors() == ["audio_taken_elsewhere"]
    room.mic.changed()
    room.append()
    await room.mic.commit()
    assert bytes(room.ear.streams[1].sound) == TENTH


@pytest.mark.parametrize(
    ("name", "voices", "speaks"), [("marin", ("en-us", "de"), "en-us"), ("alloy", ("ada", "alloy"), "alloy")]
)
async def test_openais_names_are_the_default_voice_unless_a_voice_has_them(
    name: str, voices: tuple[str, ...], speaks: str
) -> None:
    options = AudioOptions(output=AudioOutputOptions(voice=name))
    assert with_audio_options(AudioConfig.of(voices), options, None, "session").voice == speaks
