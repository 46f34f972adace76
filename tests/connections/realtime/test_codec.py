"""Text to client events, and frames to lines."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connections.api.realtime.encoder import RealtimeCodec, RealtimeEventEncoder
from connections.api.realtime.events import ItemCreate, ResponseCreate, SessionUpdate
from connections.api.realtime.session import Items, RealtimeSession
from connections.protocol import frames
from connections.protocol.errors import BadFrame
from sessions.events import Deleted, Status
from tests.connections.realtime.client_mirror import LIMITS


def codec() -> RealtimeCodec:
    items = Items()
    session = RealtimeSession(items, conversation_id="c", model="m", limits=LIMITS)
    return RealtimeCodec(RealtimeEventEncoder(items, session), conversation_id="c")


def read(**event: Any) -> object:
    return codec().decode(json.dumps(event))


def test_events_are_read_as_the_reference_has_them() -> None:
    update = read(type="session.update", event_id="e", session={"type": "realtime", "tracing": {"a": [1]}})
    assert isinstance(update, SessionUpdate)
    assert update.ref == "e"
    item = {"type": "message", "id": None, "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}
    created = read(type="conversation.item.create", previous_item_id=None, item=item)
    assert isinstance(created, ItemCreate)
    assert isinstance(read(type="response.create", response=None), ResponseCreate)


def test_a_cancel_is_the_native_one() -> None:
    assert read(type="response.cancel", event_id="e") == frames.Cancel(ref="e", conversation_id="c")
    assert read(type="response.cancel", response_id="resp_1") == frames.Cancel(turn_id="turn_1")


@pytest.mark.parametrize(
    ("text", "why", "ref"),
    [
        ('{"type":"response.create","event_id":"e","response":{"metadata":{"a":1}}}', "response.metadata", "e"),
        ('{"type":"conversation.item.delete","event_id":"e"}', "item_id", "e"),
        ('{"type":"response.done","event_id":"e"}', "type", "e"),
        ('{"type":"response.create","event_id":5}', "event_id", None),
        ('{"type":"session.update","event_id":"e","session":{"instructions":"\\u0000"}}', "session.instructions", "e"),
        ('{"type":"session.update","event_id":"e","session":{"instructions":"\\ud800"}}', "session.instructions", "e"),
        ('{"type":"session.update","session":{"prompt":' + "[" * 20_000 + "]" * 20_000 + "}}", "deeply", None),
        ('{"type":"session.update","session":{"tools":[{"parameters":' + '{"a":' * 10_000 + "1" + "}" * 10_000 + "}]}}", "deeply", None),
        ("[]", "object", None),
        ("nonsense", "JSON", None),
        (b"{}", "binary", None),
    ],
)  # fmt: skip
def test_what_is_no_event_is_named(text: str | bytes, why: str, ref: str | None) -> None:
    with pytest.raises(BadFrame, match=why) as bad:
        codec().decode(text)
    assert bad.value.ref == ref


@pytest.mark.parametrize(("length", "comes_back"), [(512, True), (513, False)])
def test_an_event_id_comes_back_as_long_as_one_may_be(length: int, *, comes_back: bool) -> None:
    event_id = "e" * length
    with pytest.raises(BadFrame) as bad:
        read(type="no.such.event", event_id=event_id)
    assert bad.value.ref == (event_id if comes_back else None)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["type", "item", "content", "session", "response", "event_id"]) | st.text(), inner)))  # fmt: skip
def test_nothing_that_comes_breaks_the_reader(value: object) -> None:
    with suppress(BadFrame):
        codec().decode(json.dumps(value))


def test_what_is_not_read_may_hold_anything() -> None:
    assert isinstance(read(type="session.update", session={"prompt": ["\0"], "\0": "\0"}), SessionUpdate)


def test_a_frame_without_a_word_here_is_no_line() -> None:
    assert codec().encode(Status(conversation_id="c", turn_id="t", state="queued")) == b""
    assert codec().encode(Deleted(conversation_id="c")) == b""


def test_an_error_carries_the_id_of_the_clients_event_and_the_fields_name() -> None:
    line = codec().encode(frames.Error(ref="e", code="bad_params", message="`params.system` is too long."))
    reported = json.loads(line)
    assert reported["error"] == {
        "type": "invalid_request_error",
        "code": "invalid_value",
        "message": "`response.instructions` is too long.",
        "param": "response.instructions",
        "event_id": "e",
    }
    assert reported["event_id"] != "e"


@given(st.text())
def test_a_line_is_one_line_whatever_its_text(message: str) -> None:
    line = codec().encode(frames.Error(code="internal", message=message))
    assert len(line.splitlines()) == 1
