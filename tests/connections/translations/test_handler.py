"""What a session does with what it is refused, over a transport in memory: nothing of it is lost in silence, and nothing goes on unseen."""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connections.api.realtime.encoder import EventLines
from connections.api.realtime.translation import endpoint as handling
from connections.api.realtime.translation import session as event_encoder
from connections.api.realtime.translation.endpoint import TranslationsHandler, decode
from connections.api.realtime.translation.session import TranslationEventEncoder, TranslationSession
from connections.authentication.caller import Caller
from connections.connection import Connection
from connections.http import EndpointName
from connections.limiters import Limiters
from connections.outbox import Outbox
from connections.protocol import frames
from sessions.errors import Busy, Conflict, Filtered, Overloaded, Refused
from sessions.events import Reason, SourceText
from sessions.records import Client, Owner
from sessions.service import Sessions
from sessions.turn.interfaces import Grown, Growth
from speech.interfaces import Stopped
from tests.connections.connection.memory_transport import MemoryTransport
from tests.connections.factory import accepted, done
from tests.connections.translations.test_audio_input import Scripted

VOICES = ("en", "de", "cmn")


class Conversation:
    """Takes what a session hands on, and says so at once; refuses what it is told to, in order."""

    def __init__(self, voice_service: Any = None, speech_output: Any = None) -> None:
        self.wire = MemoryTransport()
        self.encoder = TranslationEventEncoder()
        self.session = TranslationSession(
            conversation_id="c", model="m", facts=lambda: None, expires_at=9, voices=VOICES
        )
        self.outbox = Outbox(max_bytes=1_000_000)
        self.connection = Connection(
            self.wire,
            caller=Caller(Owner("ann", "laptop"), Client("ann", "laptop")),
            outbox=self.outbox,
            tally=Limiters().tally(EndpointName.TRANSLATIONS),
            encode=EventLines(self.encoder.encode).encode,
            features=frozenset({"interpret"}),
        )
        self.handler = TranslationsHandler(
            session=self.session,
            encoder=self.encoder,
            inner=self,
            sessions=cast("Sessions", self),
            limiters=Limiters(),
            voice_service=voice_service,
            speech_output=speech_output,
        )
        self.begins: list[Refused | None] = []
        self.grows: list[Refused | None] = []
        self.begun = 0
        self.sources: dict[str, str] = {}
        self.cancelled: list[str | None] = []

    def handle(self, connection: Connection, frame: frames.Request) -> None:
        if isinstance(frame, frames.Cancel):
            self.cancelled.append(frame.turn_id)
            connection.push(done(frame.turn_id or "", reason=Reason.CANCELLED))
            return
        assert isinstance(frame, frames.InterpretStart)
        if self.begins and (why := self.begins.pop(0)) is not None:
            raise why
        self.begun += 1
        turn_id = f"t{self.begun}"
        self.sources[turn_id] = ""
        connection.push(accepted(turn_id, frame.client_msg_id))

    async def grow(self, _: Owner, conversation_id: str, growth: Growth) -> Grown:
        if self.grows and (why := self.grows.pop(0)) is not None:
            raise why
        turn_id = growth.turn_id or ""
        if growth.off != len(self.sources[turn_id]):
            raise Conflict("This part of the source was different before; the source is not revised.")
        self.note_chars(turn_id, growth.text)
        if growth.final:
            self.connection.push(done(turn_id))
        return Grown(turn_id=turn_id, chars=len(self.sources[turn_id]), final=growth.final, already=False)

    def note_chars(self, turn_id: str, text: str) -> None:
        off = len(self.sources[turn_id])
        self.sources[turn_id] += text
        self.connection.push(SourceText(conversation_id="c", turn_id=turn_id, seq=2, off=off, text=text))

    async def client_sends(self, *events: dict[str, Any]) -> None:
        """All of them come before the first is handed on."""
        slow = [self.handler.handle(self.connection, decode(_line(event))) for event in events]
        for one in slow:
            if one is not None:
                await one

    def errors(self) -> list[tuple[str, str | None]]:
        """The code of each error that was told by now, and the event that it answers."""
        sent_events = [one["error"] for one in self.wire.sent_events() if one["type"] == "error"]
        return [(one["code"], one["event_id"]) for one in sent_events]


def _line(event: dict[str, Any]) -> str:
    return json.dumps(event)


def into(language: str) -> dict[str, Any]:
    return {"type": "session.update", "session": {"audio": {"output": {"language": language}}}}


def append(text: str, event_id: str = "e") -> dict[str, Any]:
    return {"type": "session.input_text_buffer.append", "text": text, "event_id": event_id}


@pytest.fixture
async def conversation(monkeypatch: pytest.MonkeyPatch) -> Conversation:
    """One in which nobody waits for anything that does not come."""
    monkeypatch.setattr(handling, "RETRY_MS", 1)
    monkeypatch.setattr(event_encoder, "END_TIMEOUT_S", 0.0)
    return Conversation()


async def test_what_another_device_adds_is_gone_on_from(conversation: Conversation) -> None:
    await conversation.client_sends(into("zh"), append("One. "))
    conversation.note_chars("t1", "Theirs. ")
    await conversation.client_sends(append("Two. "))
    assert conversation.sources == {"t1": "One. Theirs. Two. "}
    assert conversation.errors() == []


async def test_what_is_told_late_of_another_devices_text_loses_nothing(
    conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_encoder, "END_TIMEOUT_S", 60.0)
    await conversation.client_sends(into("zh"), append("One. "))
    conversation.sources["t1"] += "Theirs. "
    appending = asyncio.create_task(conversation.client_sends(append("Two. ")))
    await asyncio.sleep(0)
    conversation.connection.push(SourceText(conversation_id="c", turn_id="t1", seq=2, off=5, text="Theirs. "))
    await appending
    assert conversation.sources == {"t1": "One. Theirs. Two. "}


async def test_an_interpretation_that_is_given_up_is_cancelled(conversation: Conversation) -> None:
    await conversation.client_sends(into("zh"), append("One. "))
    conversation.grows = [Conflict("This part of the source was different before.")]
    await conversation.client_sends(append("Two. ", "e2"))
    assert (conversation.cancelled, conversation.errors()) == (["t1"], [("conflict", "e2")])
    await conversation.client_sends(append("Three. "))
    assert conversation.sources == {"t1": "One. ", "t2": "Three. "}


async def test_an_end_that_is_refused_cancels_and_what_waits_is_translated(
    conversation: Conversation,
) -> None:
    await conversation.client_sends(into("zh"), append("One. "))
    conversation.grows = [Filtered("A filter of this server refuses it.")]
    await conversation.client_sends(into("de"), append("Two. "))
    assert (conversation.cancelled, conversation.errors()) == (["t1"], [("filtered", None)])
    assert conversation.sources == {"t1": "One. ", "t2": "Two. "}


async def test_a_refusal_takes_the_part_refused_alone_and_names_its_event(conversation: Conversation) -> None:
    conversation.begins = [Filtered("A filter of this server refuses it.")]
    conversation.session.update(decode(_line(into("zh"))))  # type: ignore[arg-type]
    conversation.session.append("One. ", "e1")
    conversation.session.update(decode(_line(into("de"))))  # type: ignore[arg-type]
    await conversation.client_sends(append("Two. ", "e2"))
    assert conversation.errors() == [("filtered", "e1")]
    assert conversation.sources == {"t1": "Two. "}


async def test_what_begins_is_sent_again_where_that_may_help(conversation: Conversation) -> None:
    conversation.begins = [Overloaded("Too many at once."), Busy("Another reply is being made.")]
    await conversation.client_sends(into("zh"), append("One. "))
    assert (conversation.sources, conversation.errors()) == ({"t1": "One. "}, [])


async def test_another_language_ends_what_is_under_way_though_its_text_waits(
    conversation: Conversation,
) -> None:
    await conversation.client_sends(into("zh"), append("One. "))
    conversation.session.append("Two. ", None)
    await conversation.client_sends(into("de"))
    assert conversation.sources == {"t1": "One. Two. "}
    assert conversation.encoder.current is None


async def test_the_end_waits_for_a_late_reader(conversation: Conversation) -> None:
    """More may wait than is sent within the second that a shut connection has."""
    conversation.wire.reads.clear()
    serving = asyncio.create_task(conversation.connection.serve(conversation.handler, decode))
    ending = asyncio.create_task(conversation.client_sends({"type": "session.close"}))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not ending.done()
    conversation.wire.reads.set()
    await serving
    assert [one["type"] for one in conversation.wire.sent_events()] == ["session.closed"]


class StubVoices:
    """Which voice is to speak, interpretation by interpretation."""

    def __init__(self) -> None:
        self.begun: list[str | None] = []

    def begin(self, name: str | None) -> None:
        self.begun.append(name)

    async def finish(self) -> None:
        """Nothing is spoken."""


def handler_for(ear: Scripted) -> Any:
    return SimpleNamespace(
        ear=ear,
        voices=VOICES,
        check=lambda _: None,
        language_of=lambda start: start.language,
        slot=lambda _: nullcontext(),
    )


async def test_a_voice_speaks_what_is_translated_for_it_and_nothing_before() -> None:
    voices = StubVoices()
    one = Conversation(handler_for(Scripted()), voices)
    named = into("de")
    named["session"]["audio"]["output"]["voice"] = "de"
    await one.client_sends(into("zh"), append("One. "))
    one.session.append("Two. ", None)
    await one.client_sends(named)
    assert voices.begun == [None]
    await one.client_sends(append("Three. "))
    assert (voices.begun, one.sources) == ([None, "de"], {"t1": "One. Two. ", "t2": "Three. "})


async def test_a_failure_while_somebody_speaks_ends_the_listening_and_sound_begins_it_anew() -> None:
    ear = Scripted(Stopped(0, 1, "one"))
    one = Conversation(handler_for(ear))
    await one.client_sends(into("de"))
    sound = decode(_line({"type": "session.input_audio_buffer.append", "audio": "AAA="}))
    one.begins = [LookupError("a secret of the service")]  # type: ignore[list-item]
    listening = one.handler.handle(one.connection, sound)
    assert listening is not None
    ear.commit()
    with pytest.raises(ExceptionGroup):
        await listening
    again = one.handler.handle(one.connection, sound)
    assert again is not None
    again.close()
