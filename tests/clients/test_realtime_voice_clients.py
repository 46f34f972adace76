"""Stock clients of `/v1/realtime` with sound, unchanged, against a real server that hears, thinks and speaks.

They say their name, interrupt a story, and ask for their name. The story ends at what they say that they played.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest
import soxr

from speech.espeak import Espeak
from tests.clients.conftest import Runner
from tests.clients.scripts import Lines
from tests.server_process import ServerProcess

pytestmark = pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng")
OWN = (pytest.mark.clients, pytest.mark.timeout(900))  # an environment of its own, made at the first run
RATE = 24_000
SENTENCES = {
    "name": "My name is Robert.",
    "story": "Tell me a story about a lighthouse.",
    "again": "What is my name?",
}


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of what is said: 16-bit PCM at 24,000 Hz."""
    folder = tmp_path_factory.mktemp("spoken")
    for name, sentence in SENTENCES.items():
        clip = asyncio.run(Espeak(("en-gb",)).speak(sentence, voice="en-gb"))
        samples = soxr.resample(np.frombuffer(clip.pcm, "<i2"), clip.rate, RATE)
        lead = bytes(RATE // 2)
        (folder / f"{name}.pcm").write_bytes(lead + np.asarray(samples, "<i2").tobytes())
    return folder


@pytest.fixture(
    scope="module",
    params=[
        "openai_voice.py",
        pytest.param("node_voice.mjs", marks=OWN),
        pytest.param("livekit_voice.py", marks=OWN),
        pytest.param("pipecat_voice.py", marks=OWN),
    ],
)
def output(
    request: pytest.FixtureRequest, run_script: Runner, speaking: ServerProcess, spoken: Path
) -> Lines:
    return run_script(request.param, speaking.url, SPOKEN=str(spoken))


def test_what_is_said_is_heard_and_answered_aloud(output: Lines) -> None:
    first = output["first"]
    assert first["heard"].startswith("my name is ")  # it may mishear a name
    assert first["heard"].split()[-1] in first["said"]
    assert first["bytes"] > RATE


def test_a_reply_that_is_interrupted_ends_at_what_was_heard(output: Lines) -> None:
    interrupted = output["interrupted"]
    assert interrupted["heard"] == "tell me a story about a lighthouse"
    assert interrupted["ms"] > 500
    if "kept" in interrupted:
        assert interrupted["kept_ms"] == interrupted["ms"]
        assert interrupted["kept"] == interrupted["said"]
        assert 1 < len(interrupted["said"].split()) < 30


def test_the_next_turn_knows_the_first(output: Lines) -> None:
    assert output["again"]["heard"] == "what is my name"
    assert output["first"]["heard"].split()[-1] in output["again"]["said"]
