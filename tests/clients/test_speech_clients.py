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
    """Pipecat and the AI SDK have no transcription sessions."""
    output = run_script(script, speaking.url)
    assert output["spoke"]["seconds"] > 1
    assert {one["heard"] for one in output.values()} == {"tell me a story about a lighthouse"}
    assert ("transcribed" in output) == (script in ("livekit_speech.py", "agents_speech.py"))
