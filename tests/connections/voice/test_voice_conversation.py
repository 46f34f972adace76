"""What is spoken in a conversation, and who speaks there."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from connections.connection import Connection
from connections.protocol.audio import AudioOutput, AudioStart, AudioStopped, Transcript
from connections.protocol.frames import Error, Frame, Send
from connections.spoken_reply import SpokenReply
from connections.turn_taking import Action, ReplyAction
from connections.voice import MAX_REPLIES, VoiceConversation, VoiceMessage
from sessions.errors import Overloaded
from sessions.events import Delta
from sessions.records import Owner
from sessions.service import Sessions
from sessions.turn.turn import Cancel, Cancelled
from speech.errors import VoiceFailed
from speech.interfaces import Partial, Paused, Resumed, SpokenClause, Started, Stopped

pytestmark = pytest.mark.asyncio


class RecordingConnection:
    """What a connection was told."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def push(self, frame: Frame) -> None:
        self.frames.append(frame)


class Speaker:
    """Speaks, and has a message's turn last until its reply was played."""

    reports_late = False

    def __init__(self) -> None:
        self.recorder = RecordingConnection()
        self.connection = cast("Connection", self.recorder)
        self.start = AudioStart(output=AudioOutput())
        self.requests: list[VoiceMessage] = []
        self.waiting: list[str] = []

    def stop(self, reason: AudioStopped) -> None:
        self.recorder.push(reason)

    def push(self, frame: Frame) -> None:
        self.recorder.push(frame)

    def on_action(self, act: Action, *, talking: bool) -> None:
        pass

    def message(self, send: Send, *, is_guess: bool) -> Send | None:
        return send

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
        assert request.player is not None
        request.player.begin(self.turn_id)
        text = Delta(
            conversation_id="here", turn_id="guess", seq=1, first_seq=1, off=0, text="One. Two.", tokens=1
        )
        request.player.feed(text)
        await super().send_message(request)


class Writing(Speaker):
    """One whose reply is still written."""

    async def send_message(self, request: VoiceMessage) -> None:
        self.requests.append(request)
        reply_of(request).begin("first")
        while not reply_of(request).is_over:  # noqa: ASYNC110 - turns of the loop
            await asyncio.sleep(0)


class Mute:
    """A voice that fails."""

    names = ("nobody",)

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


def voice_conversation(tasks: asyncio.TaskGroup, sessions: StubSessions | None = None) -> VoiceConversation:
    return VoiceConversation(
        owner=Owner("anna", ""),
        conversation_id="here",
        sessions=cast("Sessions", sessions),  # without them no turn began, so none is ended
        voice=Mute(),
        tasks=tasks,
    )


def reply_of(request: VoiceMessage) -> SpokenReply:
    return cast("SpokenReply", request.player)


async def test_words_after_those_that_were_forgotten_are_another_item() -> None:
    async with asyncio.TaskGroup() as tasks:
        talk, anna = voice_conversation(tasks), Speaker()
        anna.start = AudioStart()
        talk.begin(anna)
        for event in (Started(0), Partial(300, "count"), Partial(400, "count to")):
            talk.feed(event)
        talk.forget()
        talk.feed(Started(900))
        talk.feed(Stopped(900, 1800, "what now"))
    first, second = [frame for frame in anna.recorder.frames if isinstance(frame, Transcript)]
    assert (first.text, second.text) == ("count", "what now")
    assert first.utterance_id != second.utterance_id


async def test_a_guess_is_taken_back_when_another_one_begins_to_speak() -> None:
    async with asyncio.TaskGroup() as tasks:
        talk, anna = voice_conversation(tasks), Speaker()
        talk.begin(anna)
        talk.feed(Started(0))
        talk.feed(Paused(900, "count to ten"))
        await asyncio.sleep(0)  # the message is sent
        talk.begin(Speaker())
        (request,) = anna.requests
        is_over = request.player is not None and cast("SpokenReply", request.player).is_over
        talk.cut()  # whatever is left would be waited for
    assert is_over


async def test_a_message_bears_the_name_of_what_was_said() -> None:
    async with asyncio.TaskGroup() as tasks:
        talk, anna = voice_conversation(tasks), Speaker()
        talk.begin(anna)
        for event in (Started(0), Paused(600, "count"), Resumed(700), Stopped(0, 1800, "count to ten")):
            talk.feed(event)
            await asyncio.sleep(0)  # what is said is sent
        (heard,) = [frame for frame in anna.recorder.frames if isinstance(frame, Transcript)]
        talk.cut()
    said = heard.utterance_id
    assert [request.send.client_msg_id for request in anna.requests] == [f"{said}.1", f"{said}.2"]


async def test_a_guess_that_was_taken_back_before_it_was_sent_is_not_sent() -> None:
    async with asyncio.TaskGroup() as tasks:
        talk, anna = voice_conversation(tasks), Speaker()
        talk.begin(anna)
        talk.feed(Started(0))
        talk.feed(Paused(900, "count to ten"))
        await asyncio.sleep(0)
        (request,) = anna.requests  # it is counted, and has no turn so far
        assert not request.is_withdrawn
        talk.feed(Resumed(1000))
        assert request.is_withdrawn


async def test_no_other_turn_than_the_guess_is_taken_back() -> None:
    """The guess itself may have been refused, or have ended."""
    async with asyncio.TaskGroup() as tasks:
        sessions, anna = StubSessions(), Speaker()
        talk = voice_conversation(tasks, sessions)
        talk.begin(anna)
        talk.feed(Stopped(0, 900, "count to ten"))
        await asyncio.sleep(0)
        reply_of(anna.requests[0]).begin("first")
        talk._apply(ReplyAction.ROLL_BACK)
        assert sessions.cancels == []
        talk.cut()
        assert [cancel.turn_id for cancel in sessions.cancels] == ["first"]
        reply_of(anna.requests[0]).stop()


async def test_a_guess_whose_voice_failed_is_taken_back_all_the_same() -> None:
    async with asyncio.TaskGroup() as tasks:
        sessions, anna = StubSessions(), EchoSpeaker()
        sessions.ended = anna.turn_id
        talk = voice_conversation(tasks, sessions)
        talk.begin(anna)
        talk.feed(Started(0))
        talk.feed(Paused(900, "count to ten"))
        while talk._replies:  # noqa: ASYNC110 - turns of the loop
            await asyncio.sleep(0)
        talk.feed(Resumed(1000))
    assert [frame.code for frame in anna.recorder.frames if isinstance(frame, Error)] == [
        "speech_unavailable"
    ]
    assert [cancel.rollback for cancel in sessions.cancels] == [True]
    assert sessions.taken_back == [anna.turn_id]


async def test_a_reply_waits_for_its_listener_no_longer_than_he_said() -> None:
    """Another tab may be attached, for which the turn would go on for ever."""
    async with asyncio.TaskGroup() as tasks:
        sessions, anna = StubSessions(), Speaker()
        anna.start = AudioStart(output=AudioOutput(), grace_s=0)
        talk = voice_conversation(tasks, sessions)
        talk.begin(anna)
        talk.feed(Stopped(0, 900, "count to ten"))
        await asyncio.sleep(0)
        reply_of(anna.requests[0]).begin("first")
        talk.end(anna)
        while not sessions.cancels:  # noqa: ASYNC110 - a timer of the loop
            await asyncio.sleep(0)
        reply_of(anna.requests[0]).stop()
    assert [cancel.turn_id for cancel in sessions.cancels] == ["first"]


def send_message(talk: VoiceConversation, speaker: Speaker, name: str) -> asyncio.Task[None]:
    send = Send(client_msg_id=name, content="Hi!", conversation_id="here")
    return asyncio.create_task(talk.answer(speaker, send, AudioOutput()))


async def test_a_typed_messages_reply_ends_at_what_was_heard_where_who_asked_leaves() -> None:
    async with asyncio.TaskGroup() as tasks:
        sessions, anna = StubSessions(), Writing()
        anna.start = AudioStart(output=AudioOutput(), grace_s=0)
        talk = voice_conversation(tasks, sessions)
        talk.begin(anna)
        task = send_message(talk, anna, "one")
        while not anna.requests:  # noqa: ASYNC110 - turns of the loop
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not reply_of(anna.requests[0]).is_over
        talk.end(anna)
        while not sessions.cancels:  # noqa: ASYNC110 - a timer of the loop
            await asyncio.sleep(0)
        reply_of(anna.requests[0]).stop()
    assert [cancel.turn_id for cancel in sessions.cancels] == ["first"]


async def test_who_asks_for_too_many_replies_is_refused_and_what_he_says_waits() -> None:
    async with asyncio.TaskGroup() as tasks:
        talk, anna = voice_conversation(tasks), Speaker()
        talk.begin(anna)
        pending = [send_message(talk, anna, str(number)) for number in range(MAX_REPLIES)]
        while len(anna.requests) < MAX_REPLIES:  # noqa: ASYNC110 - turns of the loop
            await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="Too many replies"):
            await send_message(talk, anna, "one too many")
        talk.feed(Stopped(0, 900, "count to ten"))
        assert anna.waiting == ["count to ten"]
        assert [frame.code for frame in anna.recorder.frames if isinstance(frame, Error)] == ["overloaded"]
        talk.cut()
        await asyncio.gather(*pending)


async def test_replies_end_where_the_next_one_to_speak_can_not_play_them() -> None:
    async with asyncio.TaskGroup() as tasks:
        sessions, anna, late = StubSessions(), Writing(), Speaker()
        late.reports_late = True
        talk = voice_conversation(tasks, sessions)
        talk.begin(anna)
        talk.feed(Stopped(0, 900, "count to ten"))
        await asyncio.sleep(0)
        talk.begin(late)
        assert [cancel.turn_id for cancel in sessions.cancels] == ["first"]
        reply_of(anna.requests[0]).stop()
