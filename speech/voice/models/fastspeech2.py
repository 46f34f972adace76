"""FastSpeech2Conformer: phonemes to a spectrogram in one pass, then a vocoder. It gives each phoneme's duration."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from transformers import (
    FastSpeech2ConformerHifiGan,
    FastSpeech2ConformerModel,
    FastSpeech2ConformerTokenizer,
    FastSpeech2ConformerWithHifiGan,
)

from speech.interfaces import SpokenClause
from speech.models.families import Options
from speech.models.loading import device_of, dtype_of, place, read_config, read_part, read_weights
from speech.voice.messages import VoiceReady
from speech.voice.models.interface import CancelCheck, ClauseTooLong
from speech.voice.models.output import LONGEST_S, marks_of, pcm_of, words_of

RATE = 22_050
"""The rate of its training recipes; its configuration does not have it."""
SLOWEST, FASTEST = 0.5, 2.0

Encode = Callable[[str], list[int]]
"""From a text to the numbers of its phonemes, with the end token last."""


class FastSpeech2:
    """A loaded model and its vocoder."""

    def __init__(self, model: Any, vocoder: Any, encode: Encode) -> None:
        self._model = model
        self._vocoder = vocoder
        self._encode = encode
        self._frame = math.prod(vocoder.config.upsample_rates)
        self._speed = 1.0
        model.duration_predictor.register_forward_hook(self._on_durations)

    @property
    def facts(self) -> VoiceReady:
        """Its facts: speakers have numbers."""
        count = self._model.config.num_speakers or 1
        names = tuple(map(str, range(count))) if count > 1 else ("default",)
        return VoiceReady(names=names, rate=RATE, slowest=SLOWEST, fastest=FASTEST)

    @torch.inference_mode()
    def speak(self, clause: str, *, voice: str, speed: float, watch: CancelCheck) -> SpokenClause:
        """Return a clause as sound; empty if it has no phonemes."""
        watch()
        tokens = self._encode(clause)
        if len(tokens) < 2:  # noqa: PLR2004 - the end alone
            return SpokenClause(RATE, b"", ())
        self._speed = speed
        self._model.config.speaking_speed = 1 / speed  # it multiplies durations
        device = self._model.device
        speaker = torch.tensor([[int(voice)]], device=device) if voice.isdigit() else None
        output = self._model(torch.tensor([tokens], device=device), speaker_ids=speaker, return_dict=True)
        watch()
        wave = self._vocoder(output.spectrogram)[0]
        frames = self._frames(output.duration_outputs[0])
        ends_ms = [end * self._frame / RATE * 1000 for end in accumulate(frames.int().tolist())]
        places = self._places(clause, tokens)
        marks = None if places is None else marks_of(words_of(clause), places, ends_ms)
        return SpokenClause(RATE, pcm_of(wave), marks)

    def _on_durations(self, _module: Any, _inputs: Any, durations: torch.Tensor) -> None:
        """Raise ClauseTooLong for impossible durations."""
        if self._frames(durations).sum() * self._frame > LONGEST_S * RATE:
            raise ClauseTooLong

    def _frames(self, durations: torch.Tensor) -> torch.Tensor:
        return durations if self._speed == 1 else torch.round(durations.float() / self._speed)

    def _places(self, clause: str, tokens: list[int]) -> Sequence[tuple[int, int]] | None:
        """Return the tokens of each word; None if a word's phonemes depend on its neighbours."""
        its = [self._encode(word)[:-1] for _, word in words_of(clause)]
        if [token for word in its for token in word] != tokens[:-1]:
            return None
        ends = list(accumulate(map(len, its)))
        return list(zip([0, *ends[:-1]], ends, strict=True))


def load(options: Options) -> FastSpeech2:
    """Return the model of a folder or of the hub. Raises ModelLoadError."""
    name, device = place(options.model), device_of(options.device)
    dtype = dtype_of(options.dtype, device)
    tokenizer = read_part(FastSpeech2ConformerTokenizer, name, "tokenizer")
    if read_config(name)["model_type"].endswith("_with_hifigan"):
        whole = read_weights(
            FastSpeech2ConformerWithHifiGan, name, device, dtype, pickled=options.pickled_weights
        )
        model, vocoder = whole.model, whole.vocoder
    else:
        model = read_weights(FastSpeech2ConformerModel, name, device, dtype, pickled=options.pickled_weights)
        vocoder = read_weights(
            FastSpeech2ConformerHifiGan,
            place(options.vocoder or ""),
            device,
            dtype,
            pickled=options.pickled_weights,
        )
    return FastSpeech2(model, vocoder, lambda text: tokenizer(text).input_ids)
