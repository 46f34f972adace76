"""Recognition models of transformers: Whisper and Moonshine, a window of sound at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoFeatureExtractor,
    AutoTokenizer,
    LogitsProcessor,
    LogitsProcessorList,
    MoonshineForConditionalGeneration,
    WhisperForConditionalGeneration,
)
from transformers.models.whisper.tokenization_whisper import LANGUAGES

from speech.errors import ModelLoadError
from speech.interfaces import ModelOptions
from speech.model_loading import family_of, quiet, read_part, read_weights
from speech.recognition import ENGLISH, Ready, Segment, Utterance
from speech.recognition_worker import RecognitionModel
from speech.samples import FULL_SCALE, Samples, quietest

LONGEST_S = 30
"""The longest window, unless the features name another one."""
_SEARCHED = 1 / 3
"""The last part of the longest window, in which it may be cut."""
_SILENT = 32
"""A window with no louder sample is skipped, since models invent words for it."""
TOKENS_A_SECOND, TOKENS_AT_LEAST = 15, 8
"""Most tokens a second in a window. The makers name 6.5 for English and 13 for other scripts; more is repetition."""
TICK_S = 0.02
"""Seconds of one timestamp step."""


def load(options: ModelOptions) -> RecognitionModel:
    """Return the model of a folder or of the hub. Raises ModelLoadError."""
    quiet()
    name = options.model
    kind, wrapper = _FAMILIES[family_of(name, _FAMILIES, "recognizes speech")]
    model = read_weights(kind, options)
    features = read_part(AutoFeatureExtractor, name, "preprocessor_config.json")
    return wrapper(model, features, read_part(AutoTokenizer, name, "tokenizer"))


class TransformersModel(ABC):
    """What the models have in common: a recording is recognized window by window."""

    facts: Ready

    def __init__(self, model: Any, features: Any, tokenizer: Any) -> None:
        self.rate: int = features.sampling_rate
        self._most = self.rate * int(getattr(features, "chunk_length", LONGEST_S))
        self._model = model
        self._features = features
        self._tokenizer = tokenizer

    def windows(self, samples: Samples) -> list[tuple[int, int]]:
        """Return the beginning and the end of each window; silent windows are left out."""
        most, cuts = self._most, [0]
        while len(samples) - cuts[-1] > most:
            start = cuts[-1] + most - int(most * _SEARCHED)
            cuts.append(quietest(samples, start, cuts[-1] + most, self.rate))
        cuts.append(len(samples))
        loudness = np.abs(samples.astype(np.int32))
        return [(start, end) for start, end in pairwise(cuts) if loudness[start:end].max(initial=0) > _SILENT]

    @abstractmethod
    def transcribe(self, samples: Samples, language: str | None, check: Callable[[], None]) -> list[Segment]:
        """Recognize a window."""

    def recognize(self, samples: Samples, language: str | None, check: Callable[[], None]) -> Utterance:
        """Return the words of a speaker so far; empty if nothing was understood."""
        heard = [
            segment.text
            for start, end in self.windows(samples)
            for segment in self.transcribe(samples[start:end], language, check)
        ]
        return Utterance(" ".join(heard))

    def _made(self, samples: Samples) -> Any:
        """Return the features of a window, on the model's device."""
        wave = samples.astype(np.float32) / np.float32(FULL_SCALE)
        made = self._features(wave, sampling_rate=self.rate, return_tensors="pt")
        return made.to(self._model.device, self._model.dtype)

    def _generate(self, made: torch.Tensor, check: Callable[[], None], **options: Any) -> list[int]:
        checks = LogitsProcessorList([_StepCheck(check)])
        (tokens,) = self._model.generate(
            made, do_sample=False, num_beams=1, logits_processor=checks, **options
        ).tolist()
        return list(tokens)


class Moonshine(TransformersModel):
    """A Moonshine model. A window is one segment."""

    facts = Ready(languages={})
    """Any language may be requested, since the model knows only one and does not say which."""

    @torch.inference_mode()
    def transcribe(self, samples: Samples, language: str | None, check: Callable[[], None]) -> list[Segment]:
        """Recognize a window."""
        length_s = len(samples) / self.rate
        most = int(length_s * TOKENS_A_SECOND) + TOKENS_AT_LEAST
        made = self._made(samples).input_values
        tokens = self._generate(made, check, max_new_tokens=most)
        text = self._tokenizer.decode(tokens, skip_special_tokens=True).strip()
        return [Segment(0.0, length_s, text, language)] if text else []


class Whisper(TransformersModel):
    """A Whisper model, which divides a window into segments."""

    def __init__(self, model: Any, features: Any, tokenizer: Any) -> None:
        super().__init__(model, features, tokenizer)
        settings = model.generation_config
        if getattr(settings, "no_timestamps_token_id", None) is None:
            raise ModelLoadError(
                "The model's generation_config.json has no no_timestamps_token_id: without it there are no times."
            )
        self._first_time: int = settings.no_timestamps_token_id + 1
        codes = getattr(settings, "lang_to_id", None) if getattr(settings, "is_multilingual", True) else None
        self._codes: dict[int, str] = {number: code[2:-2] for code, number in (codes or {}).items()}
        languages = {code: LANGUAGES.get(code, code) for code in self._codes.values()}
        self.facts = Ready(languages=languages) if languages else ENGLISH

    @torch.inference_mode()
    def transcribe(self, samples: Samples, language: str | None, check: Callable[[], None]) -> list[Segment]:
        """Recognize a window, in the language that it is in if none is named."""
        made = self._made(samples).input_features
        options: dict[str, Any] = {"return_timestamps": True, "force_unique_generate_call": True}
        if self._codes:
            language = language or self._codes[self._model.detect_language(made).item()]
            options |= {"language": language, "task": "transcribe"}
        length_s = len(samples) / self.rate
        segments: list[Segment] = []
        start_s, spoken = 0.0, list[int]()
        for token in [*self._generate(made, check, **options), None]:
            if token is not None and token < self._first_time:
                spoken.append(token)
                continue
            at_s = length_s if token is None else min((token - self._first_time) * TICK_S, length_s)
            if text := self._tokenizer.decode(spoken, skip_special_tokens=True).strip():
                segments.append(Segment(start_s, max(start_s, at_s), text, language))
            start_s, spoken = at_s, []
        return segments


_FAMILIES: dict[str, tuple[Any, type[TransformersModel]]] = {
    "whisper": (WhisperForConditionalGeneration, Whisper),
    "moonshine": (MoonshineForConditionalGeneration, Moonshine),
}


class _StepCheck(LogitsProcessor):
    """Runs a check before each token, which may raise. Raises FloatingPointError if the model computes invalid numbers."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check

    def __call__(self, _input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._check()
        if torch.isnan(scores).any():
            raise FloatingPointError
        return scores
