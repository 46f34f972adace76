"""SpeechT5: letters to a spectrogram step by step, then a vocoder. It can end within a step. Words have no times."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import SpeechT5ForTextToSpeech, SpeechT5HifiGan, SpeechT5Tokenizer

from speech.errors import ModelLoadError
from speech.interfaces import SpokenClause
from speech.models.families import Options
from speech.models.loading import device_of, dtype_of, place, read_part, read_weights
from speech.voice.messages import VoiceReady
from speech.voice.models.interface import CancelCheck
from speech.voice.models.output import SEED, pcm_of


class SpeechT5:
    """A loaded model, its vocoder, and its speaker embeddings."""

    def __init__(
        self, model: Any, vocoder: Any, tokenizer: Any, speakers: Mapping[str, torch.Tensor]
    ) -> None:
        """`speakers`: an embedding (x-vector) for each voice."""
        self._model = model
        self._vocoder = vocoder
        self._tokenizer = tokenizer
        self._speakers = speakers
        self._rate: int = vocoder.config.sampling_rate

    @property
    def facts(self) -> VoiceReady:
        """Its facts: one speed."""
        return VoiceReady(names=tuple(sorted(self._speakers)), rate=self._rate)

    @torch.inference_mode()
    def speak(self, clause: str, *, voice: str, speed: float, watch: CancelCheck) -> SpokenClause:  # noqa: ARG002 - it has one
        """Return a clause as sound."""
        tokens = self._tokenizer(clause, return_tensors="pt").input_ids.to(self._model.device)
        torch.manual_seed(SEED)
        decoder = self._model.speecht5.decoder.wrapped_decoder
        looking = decoder.register_forward_pre_hook(lambda _module, _inputs: watch())
        try:
            wave = self._model.generate_speech(tokens, self._speakers[voice], vocoder=self._vocoder)
        finally:
            looking.remove()
        return SpokenClause(self._rate, pcm_of(wave), None)


def load(options: Options) -> SpeechT5:
    """Return the model of a folder or of the hub. Raises ModelLoadError."""
    device = device_of(options.device)
    dtype = dtype_of(options.dtype, device)
    name = place(options.model)
    tokenizer = read_part(SpeechT5Tokenizer, name, "tokenizer")
    model = read_weights(SpeechT5ForTextToSpeech, name, device, dtype, pickled=options.pickled_weights)
    vocoder = read_weights(
        SpeechT5HifiGan, place(options.vocoder or ""), device, dtype, pickled=options.pickled_weights
    )
    folder = Path(options.speakers or "").expanduser()
    size: int = model.config.speaker_embedding_dim
    speakers = {file.stem: _embedding(file, size).to(device, dtype) for file in folder.glob("*.npy")}
    return SpeechT5(model, vocoder, tokenizer, speakers)


def _embedding(file: Path, size: int) -> torch.Tensor:
    """Return a speaker embedding as one row. Raises ModelLoadError."""
    try:
        embedding = np.load(file, allow_pickle=False).astype(np.float32).reshape(1, -1)
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"The speaker embedding {file} can't be read.") from error
    if embedding.shape[1] != size or not np.isfinite(embedding).all():
        raise ModelLoadError(f"The speaker embedding {file} is not {size} numbers.")
    return torch.from_numpy(embedding)
