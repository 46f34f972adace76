"""Recognizers of transformers say what transformers' own `generate` says, window by window."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from safetensors.torch import load_file, save_file

from speech.errors import ModelLoadError
from speech.interfaces import ModelOptions
from speech.recognition import Segment
from speech.recognition_models import TOKENS_A_SECOND, TOKENS_AT_LEAST, Moonshine, load
from speech.recognition_worker import Abandoned
from speech.samples import Samples
from tests.speech.models.checkpoints import WINDOW_S
from tests.speech.models.conftest import noise

RATE = 16_000


def loaded(folder: Path) -> Any:
    return load(ModelOptions(model=str(folder), device="cpu"))


def transcribe(
    model: Any, samples: Samples, language: str | None = None, check: Callable[[], None] = lambda: None
) -> list[Segment]:
    """What is heard in a window."""
    segments: list[Segment] = model.transcribe(samples, language, check)
    return segments


@pytest.fixture(scope="module")
def whisper(whisper_folder: Path) -> Any:
    return loaded(whisper_folder)


@pytest.fixture(scope="module")
def moonshine(moonshine_folder: Path) -> Any:
    return loaded(moonshine_folder)


def test_whisper_says_of_a_window_what_transformers_says(whisper: Any) -> None:
    several = 0
    for seed in range(8):
        samples = noise(2.7, seed)
        options = {"language": "de", "return_timestamps": True, "force_unique_generate_call": True}
        made = whisper._made(samples).input_features
        (tokens,) = whisper._model.generate(made, **options)
        text = whisper._tokenizer.decode(tokens, skip_special_tokens=True)
        segments = transcribe(whisper, samples, "de")
        assert "".join(segment.text for segment in segments).replace(" ", "") == text.replace(" ", "")
        written = [name[2:-2] for name in whisper._tokenizer.convert_ids_to_tokens(tokens.tolist())]
        known = {0.0, 2.7} | {float(time) for time in written if re.fullmatch(r"\d\.\d\d", time)}
        times = {round(at, 2) for segment in segments for at in (segment.start, segment.end)}
        assert times <= known
        several += len(segments) > 1
    assert several


def test_whisper_hears_in_which_language_a_recording_is(whisper: Any) -> None:
    samples = noise(2)
    number = int(whisper._model.detect_language(whisper._made(samples).input_features)[0])
    language = whisper._tokenizer.decode([number])[2:-2]
    assert {segment.language for segment in transcribe(whisper, samples)} == {language}
    assert whisper.facts.languages == {"en": "english", "de": "german"}


def test_moonshine_says_of_a_window_what_transformers_says(moonshine: Any) -> None:
    for seed, seconds in enumerate((2.3, 1.1, 3)):
        samples = noise(seconds, seed)
        most = int(seconds * TOKENS_A_SECOND) + TOKENS_AT_LEAST
        made = moonshine._made(samples).input_values
        (tokens,) = moonshine._model.generate(made, max_new_tokens=most, do_sample=False)
        text = moonshine._tokenizer.decode(tokens, skip_special_tokens=True).strip()
        assert transcribe(moonshine, samples) == [Segment(0, seconds, text)]


@pytest.mark.parametrize("folder", ["whisper_folder", "moonshine_folder"])
def test_who_leaves_ends_the_window_within_a_step(folder: str, request: pytest.FixtureRequest) -> None:
    steps = count()

    def check() -> None:
        if next(steps) == 2:
            raise Abandoned

    with pytest.raises(Abandoned):
        transcribe(loaded(request.getfixturevalue(folder)), noise(2.5, 5), check=check)
    assert next(steps) == 3


@given(st.lists(st.sampled_from([0, 300, 16_000]), min_size=1, max_size=200))
def test_a_long_recording_is_cut_into_windows_that_leave_nothing_out(loudness: list[int]) -> None:
    """A second each, at a rate that is low enough for many examples."""
    samples = np.repeat(np.array(loudness, np.int16), rate := 400)
    features = type("Features", (), {"sampling_rate": rate, "chunk_length": 30})()
    cut = Moonshine(None, features, None).windows(samples)
    assert all(0 < end - start <= 30 * rate for start, end in cut)
    loud = np.zeros(len(samples), bool)
    for start, end in cut:
        assert not loud[start:end].any()
        loud[start:end] = True
    assert not samples[~loud].any()


def test_a_speaker_is_understood_in_windows_and_silence_has_no_words(whisper: Any) -> None:
    samples = np.concatenate([noise(WINDOW_S - 0.1), np.zeros(RATE * 9, np.int16), noise(1, 1)])
    heard = [transcribe(whisper, samples[start:end], "en") for start, end in whisper.windows(samples)]
    texts = [segment.text for segments in heard for segment in segments]
    assert whisper.recognize(samples, "en", lambda: None).text == " ".join(texts) != ""
    assert whisper.recognize(np.zeros(RATE * 70, np.int16), "en", lambda: None).text == ""


@pytest.mark.parametrize("folder", ["whisper_folder", "moonshine_folder"])
def test_what_are_no_numbers_is_not_passed_off_as_words(folder: str, request: pytest.FixtureRequest) -> None:
    model = loaded(request.getfixturevalue(folder))
    with torch.no_grad():
        for weights in model._model.parameters():
            weights.fill_(torch.nan)
    with pytest.raises(FloatingPointError):
        transcribe(model, noise(1), "en")


def test_weights_that_are_not_safetensors_are_loaded_only_if_that_is_set(
    moonshine_folder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(moonshine_folder, tmp_path / "model"))
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    options = ModelOptions(model=str(folder), device="cpu")
    with pytest.raises(ModelLoadError, match="--pickled-weights"):
        load(options)
    load(structs.replace(options, pickled_weights=True))


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("/nowhere", "'/nowhere' is not stored on this machine"),
        ("a b", "'a b' is not stored on this machine"),
        ("{empty}", "is of the type None"),
        ("{vits}", "type 'vits', which is none that recognizes speech: whisper, moonshine"),
        ("{classifier}", "lacks .* of the weights"),
    ],
)
def test_a_model_that_can_not_be_used_is_refused_by_a_sentence(
    vits_folder: Path, whisper_folder: Path, tmp_path: Path, model: str, why: str
) -> None:
    classifier = shutil.copytree(whisper_folder, tmp_path / "classifier")
    weights = load_file(classifier / "model.safetensors")
    kept = {name: one for name, one in weights.items() if ".decoder." not in name}
    save_file(kept, classifier / "model.safetensors", {"format": "pt"})
    (tmp_path / "empty").mkdir()
    named = model.format(vits=vits_folder, classifier=classifier, empty=tmp_path / "empty")
    with pytest.raises(ModelLoadError, match=why):
        loaded(Path(named))
