"""Sound as binary frames, and its place in a reply."""

from __future__ import annotations

from midstream.sound import sound_frame, sound_message
from midstream.spoken import SpokenReply


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
