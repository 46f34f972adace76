"""Voices of transformers make the sound that transformers makes with the same seed, and know when each word is heard."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from speech.errors import ModelLoadError
from speech.interfaces import SpokenClause
from speech.model_families import Options
from speech.model_voice import ClauseTooLong, SpeakCancelled, SynthesisModel
from speech.voice_models import FASTSPEECH2_RATE, LONGEST_S, SEED, FastSpeech2, load, pcm_of
from tests.speech.models import checkpoints

TEXT = "The light was red, and he said: no."


def synthesize(
    model: SynthesisModel, text: str = TEXT, *, voice: str = "0", speed: float = 1.0
) -> SpokenClause:
    return model.speak(text, voice=voice, speed=speed, watch=lambda: None)


@pytest.fixture(scope="module")
def vits(vits_folder: Path) -> Any:
    return load(Options(model=str(vits_folder), device="cpu"))


@pytest.fixture(scope="module")
def speecht5(speecht5_folder: Path) -> Any:
    return load(
        Options(
            model=str(speecht5_folder),
            device="cpu",
            vocoder=str(speecht5_folder / "vocoder"),
            speakers=str(speecht5_folder / "speakers"),
        )
    )


def phonemes(text: str) -> list[int]:
    """Letters, as if each were spoken as it is written, and the end."""
    return [1 + checkpoints.LETTERS.index(letter) for letter in text.lower() if letter.isalpha()] + [0]


@pytest.fixture(scope="module")
def fastspeech2() -> Any:
    return FastSpeech2(*checkpoints.fastspeech2(), phonemes)


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


@torch.no_grad()
def test_speecht5_sounds_as_it_does_in_transformers(speecht5: Any) -> None:
    tokens = speecht5._tokenizer(TEXT, return_tensors="pt").input_ids
    torch.manual_seed(SEED)
    theirs = speecht5._model.generate_speech(tokens, speecht5._speakers["ben"], vocoder=speecht5._vocoder)
    clause = synthesize(speecht5, voice="ben")
    assert clause == SpokenClause(16_000, pcm_of(theirs), None)
    assert_heard(clause)
    assert synthesize(speecht5, voice="ada").pcm != clause.pcm
    assert speecht5.facts.names == ("ada", "ben")


def test_who_leaves_ends_speecht5_within_a_step(speecht5: Any) -> None:
    steps = count()

    def watch() -> None:
        if next(steps) == 3:
            raise SpeakCancelled

    with pytest.raises(SpeakCancelled):
        speecht5.speak(TEXT, voice="ada", speed=1.0, watch=watch)
    assert next(steps) == 4
    assert synthesize(speecht5, voice="ada").pcm


@torch.no_grad()
@pytest.mark.parametrize("speed", [1.0, 0.8])
def test_fastspeech2_sounds_as_it_does_in_transformers(fastspeech2: Any, speed: float) -> None:
    clause = synthesize(fastspeech2, voice="default", speed=speed)
    fastspeech2._model.config.speaking_speed = 1 / speed
    made = fastspeech2._model(torch.tensor([phonemes(TEXT)]), return_dict=True)
    assert clause.pcm == pcm_of(fastspeech2._vocoder(made.spectrogram)[0])
    assert_heard(clause)
    assert mark_words(clause) == TEXT.split()
    assert_marks_fit(clause)
    assert clause.rate == FASTSPEECH2_RATE


@pytest.mark.parametrize("name", ["vits", "fastspeech2"])
def test_a_clause_that_would_take_hours_is_refused_before_it_is_made(
    name: str, request: pytest.FixtureRequest
) -> None:
    """Without the bound, this would ask for gigabytes."""
    model = request.getfixturevalue(name)
    seen = torch.full((1, 1, 10), 12.0) if name == "vits" else torch.full((1, 10), 10**7)
    with pytest.raises(ClauseTooLong):
        model._on_durations(None, None, seen)
    model._on_durations(None, None, torch.ones_like(seen))
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


def test_a_speaker_embedding_of_another_size_is_refused(speecht5_folder: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "short.npy", np.zeros(3))
    vocoder = str(speecht5_folder / "vocoder")
    with pytest.raises(ModelLoadError, match=r"short\.npy is not 12 numbers"):
        load(Options(model=str(speecht5_folder), device="cpu", vocoder=vocoder, speakers=str(tmp_path)))
