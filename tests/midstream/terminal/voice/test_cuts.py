"""A reply that is spoken over, or cut: what of it was heard, and what was said. No service, no sound."""

from __future__ import annotations

import io
from typing import Any

import pytest

from midstream.spoken import Heard, Sound, SpokenConversation, SpokenReply
from midstream.terminal.plain_page import PlainPage
from midstream.terminal.voice.voice_chat import VoiceChat

Frame = dict[str, Any]


class Stage:
    """A screen whose lines can't be taken back."""

    def __init__(self) -> None:
        self.written = io.StringIO()

    def page(self, before: str) -> PlainPage:
        return PlainPage(self.written)

    def past(self, message: Frame) -> None:
        self.written.write(f"> {message['content']}\n")

    def note(self, line: str) -> None:
        self.written.write(f"{line}\n")

    def fail(self, line: str) -> None:
        raise AssertionError(line)

    def wait(self, line: str) -> None:
        """It goes again."""


class Device:
    input_rate = output_rate = 16_000


class Server:
    """A client, as far as a chat needs one."""

    def __init__(self) -> None:
        self.asked: list[str | int] = []

    async def cancel(self, conversation_id: str) -> None:
        self.asked.append("cancel")

    async def request(self, frame: Frame) -> Frame:
        raise AssertionError(frame)

    async def tell(self, frame: Frame) -> None:
        self.asked.append(frame["audio_ms"])

    async def send_sound(self, message: bytes) -> None:
        raise AssertionError(message)


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
    server, stage = Server(), Stage()
    spoken = SpokenConversation(server, {"conversation_id": "c"})
    chat = VoiceChat(None, spoken, stage, Device(), by_key=False)  # type: ignore[arg-type]
    reply = SpokenReply(server, {"conversation_id": "c", "turn_id": "t"})
    await chat._heed(reply)
    await chat._heed(Heard("no wait", final=True, item="i"))
    reply.take({"type": "delta", "off": 0, "text": "One, two."})
    reply.take({"type": "done", "reason": reason, "chars": chars})
    assert chat._reading is not None
    await chat._reading
    assert stage.written.getvalue() == shown


async def test_before_a_reply_is_cut_it_is_told_how_much_of_it_is_heard() -> None:
    """What the device has is heard; what waits for the device is not."""
    server = Server()
    spoken = SpokenConversation(server, {"conversation_id": "c"})
    chat = VoiceChat(server, spoken, Stage(), Device(), by_key=False)  # type: ignore[arg-type]
    reply = SpokenReply(server, {"conversation_id": "c", "turn_id": "t"})
    await chat._heed(reply)
    await chat._heed(Sound(reply, bytes(32_000), 0.0, last=False))
    chat._player.fill(9600, 0.1)
    await chat._cut()
    await chat._heed(Sound(reply, bytes(32_000), 1000.0, last=False))  # it was on its way
    assert server.asked == [300, "cancel"]
    assert chat._player.stop() == 300
    assert chat._reading is not None
    chat._reading.cancel()
