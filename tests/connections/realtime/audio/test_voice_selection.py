"""Which voice speaks for the one that a session names."""

from __future__ import annotations

import msgspec
import pytest

from connections.api.realtime.settings import AudioConfig, with_audio_options


@pytest.mark.parametrize(
    ("name", "voices", "speaks"),
    [
        ("marin", ("en-us", "de"), "en-us"),
        ("alloy", ("ada", "alloy"), "alloy"),
    ],
)
def test_openais_names_are_the_default_voice_unless_a_voice_has_them(
    name: str, voices: tuple[str, ...], speaks: str
) -> None:
    audio = msgspec.Raw(msgspec.json.encode({"output": {"voice": name}}))
    settings = with_audio_options(AudioConfig.of(voices), audio, msgspec.Raw(b"null"), "session")
    assert settings.voice == speaks
