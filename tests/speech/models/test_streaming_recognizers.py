"""A model that listens while somebody speaks hears what it would in a recording."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest

from speech.interfaces import Listening, ModelOptions, Recording, Stopped
from speech.recognition import Recognizer, StreamingRecognizer
from tests.speech.models import checkpoints

RATE = 16_000


async def test_a_model_hears_a_speaker_as_it_does_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    checkpoints.whisper(tmp_path / "ears")
    options = ModelOptions(model=str(tmp_path / "ears"), device="cpu")
    sound = np.random.default_rng(3).normal(0, 3000, RATE * 3).astype("<i2").tobytes()
    recognizer, ear = Recognizer("ears", options), StreamingRecognizer(options)
    async with recognizer.running(), ear.running():
        recording = Recording(RATE, 1, sound)
        hearing_all = recognizer.transcribe(recording, owner="a", language="de")
        async with aclosing(hearing_all) as segments:
            texts = [segment.text.strip() async for segment in segments]
        assert "de" in ear.languages
        listening = Listening(rate=RATE, detects=False, language="de")
        async with ear.listen(listening, owner="a") as hearing:
            hearing.feed(sound)
            hearing.commit()
            stopped = await anext(hearing.events())
    assert isinstance(stopped, Stopped)
    assert stopped.text == " ".join(text for text in texts if text)
    assert stopped.text
