"""What of the microphone's sound goes to the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from midstream.audio_frames import sound_frame
from midstream.spoken import SpokenConversation
from midstream.terminal.voice.microphone import TAIL_PIECES, WAITING_PIECES, Microphone

Frame = dict[str, Any]


class RecordingTransport:
    """What is sent, in its order."""

    def __init__(self) -> None:
        self.sent: list[str | bytes] = []
        self.news = asyncio.Event()

    async def request(self, frame: Frame) -> Frame:
        return frame | {"stream": 1}

    async def tell(self, frame: Frame) -> None:
        self._note(frame["type"])

    async def send_sound(self, message: bytes) -> None:
        frame = sound_frame(message)
        assert frame is not None
        self._note(frame["samples"])

    async def until(self, what: str | bytes) -> None:
        while what not in self.sent:
            self.news.clear()
            await self.news.wait()

    def _note(self, what: str | bytes) -> None:
        self.sent.append(what)
        self.news.set()


@asynccontextmanager
async def sending(*, by_key: bool) -> AsyncIterator[tuple[Microphone, RecordingTransport]]:
    wire = RecordingTransport()
    spoken = SpokenConversation(wire, {"type": "audio.start", "conversation_id": "c"})
    await spoken.begin(wire.request)
    microphone = Microphone(spoken, by_key=by_key)
    task = asyncio.create_task(microphone.run())
    try:
        yield microphone, wire
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def test_all_is_sent_where_no_key_says_when() -> None:
    async with sending(by_key=False) as (microphone, wire):
        for piece in (b"aa", b"bb"):
            microphone.put(piece)
        await wire.until(b"bb")
        assert wire.sent == [b"aa", b"bb"]


async def test_what_is_said_between_two_presses_is_sent_with_its_last_word() -> None:
    async with sending(by_key=True) as (microphone, wire):
        microphone.put(b"--")
        assert microphone.press()
        microphone.put(b"aa")
        assert not microphone.press()
        for number in range(TAIL_PIECES + 1):
            microphone.put(b"t%d" % number)
        await wire.until("audio.commit")
        assert wire.sent == [b"aa", *(b"t%d" % number for number in range(TAIL_PIECES)), "audio.commit"]


async def test_who_presses_again_before_the_last_word_was_sent_says_one_thing() -> None:
    async with sending(by_key=True) as (microphone, wire):
        for piece in (b"aa", b"bb"):
            microphone.press()
            microphone.put(piece)
            microphone.press()
            microphone.put(b"tt")
        for _ in range(TAIL_PIECES):
            microphone.put(b"tt")
        await wire.until("audio.commit")
        assert wire.sent.count("audio.commit") == 1
        assert [piece for piece in wire.sent if piece in (b"aa", b"bb")] == [b"aa", b"bb"]


async def test_of_sound_that_can_not_be_sent_the_newest_waits() -> None:
    async with sending(by_key=False) as (microphone, wire):
        for number in range(WAITING_PIECES + 5):
            microphone.put(b"%04d" % number)
        await wire.until(b"%04d" % (WAITING_PIECES + 4))
        assert wire.sent == [b"%04d" % number for number in range(5, WAITING_PIECES + 5)]
