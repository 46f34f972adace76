"""A reply that is spoken over, or cut; a connection that is lost: what is shown and told then. No service, no sound."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest

from midstream.spoken import Heard, Sound, SpokenConversation, SpokenReply
from midstream.terminal.plain_page import PlainPage
from midstream.terminal.voice import voice_chat
from midstream.terminal.voice.voice_chat import VoiceChat

Frame = dict[str, Any]


class RecordingScreen:
    """A screen whose lines can't be taken back."""

    def __init__(self) -> None:
        self.written = io.StringIO()
        self.waits = ""

    def page(self, before: str) -> PlainPage:
        return PlainPage(self.written)

    def show_past(self, message: Frame) -> None:
        self.written.write(f"> {message['content']}\n")

    def note(self, line: str) -> None:
        self.written.write(f"{line}\n")

    def fail(self, line: str) -> None:
        raise AssertionError(line)

    def wait(self, line: str) -> None:
        self.waits = line


class Device:
    input_rate = output_rate = 16_000


class Server:
    """A client, as far as a chat needs one."""

    def __init__(self) -> None:
        self.requests: list[str | int] = []
        self.sent: list[bytes] = []

    async def cancel(self, conversation_id: str) -> None:
        self.requests.append("cancel")

    async def request(self, frame: Frame) -> Frame:
        return frame | {"stream": 1}

    async def tell(self, frame: Frame) -> None:
        self.requests.append(frame.get("audio_ms", frame["type"]))

    async def send_sound(self, message: bytes) -> None:
        self.sent.append(message)


@pytest.mark.parametrize(
    ("reason", "chars", "shown"),
    [
        ("cancelled", 4, "One,\n[stopped]\n> no wait\n"),
        ("stop", 9, "One, two.\n"),
    ],
)
async def test_words_over_a_reply_are_a_message_where_they_end_it(
    reason: str, chars: int, shown: str
) -> None:
    """Also where they are over before the server says that the reply has ended."""
    server, stage = Server(), RecordingScreen()
    spoken = SpokenConversation(server, {"conversation_id": "c"})
    chat = VoiceChat(None, spoken, stage, Device(), by_key=False)  # type: ignore[arg-type]
    reply = SpokenReply(server, {"conversation_id": "c", "turn_id": "t"})
    await chat._handle(reply)
    await chat._handle(Heard("no wait", final=True, item="i"))
    reply.take({"type": "delta", "off": 0, "text": "One, two."})
    reply.take({"type": "done", "reason": reason, "chars": chars})
    assert chat._reading is not None
    await chat._reading
    assert stage.written.getvalue() == shown


async def test_before_a_reply_is_cut_it_is_told_how_much_of_it_is_heard() -> None:
    """What the device has is heard; what waits for the device is not."""
    server = Server()
    spoken = SpokenConversation(server, {"conversation_id": "c"})
    chat = VoiceChat(server, spoken, RecordingScreen(), Device(), by_key=False)  # type: ignore[arg-type]
    reply = SpokenReply(server, {"conversation_id": "c", "turn_id": "t"})
    await chat._handle(reply)
    await chat._handle(Sound(reply, bytes(32_000), 0.0, last=False))
    chat._player.fill(9600, 0.1)
    await chat._cut()
    await chat._handle(Sound(reply, bytes(32_000), 1000.0, last=False))  # it was on its way
    assert server.requests == [300, "cancel"]
    assert chat._player.stop() == 300
    assert chat._reading is not None
    chat._reading.cancel()


@pytest.mark.parametrize(
    ("ms", "is_over", "is_due"),
    [
        (150, False, False),
        (180, False, True),  # the second word has ended
        (240, False, True),
        (130, True, True),
        (120, True, False),  # nothing new
    ],
)
def test_the_server_is_told_of_each_word_once_it_was_heard(
    ms: float,
    is_over: bool,  # noqa: FBT001 - as the cases name it
    is_due: bool,  # noqa: FBT001 - as the cases name it
) -> None:
    """Else speech over the reply would take a word away that was heard."""
    reply = SpokenReply(Server(), {"conversation_id": "c", "turn_id": "t"})
    words = [
        {"off": 0, "len": 4, "start_ms": 0, "end_ms": 90},
        {"off": 5, "len": 4, "start_ms": 95, "end_ms": 180},
    ]
    reply.mark({"marks": words})
    assert voice_chat._is_report_due(reply, ms, reported_ms=120, is_over=is_over) is is_due


async def test_what_was_said_over_a_lost_connection_is_not_waited_for() -> None:
    server, stage = Server(), RecordingScreen()
    spoken = SpokenConversation(server, {"type": "audio.start", "conversation_id": "c"})
    await spoken.begin(server.request)
    chat = VoiceChat(None, spoken, stage, Device(), by_key=True)  # type: ignore[arg-type]
    events = aiter(spoken)
    chat.press()
    chat.press()
    assert stage.waits == "Understanding. Enter to talk"
    spoken.lost()
    await chat._handle(await anext(events))
    assert stage.waits == "Not connected"
    chat.press()  # nobody would hear it
    chat.press()
    assert stage.waits == "Not connected"
    await spoken.begin(server.request)
    await chat._handle(await anext(events))
    assert stage.waits == "Enter to talk"
    chat.press()
    assert stage.waits == "Listening; Enter sends it"


async def test_what_is_being_said_is_lost_with_the_connection() -> None:
    server, stage = Server(), RecordingScreen()
    spoken = SpokenConversation(server, {"type": "audio.start", "conversation_id": "c"})
    await spoken.begin(server.request)
    chat = VoiceChat(None, spoken, stage, Device(), by_key=True)  # type: ignore[arg-type]
    chat.press()
    chat._microphone.put(bytes(640))
    spoken.lost()
    await chat._handle(await anext(aiter(spoken)))
    await spoken.begin(server.request)
    assert not chat._microphone.is_open
    chat.press()
    chat._microphone.put(b"\1\0")
    sending = asyncio.create_task(chat._microphone.run())
    while not server.sent:  # noqa: ASYNC110 - the task needs turns of the loop alone
        await asyncio.sleep(0)
    sending.cancel()
    assert [message[-2:] for message in server.sent] == [b"\1\0"]
