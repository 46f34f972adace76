"""What is spoken in a conversation, and who speaks there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from connections.connection import Connection
from connections.protocol.audio import AudioOutput, AudioStart, Transcript
from connections.protocol.frames import Error, Frame, Send
from connections.spoken_reply import SpokenReply
from connections.turn_taking import ReplyAction
from connections.voice import MAX_REPLIES, VoiceConnection, VoiceConversation, VoiceMessage
from sessions.errors import Overloaded
from sessions.records import Owner
from sessions.service import Sessions
from sessions.turn.turn import Cancel, Cancelled
from speech.errors import VoiceFailed
from speech.espeak import Espeak
from speech.interfaces import Heard, Partial, Paused, Resumed, SpokenClause, Started, Stopped
from tests.connections.factory import delta, until

pytestmark = pytest.mark.asyncio


class RecordingConnection:
    """What a connection was told."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def push(self, frame: Frame) -> None:
        self.frames.append(frame)


class Speaker(VoiceConnection):
    """Speaks, and has a message's turn last until its reply was played."""

    def __init__(self) -> None:
        self.recorder = RecordingConnection()
        super().__init__(None, cast("Connection", self.recorder))
        self.start = AudioStart(output=AudioOutput())
        self.requests: list[VoiceMessage] = []
        self.waiting: list[str] = []

    def refused(self, send: Send) -> None:
        self.waiting.append(send.content)

    async def send_message(self, request: VoiceMessage) -> None:
        self.requests.append(request)
        if request.player is not None:
            await request.player.over()


class EchoSpeaker(Speaker):
    """One whose messages are answered at once."""

    turn_id = "guess"

    async def send_message(self, request: VoiceMessage) -> None:
        reply_of(request).begin(self.turn_id)
        reply_of(request).feed(delta("One. Two.", turn_id="guess", place="here"))
        await super().send_message(request)


class Writing(Speaker):
    """One whose reply is still written."""

    async def send_message(self, request: VoiceMessage) -> None:
        self.requests.append(request)
        reply_of(request).begin("first")
        await until(lambda: reply_of(request).is_over)


class Mute(Espeak):
    """A voice that fails."""

    async def speak(self, clause: str, *, voice: str) -> SpokenClause:
        raise VoiceFailed("The voice ended.")


class StubSessions:
    """Sessions that were asked to end turns, of which one may have ended before."""

    def __init__(self) -> None:
        self.cancels: list[Cancel] = []
        self.taken_back: list[str] = []
        self.ended = ""
        self.turns = self

    def cancel(self, _owner: Owner, cancel: Cancel) -> Cancelled:
        self.cancels.append(cancel)
        return Cancelled(cancel.turn_id, already=cancel.turn_id == self.ended)

    async def take_back(self, _owner: Owner, _conversation_id: str, turn_id: str) -> None:
        self.taken_back.append(turn_id)


@asynccontextmanager
async def talking(
    speaker: Speaker, sessions: StubSessions | None = None, *, grace_s: float | None = None
) -> AsyncIterator[VoiceConversation]:
    """A conversation in which one speaks. Without sessions no turn began, so none is ended."""
    if grace_s is not None:
        speaker.start = AudioStart(output=AudioOutput(), grace_s=grace_s)
    async with asyncio.TaskGroup() as tasks:
        talk = VoiceConversation(
            owner=Owner("anna", ""),
            conversation_id="here",
            sessions=cast("Sessions", sessions),
            voice=Mute(("nobody",)),
            tasks=tasks,
        )
        talk.begin(speaker)
        yield talk


async def say(talk: VoiceConversation, *events: Heard) -> None:
    """Something is heard, and the message that it is goes on its way."""
    for event in events:
        talk.feed(event)
        await asyncio.sleep(0)


def reply_of(request: VoiceMessage) -> SpokenReply:
    assert request.player is not None
    return request.player


async def test_words_after_those_that_were_forgotten_are_another_item() -> None:
    anna = Speaker()
    anna.start = AudioStart()
    async with talking(anna) as talk:
        await say(talk, Started(0), Partial(300, "count"), Partial(400, "count to"))
        talk.forget()
        await say(talk, Started(900), Stopped(900, 1800, "what now"))
    first, second = [frame for frame in anna.recorder.frames if isinstance(frame, Transcript)]
    assert (first.text, second.text) == ("count", "what now")
    assert first.utterance_id != second.utterance_id


async def test_a_guess_is_taken_back_when_another_one_begins_to_speak() -> None:
    anna = Speaker()
    async with talking(anna) as talk:
        await say(talk, Started(0), Paused(900, "count to ten"))
        talk.begin(Speaker())
        is_over = reply_of(*anna.requests).is_over
        talk.cut()  # whatever is left would be waited for
    assert is_over


async def test_a_message_bears_the_name_of_what_was_said() -> None:
    anna = Speaker()
    async with talking(anna) as talk:
        await say(talk, Started(0), Paused(600, "count"), Resumed(700), Stopped(0, 1800, "count to ten"))
        (heard,) = [frame for frame in anna.recorder.frames if isinstance(frame, Transcript)]
        talk.cut()
    said = heard.utterance_id
    assert [request.send.client_msg_id for request in anna.requests] == [f"{said}.1", f"{said}.2"]


async def test_a_guess_that_was_taken_back_before_it_was_sent_is_not_sent() -> None:
    anna = Speaker()
    async with talking(anna) as talk:
        await say(talk, Started(0), Paused(900, "count to ten"))
        (request,) = anna.requests  # it is counted, and has no turn so far
        assert not request.is_withdrawn
        talk.feed(Resumed(1000))
        assert request.is_withdrawn


async def test_no_other_turn_than_the_guess_is_taken_back() -> None:
    """The guess itself may have been refused, or have ended."""
    sessions, anna = StubSessions(), Speaker()
    async with talking(anna, sessions) as talk:
        await say(talk, Stopped(0, 900, "count to ten"))
        reply_of(anna.requests[0]).begin("first")
        talk._on_action(ReplyAction.ROLL_BACK)
        assert sessions.cancels == []
        talk.cut()
        assert [cancel.turn_id for cancel in sessions.cancels] == ["first"]
        reply_of(anna.requests[0]).stop()


async def test_a_guess_whose_voice_failed_is_taken_back_all_the_same() -> None:
    sessions, anna = StubSessions(), EchoSpeaker()
    sessions.ended = anna.turn_id
    async with talking(anna, sessions) as talk:
        talk.feed(Started(0))
        talk.feed(Paused(900, "count to ten"))
        await until(lambda: not talk._replies)
        talk.feed(Resumed(1000))
    assert [frame.code for frame in anna.recorder.frames if isinstance(frame, Error)] == [
        "speech_unavailable"
    ]
    assert [cancel.rollback for cancel in sessions.cancels] == [True]
    assert sessions.taken_back == [anna.turn_id]


def send_message(talk: VoiceConversation, speaker: Speaker, name: str) -> asyncio.Task[None]:
    send = Send(client_msg_id=name, content="Hi!", conversation_id="here")
    return asyncio.create_task(talk.answer(speaker, send, AudioOutput()))


async def test_a_typed_messages_reply_ends_at_what_was_heard_where_who_asked_leaves() -> None:
    sessions, anna = StubSessions(), Writing()
    async with talking(anna, sessions, grace_s=0) as talk:
        task = send_message(talk, anna, "one")
        await until(lambda: anna.requests)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not reply_of(anna.requests[0]).is_over
        talk.end(anna)
        await until(lambda: sessions.cancels)
        reply_of(anna.requests[0]).stop()
    assert [cancel.turn_id for cancel in sessions.cancels] == ["first"]


async def test_who_asks_for_too_many_replies_is_refused_and_what_he_says_waits() -> None:
    anna = Speaker()
    async with talking(anna) as talk:
        pending = [send_message(talk, anna, str(number)) for number in range(MAX_REPLIES)]
        await until(lambda: len(anna.requests) == MAX_REPLIES)
        with pytest.raises(Overloaded, match="Too many replies"):
            await send_message(talk, anna, "one too many")
        talk.feed(Stopped(0, 900, "count to ten"))
        assert anna.waiting == ["count to ten"]
        assert [frame.code for frame in anna.recorder.frames if isinstance(frame, Error)] == ["overloaded"]
        talk.cut()
        await asyncio.gather(*pending)


async def test_replies_end_where_the_next_one_to_speak_can_not_play_them() -> None:
    sessions, anna, late = StubSessions(), Writing(), Speaker()
    late.reports_late = True
    async with talking(anna, sessions) as talk:
        await say(talk, Stopped(0, 900, "count to ten"))
        talk.begin(late)
        assert [cancel.turn_id for cancel in sessions.cancels] == ["first"]
        reply_of(anna.requests[0]).stop()
