"""Moonshine: windows of half a minute, encoded one by one and decoded together. Words have no times.

The encoder normalizes over all of a window's sound, so padding would change the result. Only the decoder's input is
padded, under a mask. A batch gives the same result as each window alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoFeatureExtractor, AutoTokenizer, MoonshineForConditionalGeneration
from transformers.models.moonshine.modeling_moonshine import MoonshineEncoderModelOutput

from speech.models.families import Options
from speech.models.loading import device_of, dtype_of, place, read_part, read_weights
from speech.recognition.messages import Ready, Segment
from speech.recognition.models.interface import CancelCheck, Wave
from speech.recognition.models.stopping_criteria import BatchStops
from speech.recognition.models.windows import windows

TOKENS_A_SECOND, TOKENS_AT_LEAST = 15, 8
"""Most tokens a second in a window. The makers name 6.5 for English and 13 for other scripts; more is repetition."""


@dataclass(slots=True)
class MoonshineJob:
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

    def begin(self, wave: Wave, *, language: str | None, wants_words: bool) -> MoonshineJob:  # noqa: ARG002 - it has neither
        """Return a recording to recognize."""
        return MoonshineJob(wave, windows(wave, self.rate))

    @torch.inference_mode()
    def transcribe(self, jobs: Sequence[MoonshineJob], watch: CancelCheck) -> list[list[Segment] | None]:
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


def load(options: Options) -> Moonshine:
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
