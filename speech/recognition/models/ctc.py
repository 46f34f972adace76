"""CTC models of raw samples (wav2vec 2.0, HuBERT and others): a frame is a letter, so words have exact times.

Windows are computed one by one. If the first layer normalizes over time, padding would change the result;
without padding, a batch gains nothing on a CPU, and little on a GPU with windows of half a minute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import AutoFeatureExtractor, AutoModelForCTC, AutoTokenizer

from speech.models.families import Options
from speech.models.loading import device_of, dtype_of, place, read_part, read_weights
from speech.recognition.messages import Ready, Segment, Word
from speech.recognition.models.interface import CancelCheck, Wave
from speech.recognition.models.moonshine import MoonshineJob
from speech.recognition.models.windows import windows


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

    def begin(self, wave: Wave, *, language: str | None, wants_words: bool) -> MoonshineJob:  # noqa: ARG002 - times cost nothing
        """Return a recording to recognize."""
        return MoonshineJob(wave, windows(wave, self.rate))

    @torch.inference_mode()
    def transcribe(self, jobs: Sequence[MoonshineJob], watch: CancelCheck) -> list[list[Segment] | None]:
        """Recognize the next window of each."""
        decoded = [[] if watch()[row] else self._window(job) for row, job in enumerate(jobs)]
        for job in jobs:
            job.left.pop(0)
        return decoded

    def _window(self, job: MoonshineJob) -> list[Segment] | None:
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


def load(options: Options) -> CtcModel:
    """Return the model of a folder or of the hub. Raises ModelLoadError."""
    name, device = place(options.model), device_of(options.device)
    model = read_weights(
        AutoModelForCTC, name, device, dtype_of(options.dtype, device), pickled=options.pickled_weights
    )
    features = read_part(AutoFeatureExtractor, name, "preprocessor_config.json")
    return CtcModel(model, features, read_part(AutoTokenizer, name, "tokenizer"))
