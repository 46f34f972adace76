"""Voices of transformers: VITS, SpeechT5 and FastSpeech2Conformer convert clauses to sound, with the times of words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    FastSpeech2ConformerHifiGan,
    FastSpeech2ConformerModel,
    FastSpeech2ConformerTokenizer,
    FastSpeech2ConformerWithHifiGan,
    SpeechT5ForTextToSpeech,
    SpeechT5HifiGan,
    SpeechT5Tokenizer,
    VitsModel,
    VitsTokenizer,
)
from transformers.utils.import_utils import is_uroman_available

from speech.errors import ModelLoadError
from speech.interfaces import Mark, SpokenClause
from speech.model_families import Family, Options, check_parts, voice_family
from speech.model_loading import quiet, read_config, read_part, read_weights
from speech.model_voice import CancelCheck, ClauseTooLong, SynthesisModel, VoiceReady

LONGEST_S = 60.0
"""Seconds of one clause, which has 240 characters at most. A model may predict hours for a letter."""

SEED = 0
"""The seed before each clause: the same text sounds the same each time."""

_WORD = re.compile(r"\S+")
SLOWEST, FASTEST = 0.5, 2.0

FASTSPEECH2_RATE = 22_050
"""The sample rate of FastSpeech2's training recipes; its configuration does not have one."""

Encode = Callable[[str], list[int]]
"""From a text to the numbers of its phonemes, with the end token last."""


def pcm_of(wave: torch.Tensor) -> bytes:
    """Return samples from -1 to 1 as 16-bit PCM. Raises FloatingPointError."""
    if not torch.isfinite(wave).all():
        raise FloatingPointError
    whole = (wave.float().clamp(-1, 1) * 32767).round().to(torch.int16).cpu()
    return bytes(whole.numpy().astype("<i2").tobytes())


def words_of(clause: str) -> list[tuple[int, str]]:
    """Return the words of a clause with their offsets."""
    return [(found.start(), found[0]) for found in _WORD.finditer(clause)]


def marks_of(
    words: Sequence[tuple[int, str]], places: Sequence[tuple[int, int]], ends_ms: Sequence[float]
) -> tuple[Mark, ...]:
    """Return the times of the words. `places`: the first token of each word and the end; without tokens it has no mark.

    `ends_ms`: the end of each token.
    """
    starts_ms = [0.0, *ends_ms]
    return tuple(
        Mark(off=off, len=len(word), start_ms=round(starts_ms[first]), end_ms=round(ends_ms[behind - 1]))
        for (off, word), (first, behind) in zip(words, places, strict=True)
        if behind > first
    )


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


def _load_vits(options: Options) -> Vits:
    tokenizer = read_part(VitsTokenizer, options.model, "tokenizer")
    if tokenizer.phonemize:
        raise ModelLoadError(
            f"The model {options.model!r} needs phonemes from the library phonemizer, which is under the GPL and not "
            "imported here. Models that read letters are supported, such as those of MMS."
        )
    if tokenizer.is_uroman and not is_uroman_available():
        raise ModelLoadError(f"The model {options.model!r} reads Roman letters: pip install uroman.")
    return Vits(read_weights(VitsModel, options.model, options), tokenizer)


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


def _load_speecht5(options: Options) -> SpeechT5:
    tokenizer = read_part(SpeechT5Tokenizer, options.model, "tokenizer")
    model = read_weights(SpeechT5ForTextToSpeech, options.model, options)
    vocoder = read_weights(SpeechT5HifiGan, options.vocoder or "", options)
    folder = Path(options.speakers or "").expanduser()
    size: int = model.config.speaker_embedding_dim
    speakers = {
        file.stem: _embedding(file, size).to(model.device, model.dtype) for file in folder.glob("*.npy")
    }
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
        return VoiceReady(names=names, rate=FASTSPEECH2_RATE, slowest=SLOWEST, fastest=FASTEST)

    @torch.inference_mode()
    def speak(self, clause: str, *, voice: str, speed: float, watch: CancelCheck) -> SpokenClause:
        """Return a clause as sound; empty if it has no phonemes."""
        watch()
        tokens = self._encode(clause)
        if len(tokens) < 2:  # noqa: PLR2004 - the end alone
            return SpokenClause(FASTSPEECH2_RATE, b"", ())
        self._speed = speed
        self._model.config.speaking_speed = 1 / speed  # it multiplies durations
        device = self._model.device
        speaker = torch.tensor([[int(voice)]], device=device) if voice.isdigit() else None
        output = self._model(torch.tensor([tokens], device=device), speaker_ids=speaker, return_dict=True)
        watch()
        wave = self._vocoder(output.spectrogram)[0]
        frames = self._frames(output.duration_outputs[0])
        ends_ms = [end * self._frame / FASTSPEECH2_RATE * 1000 for end in accumulate(frames.int().tolist())]
        places = self._places(clause, tokens)
        marks = None if places is None else marks_of(words_of(clause), places, ends_ms)
        return SpokenClause(FASTSPEECH2_RATE, pcm_of(wave), marks)

    def _on_durations(self, _module: Any, _inputs: Any, durations: torch.Tensor) -> None:
        """Raise ClauseTooLong for impossible durations."""
        if self._frames(durations).sum() * self._frame > LONGEST_S * FASTSPEECH2_RATE:
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


def _load_fastspeech2(options: Options) -> FastSpeech2:
    tokenizer = read_part(FastSpeech2ConformerTokenizer, options.model, "tokenizer")
    if read_config(options.model)["model_type"].endswith("_with_hifigan"):
        whole = read_weights(FastSpeech2ConformerWithHifiGan, options.model, options)
        model, vocoder = whole.model, whole.vocoder
    else:
        model = read_weights(FastSpeech2ConformerModel, options.model, options)
        vocoder = read_weights(FastSpeech2ConformerHifiGan, options.vocoder or "", options)
    return FastSpeech2(model, vocoder, lambda text: tokenizer(text).input_ids)


_LOAD: dict[Family, Any] = {
    Family.VITS: _load_vits,
    Family.SPEECHT5: _load_speecht5,
    Family.FASTSPEECH2: _load_fastspeech2,
}


def load(options: Options) -> SynthesisModel:
    """Return the model of a folder or of the hub. Raises ModelLoadError."""
    quiet()
    config = read_config(options.model)
    family = voice_family(options.model, config)
    check_parts(family, options, config)
    model: SynthesisModel = _LOAD[family](options)
    return model
