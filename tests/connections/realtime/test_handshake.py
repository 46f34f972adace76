"""What a client shows at the endpoint."""

from __future__ import annotations

import pytest

from connections.api.realtime.endpoint import parse_handshake
from connections.protocol.errors import BadParams


def test_a_browser_shows_its_key_as_a_subprotocol_which_is_not_the_one_that_is_spoken() -> None:
    status = parse_handshake({}, ("realtime", "openai-insecure-api-key.sk-1", "openai-beta.realtime-v1"))
    assert (status.key, status.subprotocol) == ("sk-1", "realtime")
    assert parse_handshake({}, ("openai-insecure-api-key.sk-1",)).subprotocol is None


def test_a_session_may_be_of_transcriptions_alone_and_has_no_conversation_then() -> None:
    assert parse_handshake({"intent": "transcription", "model": "whisper-1"}, ()).transcribes
    assert not parse_handshake({}, ()).transcribes
    for field in ("conversation_id", "after"):
        with pytest.raises(BadParams, match=f"^`{field}` "):
            parse_handshake({"intent": "transcription", field: "c"}, ())


@pytest.mark.parametrize("field", ["call_id", "intent"])
def test_calls_and_other_intents_are_not_served(field: str) -> None:
    with pytest.raises(BadParams, match=f"^`{field}` "):
        parse_handshake({field: "x"}, ())


@pytest.mark.parametrize("field", ["conversation_id", "client_id"])
@pytest.mark.parametrize("name", ["", "a b", "ü", "x" * 129])
def test_names_have_their_letters(field: str, name: str) -> None:
    with pytest.raises(BadParams, match=f"^`{field}` "):
        parse_handshake({field: name}, ())
