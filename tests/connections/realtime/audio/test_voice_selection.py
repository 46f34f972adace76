"""Which voice speaks for the one that a session names."""

from __future__ import annotations

import msgspec
import pytest

from connections.api.realtime.events import InvalidEvent
from connections.api.realtime.settings import AudioConfig, with_audio_options
from connections.api.requests import VOICES


def voice_for(name: str, *voices: str) -> str | None:
    """Return the voice of a session that names one, where the server has these."""
    audio = msgspec.Raw(msgspec.json.encode({"output": {"voice": name}}))
    return with_audio_options(AudioConfig.of(voices), audio, msgspec.Raw(b"null"), "session").voice


@pytest.mark.parametrize("name", sorted(VOICES))
def test_openais_voices_are_the_default_voice(name: str) -> None:
    assert voice_for(name, "en-us", "de") == "en-us"


def test_a_voice_of_the_server_has_its_name_before_openais() -> None:
    assert voice_for("alloy", "ada", "alloy") == "alloy"


def test_a_voice_that_nobody_has_is_refused() -> None:
    with pytest.raises(InvalidEvent, match="not a voice of this server"):
        voice_for("nobody", "en-us")
