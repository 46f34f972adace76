"""Sound as binary frames, and its place in a reply."""

from __future__ import annotations

from typing import Any

from midstream.server_connection import sound_frame, sound_message
from midstream.spoken import SpokenConversation, SpokenReply


def test_a_binary_frame_is_read_as_it_was_written() -> None:
    assert sound_message(1, 1, b"ab") == b"\x01\x00\x00\x01\x00\x00\x00\x01ab"
    frame = {"type": "sound", "stream": 7, "seq": 0, "samples": b"ab", "last": False}
    assert sound_frame(sound_message(7, 1 << 32, b"ab")) == frame
    last = {"stream": 1, "seq": 2, "samples": b"", "last": True}
    assert sound_frame(b"\x01\x01\x00\x01\x00\x00\x00\x02") == frame | last


def test_a_binary_frame_of_another_kind_is_none() -> None:
    for unknown in (b"", b"\x01\x00", b"\x02\x00\x00\x01\x00\x00\x00\x01ab"):
        assert sound_frame(unknown) is None


def test_a_part_of_a_sound_begins_where_the_one_before_ended() -> None:
    reply = SpokenReply(None, {"turn_id": "t", "conversation_id": "c"})  # type: ignore[arg-type]
    reply.begin_sound({"rate": 8000, "stream": 3, "from_ms": 40})
    first = reply.take_sound({"stream": 3, "samples": bytes(320), "last": False})
    second = reply.take_sound({"stream": 3, "samples": b"", "last": True})
    assert first is not None
    assert second is not None
    assert (first.at_ms, first.end_ms, second.at_ms, second.end_ms) == (40, 60, 60, 60)
    assert reply.take_sound({"stream": 4, "samples": b"ab", "last": False}) is None


class RecordingTransport:
    """What is sent of sound. Each `audio.start` gets another stream."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, bytes]] = []
        self.streams = 0

    async def request(self, frame: dict[str, Any]) -> dict[str, Any]:
        self.streams += 1
        return frame | {"stream": self.streams}

    async def notify(self, frame: dict[str, Any]) -> None:
        raise AssertionError(frame)

    async def send_audio(self, message: bytes) -> None:
        frame = sound_frame(message)
        assert frame is not None
        self.sent.append((frame["stream"], frame["seq"], frame["samples"]))


async def test_sound_is_dropped_between_two_connections_and_a_commit_with_it() -> None:
    """On a connection where nobody began to speak it would be a bad frame."""
    wire = RecordingTransport()
    spoken = SpokenConversation(wire, {"type": "audio.start", "conversation_id": "c"})
    await spoken.send(b"--")
    await spoken.begin(wire.request)
    await spoken.send(b"aa")
    spoken.lost()
    await spoken.send(b"--")
    await spoken.commit()
    await spoken.begin(wire.request)
    await spoken.send(b"bb")
    assert wire.sent == [(1, 1, b"aa"), (2, 1, b"bb")]
