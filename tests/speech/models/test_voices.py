"""Voices of transformers make the sound that transformers makes with the same seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from speech.errors import ModelLoadError
from speech.interfaces import ModelOptions
from speech.voice_models import LONGEST_S, SEED, Vits, load, pcm_of
from tests.speech.models import checkpoints

TEXT = "The light was red, and he said: no."


def synthesize(model: Vits, text: str = TEXT, *, voice: str = "0", speed: float = 1.0) -> bytes:
    return model.speak(text, voice=voice, speed=speed)


@pytest.fixture(scope="module")
def vits(vits_folder: Path) -> Any:
    return load(ModelOptions(model=str(vits_folder), device="cpu"))


@torch.no_grad()
@pytest.mark.parametrize("speed", [1.0, 1.5])
def test_vits_sounds_as_it_does_in_transformers(vits: Any, speed: float) -> None:
    torch.manual_seed(SEED)
    requested = vits._tokenizer(TEXT, return_tensors="pt")
    theirs = vits._model(**requested, speaker_id=1, speaking_rate=speed).waveform[0]
    pcm = synthesize(vits, voice="1", speed=speed)
    assert pcm == pcm_of(theirs)
    assert len(set(pcm)) > 20, "all zeros would be equal to anything that is wrong in the same way"


def test_a_clause_without_a_letter_of_the_model_is_no_sound(vits: Any) -> None:
    assert synthesize(vits, "… 你好!") == b""


def test_a_clause_that_would_take_hours_is_refused_before_it_is_made(vits: Any) -> None:
    """Without the bound, this would ask for gigabytes."""
    seen = torch.full((1, 1, 10), 12.0)
    with pytest.raises(OverflowError):
        vits._check_durations(None, None, seen)
    vits._check_durations(None, None, torch.ones_like(seen))
    assert LONGEST_S < 100


def test_what_are_no_numbers_is_no_sound() -> None:
    with pytest.raises(FloatingPointError):
        pcm_of(torch.tensor([0.0, torch.nan]))
    with pytest.raises(FloatingPointError):
        pcm_of(torch.tensor([0.0, torch.inf]))


def test_samples_beyond_full_scale_are_cut() -> None:
    pcm = pcm_of(torch.tensor([0.0, 1.0, -1.0, 7.0, -7.0]))
    assert np.frombuffer(pcm, "<i2").tolist() == [0, 32767, -32767, 32767, -32767]


def test_a_model_that_wants_phonemes_of_a_library_under_the_gpl_is_refused(tmp_path: Path) -> None:
    checkpoints.vits(tmp_path, phonemize=True)
    with pytest.raises(ModelLoadError, match="needs phonemes from the library phonemizer"):
        load(ModelOptions(model=str(tmp_path), device="cpu"))


def test_a_model_that_does_not_speak_is_refused(whisper_folder: Path) -> None:
    with pytest.raises(ModelLoadError, match="type 'whisper', which is none that speaks"):
        load(ModelOptions(model=str(whisper_folder), device="cpu"))
