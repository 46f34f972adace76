"""Recognizers of transformers say, together and in windows, what transformers' own `generate` says of each alone."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from safetensors.torch import load_file
from transformers import WhisperForConditionalGeneration
from transformers.models.whisper import tokenization_whisper

from speech.errors import ModelLoadError
from speech.model_families import Options
from speech.recognition import Segment
from speech.recognition_models import (
    LONGEST_S,
    TOKENS_A_SECOND,
    TOKENS_AT_LEAST,
    WhisperJob,
    load,
    split,
    windows,
)
from speech.recognition_worker import RecognitionModel, Wave
from tests.speech.models import checkpoints
from tests.speech.models.conftest import noise

RATE = 16_000


def loaded(folder: Path) -> Any:
    return load(Options(model=str(folder), device="cpu"))


def transcribe(
    model: RecognitionModel[Any],
    waves: Sequence[Wave],
    *,
    language: str | None = None,
    wants_words: bool = False,
) -> list[list[Segment]]:
    """What is heard of recordings that come at once."""
    jobs = [model.begin(wave, language=language, wants_words=wants_words) for wave in waves]
    reported: list[list[Segment]] = [[] for _ in waves]
    while left := [row for row, job in enumerate(jobs) if not job.is_over]:
        heard_now = model.transcribe([jobs[row] for row in left], lambda: [False] * len(left))
        for row, segments in zip(left, heard_now, strict=True):
            assert segments is not None
            reported[row] += segments
    return reported


def letters(texts: Sequence[str]) -> str:
    return "".join("".join(texts).split())


@pytest.fixture(scope="module")
def whisper(whisper_folder: Path) -> Any:
    return loaded(whisper_folder)


@pytest.fixture(scope="module")
def moonshine(moonshine_folder: Path) -> Any:
    return loaded(moonshine_folder)


def alone(whisper: Any, wave: Wave, **options: Any) -> dict[str, Any]:
    """What transformers says of a recording."""
    made = whisper._features(
        wave,
        sampling_rate=RATE,
        return_tensors="pt",
        truncation=False,
        padding="longest",
        return_attention_mask=True,
    )
    reported: dict[str, Any] = whisper._model.generate(
        **made, return_timestamps=True, return_segments=True, **options
    )
    return reported


def test_whisper_says_of_several_long_recordings_what_transformers_says_of_each(whisper: Any) -> None:
    waves = [noise(8.25, 1), noise(3.01, 2), noise(5.1, 3)]
    for wave, segments in zip(waves, transcribe(whisper, waves, language="de"), strict=True):
        reported = alone(whisper, wave, language="de")
        (text,) = whisper._tokenizer.batch_decode(reported["sequences"], skip_special_tokens=True)
        assert len(text) > 10
        assert letters([segment.text for segment in segments]) == letters([text])
        decoded = [
            (whisper._tokenizer.decode(one["tokens"], skip_special_tokens=True), one)
            for one in reported["segments"][0]
        ]
        length = len(wave) // 160 / 100
        times = [
            (round(min(float(one["start"]), length), 2), round(min(float(one["end"]), length), 2))
            for text, one in decoded
            if text.strip()
        ]
        assert [(segment.start, segment.end) for segment in segments] == times


def test_whisper_hears_in_which_language_a_recording_is(whisper: Any) -> None:
    (segments,) = transcribe(whisper, [noise(5)])
    features = whisper._features(noise(5), sampling_rate=RATE, return_tensors="pt").input_features
    number = int(whisper._model.detect_language(features)[0])
    assert {segment.language for segment in segments} == {whisper._tokenizer.decode([number])[2:-2]}
    assert whisper.facts.languages == {"en": "english", "de": "german"}


def test_times_of_whispers_words_are_those_of_transformers(whisper: Any) -> None:
    wave = noise(7, 4)
    (segments,) = transcribe(whisper, [wave], language="de", wants_words=True)
    (theirs,) = alone(whisper, wave, language="de", return_token_timestamps=True)["segments"]
    tokens = torch.cat([one["tokens"] for one in theirs])[None].numpy()
    times = torch.cat([one["token_timestamps"] for one in theirs])[None].numpy()
    _, reported = whisper._tokenizer._decode_asr(
        [{"tokens": tokens, "token_timestamps": times}],
        return_timestamps="word",
        return_language=False,
        time_precision=0.02,
    )
    words = [(word.word, word.start, word.end) for segment in segments for word in segment.words]
    assert words == [
        (one["text"].strip(), *(pytest.approx(at, abs=0.011) for at in one["timestamp"]))
        for one in reported["chunks"]
    ]
    assert len(words) > 3


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 3000))
def test_a_window_is_split_as_transformers_splits_it(tokens: list[int], frames: int) -> None:
    """Tokens from 10 on are timestamps."""
    reported, moved = WhisperForConditionalGeneration._retrieve_segment(
        seek_sequence=torch.tensor(tokens, dtype=torch.long),
        seek_outputs=[None],
        time_offset=torch.zeros(1, dtype=torch.float64),
        timestamp_begin=10,
        seek_num_frames=torch.tensor([frames]),
        time_precision=0.02,
        time_precision_features=0.01,
        input_stride=2,
        prev_idx=0,
        idx=0,
        return_token_timestamps=False,
        decoder_input_ids=torch.zeros((1, 1)),
    )
    pieces, ours = split(tokens, 10, frames)
    assert ours == int(moved)
    assert [tokens[piece.first : piece.last] for piece in pieces][:-1] == [
        one["tokens"].tolist() for one in reported
    ][:-1]
    ends = [max(0.0, float(one["end"])) for one in reported]  # theirs may be before the window's beginning
    assert [piece.end_s for piece in pieces] == [pytest.approx(end, abs=0.0201) for end in ends]


def test_a_model_that_hears_a_word_every_moment_comes_to_an_end() -> None:
    job = WhisperJob(torch.zeros(80, 60_000), 60_000, None, wants_words=False, windows_left=304)
    moves = count()
    while not job.is_over:
        next(moves)
        job.move(2, 3000)
    assert next(moves) < 330


def test_who_leaves_ends_his_row_within_a_step_and_nobody_elses(whisper: Any) -> None:
    waves = [noise(6, 5), noise(6, 6)]
    (_, wanted) = transcribe(whisper, waves, language="en")
    jobs = [whisper.begin(wave, language="en", wants_words=False) for wave in waves]
    looked = count()
    first, second = whisper.transcribe(jobs, lambda: [next(looked) >= 2, False])
    assert len(letters([segment.text for segment in first])) < 20
    assert second == wanted[: len(second)]
    steps = count()
    whisper.transcribe(jobs, lambda: [next(steps) >= 2] * 2)
    assert next(steps) <= 3


def test_moonshine_says_of_several_recordings_what_transformers_says_of_each(moonshine: Any) -> None:
    waves = [noise(2.3, 1), noise(1.1, 2), noise(3, 3)]
    for wave, segments in zip(waves, transcribe(moonshine, waves), strict=True):
        made = moonshine._features(wave, sampling_rate=RATE, return_tensors="pt")
        most = int(len(wave) / RATE * TOKENS_A_SECOND) + TOKENS_AT_LEAST
        reported = moonshine._model.generate(made.input_values, max_new_tokens=most, do_sample=False)
        (text,) = moonshine._tokenizer.batch_decode(reported, skip_special_tokens=True)
        assert [segment.text for segment in segments] == [text.strip()]
        assert (segments[0].start, segments[0].end) == (0, round(len(wave) / RATE, 2))


@given(st.lists(st.sampled_from([0.0, 0.01, 0.5]), min_size=1, max_size=200))
def test_a_long_recording_is_cut_into_windows_that_leave_nothing_out(loudness: list[float]) -> None:
    """A second each, at a rate that is low enough for many examples."""
    wave = np.repeat(np.array(loudness, np.float32), rate := 400)
    cut = windows(wave, rate)
    assert all(0 < end - start <= LONGEST_S * rate for start, end in cut)
    loud = np.zeros(len(wave), bool)
    for start, end in cut:
        assert not loud[start:end].any()
        loud[start:end] = True
    assert np.abs(wave[~loud]).max(initial=0) <= 1e-3


def test_silence_has_no_words(moonshine: Any) -> None:
    assert transcribe(moonshine, [np.zeros(RATE * 70, np.float32)]) == [[]]


@pytest.mark.parametrize("folder", ["whisper_folder", "moonshine_folder"])
def test_what_are_no_numbers_is_not_passed_off_as_words(folder: str, request: pytest.FixtureRequest) -> None:
    model = loaded(request.getfixturevalue(folder))
    with torch.no_grad():
        next(iter(model._model.parameters())).fill_(torch.nan)
        for weights in model._model.parameters():
            weights.fill_(torch.nan)
    job = model.begin(noise(1), language=None, wants_words=False)
    assert model.transcribe([job], lambda: [False]) == [None]


def test_weights_that_are_not_safetensors_are_loaded_only_if_that_is_set(
    moonshine_folder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(moonshine_folder, tmp_path / "model"))
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    options = Options(model=str(folder), device="cpu")
    with pytest.raises(ModelLoadError, match="--pickled-weights"):
        load(options)
    load(structs.replace(options, pickled_weights=True))


def test_transformers_still_joins_whispers_tokens_to_words(whisper: Any) -> None:
    """Its name is private; `speech.recognition_models` says why there is no public one."""
    join = getattr(tokenization_whisper, "_combine_tokens_into_words", None)
    assert join is not None, (
        "transformers has renamed `_combine_tokens_into_words`: adapt speech/recognition_models.py"
    )
    words, _, places = join(whisper._tokenizer, [0, 1], "english")
    assert ([word.strip() for word in words], [list(inside) for inside in places]) == (
        [word.strip() for word in checkpoints.WORDS[:2]],
        [[0], [1]],
    )
