"""What is heard, in the session's events, without a socket: from what is done about it to what is told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from connections.realtime.asking import Asking
from connections.realtime.client_events import ResponseCreate, SessionUpdate
from connections.realtime.items import Items, State
from connections.realtime.server_events import ServerEvent
from connections.realtime.sound.hearing import Hearing
from connections.realtime.sound.spoken_replies import Guess
from connections.realtime.sound.wishes import Offer, SoundSettings
from connections.realtime.telling import Said, Telling
from connections.spoken.conduct import Do, Spoke, Understood
from connections.wire.frames import Frame, Send
from tests.connections.realtime.session import LIMITS, done
from tests.connections.realtime.test_handler import accepted

SEND = Send(client_msg_id="item.1", content="count to ten", conversation_id="c", on_busy="interrupt")


class Room:
    """A session, and what its client is told."""

    def __init__(self, **detection: Any) -> None:
        self.items = Items()
        sound = SoundSettings.of(Offer(voices=("en-us",), languages=("en",)))
        self.asking = Asking(self.items, conversation_id="c", model="m", limits=LIMITS, sound=sound)
        self.telling = Telling(self.items, self.asking)
        self.hearing = Hearing(self.items, self.asking)
        audio = {"input": {"turn_detection": {"type": "server_vad"} | detection, "transcription": {}}}
        session = {"type": "session.update", "session": {"audio": audio}}
        self.asking.update(msgspec.json.decode(msgspec.json.encode(session), type=SessionUpdate))

    def told(self, *frames: Frame) -> list[str]:
        events: list[ServerEvent] = [event for frame in frames for event in self.telling.tell(frame)]
        names = [str(event.__struct_config__.tag).rpartition("input_audio_") for event in events]
        return [name for _, _, name in names]

    def heed(self, *acts: Any, talking: bool = False) -> list[str]:
        return [name for act in acts for name in self.told(*self.hearing.heed(act, talking=talking))]

    def say(self, *, is_guess: bool) -> tuple[Send | None, list[str]]:
        send, frames = self.hearing.message(SEND, is_guess=is_guess)
        return send, self.told(*frames)


WHOLE = [
    "buffer.committed",
    "conversation.item.added",
    "conversation.item.done",
    "transcription.completed",
]


def test_a_cough_over_a_reply_is_not_told() -> None:
    room = Room()
    assert room.heed(Spoke(began=True, at_ms=100), Do.HOLD, Do.LET_GO, talking=True) == []
    assert room.heed(Spoke(began=False, at_ms=300), Understood("", final=True), talking=True) == []


def test_speech_over_a_reply_is_told_once_it_ends_that() -> None:
    room = Room()
    assert room.heed(Spoke(began=True, at_ms=100), Do.HOLD, talking=True) == []
    assert room.heed(Do.CUT) == ["buffer.speech_started"]
    assert room.heed(Understood("count", final=False)) == ["transcription.delta"]
    ends = room.heed(Spoke(began=False, at_ms=900), Understood("count to ten", final=True))
    assert ends == ["buffer.speech_stopped"]
    assert room.say(is_guess=False)[1] == WHOLE


def test_words_that_end_a_reply_as_they_end_are_told_in_their_order() -> None:
    room = Room()
    room.heed(Spoke(began=True, at_ms=100), Do.HOLD, talking=True)
    acts = (Spoke(began=False, at_ms=900), Understood("count to ten", final=True), Do.CUT)
    assert room.heed(*acts, talking=True) == ["buffer.speech_started", "buffer.speech_stopped"]


def test_speech_over_a_reply_that_it_does_not_interrupt_is_told_at_once() -> None:
    room = Room(interrupt_response=False)
    assert room.heed(Spoke(began=True, at_ms=100), talking=True) == ["buffer.speech_started"]


def test_a_guess_is_told_once_it_came_true() -> None:
    room = Room()
    room.heed(Spoke(began=True, at_ms=0))
    sent, told = room.say(is_guess=True)
    assert (sent, told) == (SEND, [])
    assert room.told(accepted("turn_1", "item.1")) == []
    room.heed(Spoke(began=False, at_ms=900), Understood("count to ten", final=True))
    assert room.heed(Do.CONFIRM) == [*WHOLE, "response.created"]
    (item,) = room.items.of_turn("turn_1")[:1]
    assert (item.role, item.text, item.state) == ("user", "count to ten", State.STORED)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_guess_that_was_none_is_never_told(*, is_late: bool) -> None:
    room = Room()
    room.heed(Spoke(began=True, at_ms=0))
    room.say(is_guess=True)
    events = (accepted("turn_1", "item.1"), done("turn_1", 0, removed=True))
    if not is_late:
        assert room.told(*events) == []
    assert room.heed(Do.TAKE_BACK) == []
    if is_late:
        assert room.told(*events) == []
    assert room.told(accepted("turn_2", "theirs", "Hi!"))[-1] == "response.created"
    assert not room.telling.spoken._guesses


def test_what_was_said_waits_where_nothing_is_answered_at_once() -> None:
    room = Room(create_response=False)
    room.heed(Spoke(began=True, at_ms=0))
    assert room.say(is_guess=True) == (None, [])
    room.heed(Spoke(began=False, at_ms=900), Understood("count to ten", final=True))
    assert room.heed(Do.CONFIRM) == WHOLE
    (send,) = room.asking.ask(ResponseCreate())
    assert isinstance(send, Send)
    assert (send.content, send.on_busy) == ("count to ten", "enqueue")


def test_a_message_that_was_refused_waits_as_any_item() -> None:
    room = Room()
    room.heed(Spoke(began=True, at_ms=0))
    room.say(is_guess=False)
    assert room.items.waiting() == []
    assert room.told(*room.hearing.refused("item.1")) == []
    assert [item.text for item in room.items.waiting()] == ["count to ten"]
    assert isinstance(room.hearing.refused("item.1")[0], Guess | Said)
