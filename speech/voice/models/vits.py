"""VITS (Kim et al. 2021) and MMS: letters to sound in one pass. Letters' durations are predicted, but not returned.

The durations are read at the module that predicts them, and rounded as the model rounds them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from transformers import VitsModel, VitsTokenizer
from transformers.utils.import_utils import is_uroman_available

from speech.errors import ModelLoadError
from speech.interfaces import SpokenClause
from speech.models.families import Options
from speech.models.loading import device_of, dtype_of, place, read_part, read_weights
from speech.voice.messages import VoiceReady
from speech.voice.models.interface import CancelCheck, ClauseTooLong
from speech.voice.models.output import LONGEST_S, SEED, marks_of, pcm_of, words_of

SLOWEST, FASTEST = 0.5, 2.0


class Vits:
    """A loaded model."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._rate: int = model.config.sampling_rate
        self._frame = math.prod(model.config.upsample_rates)
        self._speed = 1.0
        self._durations: list[int] = []
        model.duration_predictor.register_forward_hook(self._on_durations)

    @property
    def facts(self) -> VoiceReady:
        """Its facts: speakers have numbers."""
        count = self._model.config.num_speakers
        names = tuple(map(str, range(count))) if count > 1 else ("default",)
        return VoiceReady(names=names, rate=self._rate, slowest=SLOWEST, fastest=FASTEST)

    @torch.inference_mode()
    def speak(self, clause: str, *, voice: str, speed: float, watch: CancelCheck) -> SpokenClause:
        """Return a clause as sound; empty if it has no letters of the model."""
        watch()
        letters, _ = self._tokenizer.prepare_for_tokenization(clause)
        if not letters.strip():
            return SpokenClause(self._rate, b"", ())
        self._speed = self._model.config.speaking_rate * speed
        inputs = self._tokenizer(clause, return_tensors="pt").to(self._model.device)
        torch.manual_seed(SEED)
        speaker = int(voice) if self._model.config.num_speakers > 1 else None
        output = self._model(**inputs, speaker_id=speaker, speaking_rate=self._speed)
        ends_ms = [end * self._frame / self._rate * 1000 for end in accumulate(self._durations)]
        places = self._places(clause, letters)
        marks = None if places is None else marks_of(words_of(clause), places, ends_ms)
        return SpokenClause(self._rate, pcm_of(output.waveform[0]), marks)

    def _on_durations(self, _module: Any, _inputs: Any, log_durations: torch.Tensor) -> None:
        """Note the frames of each token. Raises ClauseTooLong, FloatingPointError."""
        frames = torch.ceil(torch.exp(log_durations.float()) / self._speed)
        if torch.isnan(frames).any():
            raise FloatingPointError
        if frames.sum() * self._frame > LONGEST_S * self._rate:
            raise ClauseTooLong
        self._durations = frames.flatten().int().tolist()

    def _places(self, clause: str, letters: str) -> Sequence[tuple[int, int]] | None:
        """Return the tokens of each word; None if words change each other's letters."""
        at, places = 0, []
        for _, word in words_of(clause):
            its, _ = self._tokenizer.prepare_for_tokenization(word)
            at += len(letters[at:]) - len(letters[at:].lstrip())
            if not letters.startswith(its, at):
                return None
            places.append((self._token(at), self._token(at + len(its) - 1) + 1) if its else (0, 0))
            at += len(its)
        return places

    def _token(self, letter: int) -> int:
        """Return the position of a letter's token; some models put blanks between letters."""
        return letter * 2 + 1 if self._tokenizer.add_blank else letter


def load(options: Options) -> Vits:
    """Return the model of a folder or of the hub. Raises ModelLoadError."""
    name, device = place(options.model), device_of(options.device)
    tokenizer = read_part(VitsTokenizer, name, "tokenizer")
    if tokenizer.phonemize:
        raise ModelLoadError(
            f"The model {options.model!r} needs phonemes from the library phonemizer, which is under the GPL and not "
            "imported here. Models that read letters are supported, such as those of MMS."
        )
    if tokenizer.is_uroman and not is_uroman_available():
        raise ModelLoadError(f"The model {options.model!r} reads Roman letters: pip install uroman.")
    return Vits(
        read_weights(
            VitsModel, name, device, dtype_of(options.dtype, device), pickled=options.pickled_weights
        ),
        tokenizer,
    )
