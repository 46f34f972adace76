"""The model that a form for `/v1/audio/transcriptions` names."""

from __future__ import annotations

import pytest

from connections.api.audio import File, Form, transcription_request
from connections.api.requests import Problem
from speech.recognition import ENGLISH


def request(model: str) -> bytes:
    form = Form({"model": [model]}, {"file": File("Recording.webm", "audio/webm", b"sound")})
    return transcription_request(form, model="pocketsphinx", facts=ENGLISH).file


@pytest.mark.parametrize("name", ["pocketsphinx", "whisper-1", ""])
def test_the_model_is_taken_by_its_name_by_openais_and_by_none(name: str) -> None:
    """Open WebUI sends an empty name by default."""
    assert request(name) == b"sound"


def test_another_model_is_refused() -> None:
    with pytest.raises(Problem, match="pocketsphinx"):
        request("parakeet")
