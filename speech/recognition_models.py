"""Recognition models of transformers: Whisper and Moonshine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoFeatureExtractor,
    AutoTokenizer,
    LogitsProcessor,
    LogitsProcessorList,
    MoonshineForConditionalGeneration,
    StoppingCriteria,
    StoppingCriteriaList,
    WhisperForConditionalGeneration,
)
from transformers.models.moonshine.modeling_moonshine import MoonshineEncoderModelOutput

# transformers has no public function for the tokens of each word; `_decode_asr`, which calls this one, needs whole recordings.
# It exists in transformers 5.23.
from transformers.models.whisper.tokenization_whisper import LANGUAGES, _combine_tokens_into_words

from speech.errors import ModelLoadError
from speech.model_families import Options, recognizer_family
from speech.model_loading import quiet, read_config, read_part, read_weights
from speech.recognition import Ready, Segment, Word
from speech.recognition_worker import CancelCheck, RecognitionModel, Wave, WindowedJob
from speech.samples import quietest

LONGEST_S = 30.0
_SEARCHED = 1 / 3
"""The last part of the longest window, in which it may be cut."""
_SILENT = 1e-3
"""A window with no louder sample is skipped, since models invent words for it."""
TOKENS_A_SECOND, TOKENS_AT_LEAST = 15, 8
"""Most tokens a second in a window. The makers name 6.5 for English and 13 for other scripts; more is repetition."""


TICK_S = 0.02
"""Seconds of one timestamp step."""

FRAMES_A_TICK = 2

MOST_TRIES = 15
"""How many times a window may be recognized, on average. A model could advance by 0.02 s each time."""


def load(options: Options) -> RecognitionModel[Any]:
    """Return the model of a folder or of the hub. Raises ModelLoadError."""
    quiet()
    family = recognizer_family(options.model, read_config(options.model))
    kind, wrapper = _FAMILIES[family]
    model = read_weights(kind, options.model, options)
    if family == "whisper" and getattr(model.generation_config, "no_timestamps_token_id", None) is None:
        raise ModelLoadError(
            f"The generation_config.json of {options.model!r} has no no_timestamps_token_id: without it there are no times."
        )
    features = read_part(AutoFeatureExtractor, options.model, "preprocessor_config.json")
    loaded: RecognitionModel[Any] = wrapper(
        model, features, read_part(AutoTokenizer, options.model, "tokenizer")
    )
    return loaded


class Whisper:
    """A Whisper model: windows of 30 seconds, cut where the model ends a segment."""

    def __init__(self, model: Any, features: Any, tokenizer: Any) -> None:
        self.rate: int = features.sampling_rate
        self._model = model
        self._features = features
        self._tokenizer = tokenizer
        settings = model.generation_config
        self._size: int = features.nb_max_frames
        self._first_time: int = settings.no_timestamps_token_id + 1
        codes = getattr(settings, "lang_to_id", None) if getattr(settings, "is_multilingual", True) else None
        self._attention = ""
        self._codes: dict[int, str] = {number: code[2:-2] for code, number in (codes or {}).items()}

    @property
    def facts(self) -> Ready:
        """Its facts for the gateway."""
        languages = {code: LANGUAGES.get(code, code) for code in self._codes.values()}
        times = hasattr(self._model.generation_config, "alignment_heads")
        if languages:
            return Ready(languages=languages, times_words=times)
        return Ready(languages={"en": "english"}, language="en", times_words=times)

    def begin(self, wave: Wave, *, language: str | None, wants_words: bool) -> WhisperJob:
        """Return a recording to recognize."""
        # A recording shorter than a window is padded with silence before the features are made, as in training.
        is_short = len(wave) <= self._features.n_samples
        padding = {"padding": "max_length"} if is_short else {"padding": "longest", "truncation": False}
        made = self._features(wave, sampling_rate=self.rate, return_tensors="pt", **padding)
        frames = min(len(wave) // self._features.hop_length, made.input_features.shape[-1])
        windows = MOST_TRIES * (1 + frames // self._size)
        return WhisperJob(made.input_features[0], frames, language, wants_words, windows)

    @torch.inference_mode()
    def transcribe(self, jobs: Sequence[WhisperJob], watch: CancelCheck) -> list[list[Segment] | None]:
        """Recognize the next window of each."""
        wants_words = jobs[0].wants_words
        self._attend("eager" if wants_words else "sdpa")
        windows = torch.stack([job.window(self._size) for job in jobs]).to(
            self._model.device, self._model.dtype
        )
        self._detect(jobs, windows)
        frames = [min(job.frames - job.at, self._size) for job in jobs]
        checked = _ScoreCheck(len(jobs))
        output = self._model.generate(
            windows,
            attention_mask=_mask(frames, windows),
            **({"language": [job.language for job in jobs], "task": "transcribe"} if self._codes else {}),
            return_timestamps=True,
            return_token_timestamps=wants_words,
            force_unique_generate_call=True,
            do_sample=False,
            num_beams=1,
            logits_processor=LogitsProcessorList([checked]),
            stopping_criteria=StoppingCriteriaList([_StopCheck(checked, watch)]),
        )
        tokens = (output["sequences"] if wants_words else output)[:, checked.prompt :].tolist()
        times = output["token_timestamps"][:, checked.prompt :].tolist() if wants_words else [[]] * len(jobs)
        return [
            None if lost else self._take(job, self._ended(row), at, size)
            for job, row, at, size, lost in zip(jobs, tokens, times, frames, checked.lost, strict=True)
        ]

    def _attend(self, how: str) -> None:
        """Set the implementation of attention; only "eager" gives the weights that times of words are computed from."""
        if self._attention != how:
            self._model.set_attn_implementation(how)
            self._attention = how

    def _detect(self, jobs: Sequence[WhisperJob], windows: torch.Tensor) -> None:
        """Detect the language of recordings without one; it stays the same to the end."""
        unknown = [row for row, job in enumerate(jobs) if job.language is None]
        if not unknown or not self._codes:
            return
        for row, number in zip(unknown, self._model.detect_language(windows[unknown]).tolist(), strict=True):
            jobs[row].language = self._codes[number]

    def _ended(self, tokens: list[int]) -> list[int]:
        """Return the tokens before the end that the model wrote, or before a batch's padding."""
        settings = self._model.generation_config
        ends = settings.eos_token_id
        over = {settings.pad_token_id, *(ends if isinstance(ends, list) else [ends])}
        return tokens[: next((place for place, token in enumerate(tokens) if token in over), len(tokens))]

    def _take(self, job: WhisperJob, tokens: list[int], times: list[float], frames: int) -> list[Segment]:
        pieces, moved = split(tokens, self._first_time, frames)
        start_s = job.at / 100
        job.move(moved, self._size)
        output = (self._segment(job, piece, tokens, times, start_s) for piece in pieces)
        return [segment for segment in output if segment.text]

    def _segment(
        self, job: WhisperJob, piece: Piece, tokens: list[int], times: list[float], start_s: float
    ) -> Segment:
        text = self._tokenizer.decode(tokens[piece.first : piece.last], skip_special_tokens=True).strip()
        words = tuple(self._words(job, piece, tokens, times, start_s)) if times else ()
        length_s = job.frames / 100
        start, end = (round(min(start_s + at, length_s), 2) for at in (piece.start_s, piece.end_s))
        return Segment(start, end, text, words, job.language)

    def _words(
        self, job: WhisperJob, piece: Piece, tokens: list[int], times: list[float], start_s: float
    ) -> Iterator[Word]:
        """Yield words with their times: a token lasts from the time of the one before to its own."""
        spoken = [place for place in range(piece.first, piece.last) if tokens[place] < self._first_time]
        words, _, places = _combine_tokens_into_words(
            self._tokenizer,
            [tokens[place] for place in spoken],
            LANGUAGES.get(job.language or "en", "english"),
        )
        for word, inside in zip(words, places, strict=True):
            first, last = spoken[inside[0]], spoken[inside[-1]]
            begin = times[first - 1] if first else 0.0
            if word.strip():
                yield Word(word.strip(), round(start_s + begin, 2), round(start_s + times[last], 2))


def _mask(frames: Sequence[int], windows: torch.Tensor) -> torch.Tensor:
    lengths = torch.tensor(frames, device=windows.device)
    return (torch.arange(windows.shape[-1], device=windows.device) < lengths[:, None]).long()


@dataclass(slots=True)
class WhisperJob:
    """A recording as features, and how far it was recognized, in frames of a hundredth of a second."""

    features: torch.Tensor
    frames: int
    language: str | None
    wants_words: bool
    windows_left: int
    at: int = 0

    @property
    def is_over(self) -> bool:
        """Whether all of it was recognized."""
        return self.at >= self.frames

    def window(self, size: int) -> torch.Tensor:
        """Return the next window, padded."""
        window = self.features[:, self.at : self.at + size]
        return pad(window, (0, size - window.shape[-1]))

    def move(self, frames: int, size: int) -> None:
        """Advance; past the whole window after too many tries."""
        self.windows_left -= 1
        self.at += frames if self.windows_left > 0 else size


class Piece(NamedTuple):
    """Tokens from `first` to before `last`, spoken from `start_s` to `end_s` of the window."""

    first: int
    last: int
    start_s: float
    end_s: float


def split(tokens: Sequence[int], first_time: int, frames: int) -> tuple[list[Piece], int]:
    """Return the pieces of a window of `frames` frames, and how many frames are finished.

    `first_time`: the token of 0.00 s; greater ones are later.
    """
    ticks = [token - first_time if token >= first_time else None for token in tokens]
    cuts = [place for place in range(1, len(ticks)) if None not in (ticks[place - 1], ticks[place])]
    if not cuts:
        return [_whole(ticks, frames)], frames
    # One timestamp at the end: nothing follows it. Two: a segment began there, and is recognized again.
    is_closed = ticks[-1] is not None and ticks[-2] is None
    if is_closed:
        cuts.append(len(ticks))
    starts = [0, *cuts[:-1]]
    pieces = [_piece(ticks, first, last) for first, last in zip(starts, cuts, strict=True)]
    return pieces, frames if is_closed else (ticks[cuts[-1] - 1] or 0) * FRAMES_A_TICK


def _piece(ticks: Sequence[int | None], first: int, last: int) -> Piece:
    return Piece(first, last, (ticks[first] or 0) * TICK_S, (ticks[last - 1] or 0) * TICK_S)


def _whole(ticks: Sequence[int | None], frames: int) -> Piece:
    known = [tick for tick in ticks if tick is not None]
    last = known[-1] if known and known[-1] > 0 else frames / FRAMES_A_TICK
    return Piece(0, len(ticks), 0.0, last * TICK_S)


def windows(wave: Wave, rate: int) -> list[tuple[int, int]]:
    """Return the beginning and the end of each window, in samples; silent windows are left out."""
    most = int(LONGEST_S * rate)
    cuts = [0]
    while len(wave) - cuts[-1] > most:
        start = cuts[-1] + most - int(most * _SEARCHED)
        cuts.append(quietest(wave, start, cuts[-1] + most, rate))
    cuts.append(len(wave))
    pairs = pairwise(cuts)
    return [(start, end) for start, end in pairs if np.abs(wave[start:end]).max(initial=0.0) > _SILENT]


class Moonshine:
    """A Moonshine model: windows of a recording, cut at its quietest points. It knows no times of words."""

    def __init__(self, model: Any, features: Any, tokenizer: Any) -> None:
        self.rate: int = features.sampling_rate
        self._model = model
        self._features = features
        self._tokenizer = tokenizer

    @property
    def facts(self) -> Ready:
        """Its facts: any language may be requested, since the model knows only one and does not say which."""
        return Ready(languages={}, times_words=False)

    def begin(self, wave: Wave, *, language: str | None, wants_words: bool) -> WindowedJob:  # noqa: ARG002 - it has one language
        """Return a recording to recognize."""
        return WindowedJob(wave, windows(wave, self.rate))

    @torch.inference_mode()
    def transcribe(self, jobs: Sequence[WindowedJob], watch: CancelCheck) -> list[list[Segment] | None]:
        """Recognize the next window of each."""
        places = [job.left[0] for job in jobs]
        encoded = [self._encode(job.wave[start:end]) for job, (start, end) in zip(jobs, places, strict=True)]
        most = [int((end - start) / self.rate * TOKENS_A_SECOND) + TOKENS_AT_LEAST for start, end in places]
        checked = _ScoreCheck(len(jobs))
        tokens = self._model.generate(
            encoder_outputs=_together(encoded),
            max_new_tokens=max(most),
            do_sample=False,
            num_beams=1,
            logits_processor=LogitsProcessorList([checked]),
            stopping_criteria=StoppingCriteriaList([_StopCheck(checked, watch, most)]),
        )
        texts = self._tokenizer.batch_decode(tokens, skip_special_tokens=True)
        for job in jobs:
            job.left.pop(0)
        rows = zip(places, texts, checked.lost, strict=True)
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


_FAMILIES: dict[str, tuple[Any, Callable[[Any, Any, Any], Any]]] = {
    "whisper": (WhisperForConditionalGeneration, Whisper),
    "moonshine": (MoonshineForConditionalGeneration, Moonshine),
}


class _ScoreCheck(LogitsProcessor):
    """Checks the scores of each step, without changing them.

    `lost`: for each row, whether its scores were invalid numbers; `prompt`: tokens before the first step.
    """

    def __init__(self, rows: int) -> None:
        self.lost = [False] * rows
        self.prompt = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.prompt = self.prompt or input_ids.shape[1]
        wrong = torch.isnan(scores).any(dim=-1).tolist()
        self.lost = [before or now for before, now in zip(self.lost, wrong, strict=True)]
        return scores


class _StopCheck(StoppingCriteria):
    """Ends rows that are lost, that nobody waits for, or that have `most` tokens (None: the model's limit)."""

    def __init__(self, checked: _ScoreCheck, watch: CancelCheck, most: Sequence[int] | None = None) -> None:
        self._checked = checked
        self._watch = watch
        self._most = most

    def __call__(self, input_ids: torch.Tensor, _scores: torch.Tensor, **_more: object) -> torch.Tensor:
        over = [lost or gone for lost, gone in zip(self._checked.lost, self._watch(), strict=True)]
        if self._most is not None:
            made = input_ids.shape[1] - self._checked.prompt
            over = [done or made >= most for done, most in zip(over, self._most, strict=True)]
        return torch.tensor(over, device=input_ids.device)
