"""A recognition model's process: `python -m speech.recognition.models DESCRIPTOR OPTIONS`. Ends with the gateway.

Moonshine and CTC models take windows of a long recording, which is cut at its quietest points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoFeatureExtractor,
    AutoModelForCTC,
    AutoTokenizer,
    MoonshineForConditionalGeneration,
)
from transformers.models.moonshine.modeling_moonshine import MoonshineEncoderModelOutput

from speech.models.families import Family, Options, recognizer_family
from speech.models.loading import (
    device_of,
    dtype_of,
    place,
    quiet,
    read_config,
    read_part,
    read_weights,
    serve,
)
from speech.recognition.messages import Ready, Segment, ToRecognizer, Word
from speech.recognition.whisper import BatchStops, load_whisper
from speech.recognition.worker import CancelCheck, RecognizerWorker, Wave
from speech.sound.samples import quietest

LONGEST_S = 30.0
_SEARCHED = 1 / 3
"""The last part of the longest window, in which it may be cut."""
_SILENT = 1e-3
"""A window with no louder sample is skipped, since models invent words for it."""


def windows(wave: Wave, rate: int) -> list[tuple[int, int]]:
    """Return the beginning and the end of each window, in samples; silence is in none."""
    most = int(LONGEST_S * rate)
    cuts = [0]
    while len(wave) - cuts[-1] > most:
        start = cuts[-1] + most - int(most * _SEARCHED)
        cuts.append(quietest(wave, start, cuts[-1] + most, rate))
    cuts.append(len(wave))
    pairs = pairwise(cuts)
    return [(start, end) for start, end in pairs if np.abs(wave[start:end]).max(initial=0.0) > _SILENT]


TOKENS_A_SECOND, TOKENS_AT_LEAST = 15, 8
"""Most tokens a second in a window. The makers name 6.5 for English and 13 for other scripts; more is repetition."""


@dataclass(slots=True)
class WindowedJob:
    """A recording, and its windows that are not recognized yet."""

    wave: Wave
    left: list[tuple[int, int]]

    @property
    def is_over(self) -> bool:
        """Whether all of it was recognized."""
        return not self.left


class Moonshine:
    """A loaded model."""

    def __init__(self, model: Any, features: Any, tokenizer: Any) -> None:
        self.rate: int = features.sampling_rate
        self._model = model
        self._features = features
        self._tokenizer = tokenizer

    @property
    def facts(self) -> Ready:
        """Its facts: it takes any language, since it knows only one and does not say which."""
        return Ready(languages={}, times_words=False)

    def begin(self, wave: Wave, *, language: str | None, wants_words: bool) -> WindowedJob:  # noqa: ARG002 - it has neither
        """Return a recording to recognize."""
        return WindowedJob(wave, windows(wave, self.rate))

    @torch.inference_mode()
    def transcribe(self, jobs: Sequence[WindowedJob], watch: CancelCheck) -> list[list[Segment] | None]:
        """Recognize the next window of each."""
        places = [job.left[0] for job in jobs]
        encoded = [self._encode(job.wave[start:end]) for job, (start, end) in zip(jobs, places, strict=True)]
        seconds = [(end - start) / self.rate for start, end in places]
        stops = BatchStops(
            watch, len(jobs), [int(one * TOKENS_A_SECOND) + TOKENS_AT_LEAST for one in seconds]
        )
        tokens = self._model.generate(
            encoder_outputs=_together(encoded),
            max_new_tokens=max(int(one * TOKENS_A_SECOND) + TOKENS_AT_LEAST for one in seconds),
            do_sample=False,
            num_beams=1,
            logits_processor=stops.processors,
            stopping_criteria=stops.criteria,
        )
        texts = self._tokenizer.batch_decode(tokens, skip_special_tokens=True)
        for job in jobs:
            job.left.pop(0)
        rows = zip(places, texts, stops.lost, strict=True)
        return [None if lost else self._segments(place, text) for place, text, lost in rows]

    def _encode(self, wave: Wave) -> torch.Tensor:
        """Return the encoder's output for a window, frames by features."""
        made = self._features(wave, sampling_rate=self.rate, return_tensors="pt")
        samples = made.input_values.to(self._model.device, self._model.dtype)
        frames: torch.Tensor = self._model.model.encoder(samples).last_hidden_state[0]
        return frames

    def _segments(self, window: tuple[int, int], text: str) -> list[Segment]:
        start, end = window
        if not text.strip():
            return []
        return [Segment(round(start / self.rate, 2), round(end / self.rate, 2), text.strip(), ())]


def _together(encoded: Sequence[torch.Tensor]) -> MoonshineEncoderModelOutput:
    lengths = torch.tensor([len(one) for one in encoded], device=encoded[0].device)
    frames = pad_sequence(list(encoded), batch_first=True)
    mask = (torch.arange(frames.shape[1], device=frames.device) < lengths[:, None]).int()
    return MoonshineEncoderModelOutput(last_hidden_state=frames, attention_mask=mask)


def load_moonshine(options: Options) -> Moonshine:
    """Return the model of a folder or of the hub. Raises ModelLoadError."""
    name, device = place(options.model), device_of(options.device)
    model = read_weights(
        MoonshineForConditionalGeneration,
        name,
        device,
        dtype_of(options.dtype, device),
        pickled=options.pickled_weights,
    )
    features = read_part(AutoFeatureExtractor, name, "preprocessor_config.json")
    return Moonshine(model, features, read_part(AutoTokenizer, name, "tokenizer"))


class CtcModel:
    """A loaded model."""

    def __init__(self, model: Any, features: Any, tokenizer: Any) -> None:
        self.rate: int = features.sampling_rate
        self._model = model
        self._features = features
        self._tokenizer = tokenizer
        self._frame_s: float = model.config.inputs_to_logits_ratio / features.sampling_rate

    @property
    def facts(self) -> Ready:
        """Its facts: it takes any language, since it knows only one and does not say which."""
        return Ready(languages={})

    def begin(self, wave: Wave, *, language: str | None, wants_words: bool) -> WindowedJob:  # noqa: ARG002 - times cost nothing
        """Return a recording to recognize."""
        return WindowedJob(wave, windows(wave, self.rate))

    @torch.inference_mode()
    def transcribe(self, jobs: Sequence[WindowedJob], watch: CancelCheck) -> list[list[Segment] | None]:
        """Recognize the next window of each."""
        decoded = [[] if watch()[row] else self._window(job) for row, job in enumerate(jobs)]
        for job in jobs:
            job.left.pop(0)
        return decoded

    def _window(self, job: WindowedJob) -> list[Segment] | None:
        start, end = job.left[0]
        made = self._features(job.wave[start:end], sampling_rate=self.rate, return_tensors="pt")
        logits = self._model(made.input_values.to(self._model.device, self._model.dtype)).logits[0]
        if torch.isnan(logits).any():
            return None
        decoded = self._tokenizer.decode(logits.argmax(dim=-1), output_word_offsets=True)
        words = tuple(self._words(decoded.word_offsets, start / self.rate, end / self.rate))
        if not words:
            return []
        return [Segment(round(start / self.rate, 2), round(end / self.rate, 2), decoded.text.strip(), words)]

    def _words(self, offsets: Sequence[dict[str, Any]], start_s: float, end_s: float) -> Iterator[Word]:
        def at(frame: int) -> float:
            return round(float(min(start_s + frame * self._frame_s, end_s)), 2)

        for one in offsets:
            yield Word(one["word"], at(one["start_offset"]), at(one["end_offset"]))


def load_ctc(options: Options) -> CtcModel:
    """Return the model of a folder or of the hub. Raises ModelLoadError."""
    name, device = place(options.model), device_of(options.device)
    model = read_weights(
        AutoModelForCTC, name, device, dtype_of(options.dtype, device), pickled=options.pickled_weights
    )
    features = read_part(AutoFeatureExtractor, name, "preprocessor_config.json")
    return CtcModel(model, features, read_part(AutoTokenizer, name, "tokenizer"))


_LOAD: dict[Family, Any] = {
    Family.WHISPER: load_whisper,
    Family.MOONSHINE: load_moonshine,
    Family.CTC: load_ctc,
}


def load(options: Options) -> Any:
    """Return the model, which is a `RecognitionModel`. Raises ModelLoadError."""
    quiet()
    family = recognizer_family(options.model, read_config(place(options.model)))
    return _LOAD[family](options)


if __name__ == "__main__":
    serve(ToRecognizer, load, RecognizerWorker)
