"""Text to client events, and frames to lines."""

from __future__ import annotations

import json
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from connections.api.realtime.encoder import RealtimeCodec, RealtimeEventEncoder
from connections.api.realtime.session import RealtimeSession
from connections.protocol.errors import BadFrame
from tests.connections.realtime.client_mirror import LIMITS


def codec() -> RealtimeCodec:
    session = RealtimeSession(conversation_id="c", model="m", limits=LIMITS)
    return RealtimeCodec(RealtimeEventEncoder(session))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["type", "item", "content", "session", "response", "event_id"]) | st.text(), inner)))  # fmt: skip
def test_nothing_that_comes_breaks_the_reader(value: object) -> None:
    with suppress(BadFrame):
        codec().decode(json.dumps(value))
