"""Voices of transformers make the sound that transformers makes with the same seed, and know when each word is heard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from speech.errors import ModelLoadError
from speech.interfaces import SpokenClause
from speech.model_families import Options
from speech.model_voice import ClauseTooLong
from speech.voice_models import LONGEST_S, SEED, Vits, load, pcm_of
from tests.speech.models import checkpoints

TEXT = "The light was red, and he said: no."


def synthesize(model: Vits, text: str = TEXT, *, voice: str = "0", speed: float = 1.0) -> SpokenClause:
    return model.speak(text, voice=voice, speed=speed, watch=lambda: None)


@pytest.fixture(scope="module")
def vits(vits_folder: Path) -> Any:
    return load(Options(model=str(vits_folder), device="cpu"))


def assert_heard(clause: SpokenClause) -> None:
    """What is all zeros would be equal to anything that is wrong in the same way."""
    assert len(set(np.frombuffer(clause.pcm, "<i2").tolist())) > 20


def mark_words(clause: SpokenClause) -> list[str]:
    assert clause.marks is not None
    return [TEXT[mark.off : mark.off + mark.len] for mark in clause.marks]


def assert_marks_fit(clause: SpokenClause) -> None:
    assert clause.marks is not None
    times = [time for mark in clause.marks for time in (mark.start_ms, mark.end_ms)]
    assert times == sorted(times)
    assert times[-1] <= len(clause.pcm) / 2 / clause.rate * 1000 + 1


@torch.no_grad()
@pytest.mark.parametrize("speed", [1.0, 1.5])
def test_vits_sounds_as_it_does_in_transformers(vits: Any, speed: float) -> None:
    torch.manual_seed(SEED)
    requested = vits._tokenizer(TEXT, return_tensors="pt")
    theirs = vits._model(**requested, speaker_id=1, speaking_rate=speed).waveform[0]
    clause = synthesize(vits, voice="1", speed=speed)
    assert clause.pcm == pcm_of(theirs)
    assert_heard(clause)
    assert len(clause.pcm) / 2 == sum(vits._durations) * vits._frame
    assert mark_words(clause) == TEXT.split()
    assert_marks_fit(clause)


def test_a_clause_without_a_letter_of_the_model_is_no_sound(vits: Any) -> None:
    assert synthesize(vits, "… 你好!").pcm == b""


def test_words_without_a_letter_of_the_model_have_no_time(vits: Any) -> None:
    clause = synthesize(vits, "one … two")
    assert clause.marks is not None
    assert [(mark.off, mark.len) for mark in clause.marks] == [(0, 3), (6, 3)]


def test_a_clause_that_would_take_hours_is_refused_before_it_is_made(vits: Any) -> None:
    """Without the bound, this would ask for gigabytes."""
    seen = torch.full((1, 1, 10), 12.0)
    with pytest.raises(ClauseTooLong):
        vits._on_durations(None, None, seen)
    vits._on_durations(None, None, torch.ones_like(seen))
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
        load(Options(model=str(tmp_path), device="cpu"))
