"""Voices of transformers: VITS converts clauses to sound."""

from __future__ import annotations

import math
from typing import Any

import torch
from transformers import VitsModel, VitsTokenizer
from transformers.utils.import_utils import is_uroman_available

from speech.errors import ModelLoadError
from speech.interfaces import ModelOptions
from speech.model_loading import family_of, quiet, read_part, read_weights
from speech.model_voice import VoiceReady

LONGEST_S = 60.0
"""Seconds of one clause, which has 240 characters at most. A model may predict hours for a letter."""

SEED = 0
"""The seed before each clause: the same text sounds the same each time."""

SLOWEST, FASTEST = 0.5, 2.0


def pcm_of(wave: torch.Tensor) -> bytes:
    """Return samples from -1 to 1 as 16-bit PCM. Raises FloatingPointError."""
    if not torch.isfinite(wave).all():
        raise FloatingPointError
    whole = (wave.float().clamp(-1, 1) * 32767).round().to(torch.int16).cpu()
    return bytes(whole.numpy().astype("<i2").tobytes())


class Vits:
    """A VITS model, such as those of MMS. Its speakers have numbers."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._rate: int = model.config.sampling_rate
        self._frame = math.prod(model.config.upsample_rates)
        self._speed = 1.0
        model.duration_predictor.register_forward_hook(self._check_durations)

    @property
    def facts(self) -> VoiceReady:
        """Its facts for the gateway."""
        count = self._model.config.num_speakers or 1
        names = tuple(map(str, range(count))) if count > 1 else ("default",)
        return VoiceReady(names=names, rate=self._rate, slowest=SLOWEST, fastest=FASTEST)

    @torch.inference_mode()
    def speak(self, clause: str, *, voice: str, speed: float) -> bytes:
        """Return a clause as 16-bit PCM; empty if the model knows none of its letters.

        Raises OverflowError for an impossible length, and FloatingPointError for invalid numbers of the model.
        """
        letters, _ = self._tokenizer.prepare_for_tokenization(clause)
        if not letters.strip():
            return b""
        self._speed = self._model.config.speaking_rate * speed
        inputs = self._tokenizer(clause, return_tensors="pt").to(self._model.device)
        torch.manual_seed(SEED)
        speaker = int(voice) if self._model.config.num_speakers > 1 else None
        output = self._model(**inputs, speaker_id=speaker, speaking_rate=self._speed)
        return pcm_of(output.waveform[0])

    def _check_durations(self, _module: Any, _inputs: Any, log_durations: torch.Tensor) -> None:
        """Check the predicted length. Raises OverflowError, FloatingPointError."""
        frames = torch.ceil(torch.exp(log_durations.float()) / self._speed)
        if torch.isnan(frames).any():
            raise FloatingPointError
        if frames.sum() * self._frame > LONGEST_S * self._rate:
            raise OverflowError


def load(options: ModelOptions) -> Vits:
    """Return the model of a folder or of the hub. Raises ModelLoadError."""
    quiet()
    family_of(options.model, ("vits",), "speaks")
    tokenizer = read_part(VitsTokenizer, options.model, "tokenizer")
    if tokenizer.phonemize:
        raise ModelLoadError(
            f"The model {options.model!r} needs phonemes from the library phonemizer, which is under the GPL and not "
            "imported here. Models that read letters are supported, such as those of MMS."
        )
    if tokenizer.is_uroman and not is_uroman_available():
        raise ModelLoadError(f"The model {options.model!r} reads Roman letters: pip install uroman.")
    return Vits(read_weights(VitsModel, options), tokenizer)
