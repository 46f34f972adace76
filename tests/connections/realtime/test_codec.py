"""Text to client events, and frames to lines."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connections.api.realtime.encoder import RealtimeCodec, RealtimeEventEncoder
from connections.api.realtime.events import SessionUpdate
from connections.api.realtime.session import RealtimeSession
from connections.protocol.errors import BadFrame
from tests.connections.realtime.client_mirror import LIMITS


def codec() -> RealtimeCodec:
    session = RealtimeSession(conversation_id="c", model="m", limits=LIMITS)
    return RealtimeCodec(RealtimeEventEncoder(session))


def read(**event: Any) -> object:
    return codec().decode(json.dumps(event))


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
