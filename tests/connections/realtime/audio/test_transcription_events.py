"""What is heard, in the session's events, without a socket: from what is done about it to what is told."""

from __future__ import annotations

from typing import Any

import msgspec

from connections.api.realtime.events import Event, ResponseCreate
from connections.api.realtime.session import MAX_WAITING, SEPARATOR
from connections.protocol.frames import Frame, Send
from connections.turn_taking import ReplyAction, SpeechEdge, TranscriptUpdate
from tests.connections.realtime.audio.test_input_audio import SessionHarness
from tests.connections.realtime.client_mirror import LIMITS

SEND = Send(client_msg_id="item.1", content="count to ten", conversation_id="c", on_busy="interrupt")


class Room(SessionHarness):
    """A session, and what its client is told."""

    def __init__(self, **detection: Any) -> None:
        super().__init__()
        self.set(input={"turn_detection": {"type": "server_vad"} | detection, "transcription": {}})

    def event_names(self, *frames: Frame) -> list[str]:
        events: list[Event] = [event for frame in frames for event in self.encoder.encode(frame)]
        return [event["type"].rpartition("input_audio_")[2] for event in events]

    def sent(self) -> list[str]:
        frames, self.person.frames = self.person.frames, []
        return self.event_names(*frames)

    def on_action(self, *acts: Any, talking: bool = False) -> list[str]:
        for act in acts:
            self.mic.on_action(act, talking=talking)
        return self.sent()

    def speech_message(self) -> tuple[Send | None, list[str]]:
        return self.mic.message(SEND), self.sent()


def test_a_cough_over_a_reply_is_not_told() -> None:
    room = Room()
    assert room.on_action(SpeechEdge(began=True, at_ms=100), talking=True) == []
    assert (
        room.on_action(SpeechEdge(began=False, at_ms=300), TranscriptUpdate("", final=True), talking=True)
        == []
    )


def test_words_that_end_a_reply_as_they_end_are_told_in_their_order() -> None:
    room = Room()
    room.on_action(SpeechEdge(began=True, at_ms=100), talking=True)
    acts = (SpeechEdge(began=False, at_ms=900), TranscriptUpdate("count to ten", final=True), ReplyAction.CUT)
    assert room.on_action(*acts, talking=True) == ["buffer.speech_started", "buffer.speech_stopped"]


def test_speech_over_a_reply_that_it_does_not_interrupt_is_told_at_once() -> None:
    room = Room(interrupt_response=False)
    assert room.on_action(SpeechEdge(began=True, at_ms=100), talking=True) == ["buffer.speech_started"]


def test_a_message_that_was_refused_waits_as_any_item() -> None:
    room = Room()
    room.on_action(SpeechEdge(began=True, at_ms=0))
    room.speech_message()
    assert room.items.waiting() == []
    room.mic.refused(SEND)
    assert room.sent() == []
    assert [item.text for item in room.items.waiting()] == ["count to ten"]


def speak(room: Room, text: str, number: int) -> list[str]:
    room.on_action(SpeechEdge(began=True, at_ms=0))
    send = msgspec.structs.replace(SEND, content=text, client_msg_id=f"item.{number}")
    room.mic.message(send)
    return room.sent()


def test_the_oldest_that_was_said_goes_where_too_much_waits() -> None:
    room = Room(create_response=False)
    for number in range(MAX_WAITING):
        speak(room, str(number), number)
    assert speak(room, "one more", MAX_WAITING)[0] == "conversation.item.deleted"
    assert len(room.items.waiting()) < MAX_WAITING
    speak(room, "l" * LIMITS.max_content_chars, MAX_WAITING + 1)
    assert [item.text[0] for item in room.items.waiting()] == ["l"]


def test_what_is_said_is_sent_with_as_much_of_what_waits_as_fits() -> None:
    room = Room(create_response=False)
    half = LIMITS.max_content_chars // 2 - len(SEPARATOR)
    for number in range(2):
        speak(room, str(number) * half, number)
    send = room.session.speech_message(msgspec.structs.replace(SEND, content="Now?"), "item")
    assert len(send.content) <= LIMITS.max_content_chars
    assert send.content.startswith("0")
    assert [item.text[0] for item in room.items.waiting()] == ["1"]
    (requested,) = room.session.ask(ResponseCreate())
    assert isinstance(requested, Send)
    assert requested.content == "1" * half
