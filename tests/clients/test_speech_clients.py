"""Stock clients of `/v1/audio` with their defaults for models, voices and formats, against a real server.

Each has a sentence spoken, and that sound transcribed.
"""

from __future__ import annotations

import shutil

import pytest

from tests.clients.conftest import Runner
from tests.server_process import ServerProcess

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(900),  # an environment of its own, made at the first run
    pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng"),
]


@pytest.mark.parametrize(
    "script", ["livekit_speech.py", "pipecat_speech.py", "agents_speech.py", "tools/aisdk_speech.mjs"]
)
def test_what_a_client_has_spoken_is_heard(script: str, run_script: Runner, speaking: ServerProcess) -> None:
    output = run_script(script, speaking.url)["spoke"]
    assert output["heard"] == "tell me a story about a lighthouse"
    assert output["seconds"] > 1


@pytest.mark.parametrize("script", ["livekit_transcription.py", "agents_transcription.py"])
def test_a_realtime_transcription_hears_what_a_client_has_spoken(
    script: str, run_script: Runner, speaking: ServerProcess
) -> None:
    output = run_script(script, speaking.url)["transcribed"]
    assert output["heard"] == "tell me a story about a lighthouse"
