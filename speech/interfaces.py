"""Sound, recognizers that listen during speech, and voices that report the times of their words.

Only types: the libraries and models behind them run in processes of their own. Times are milliseconds of the
sound, offsets and lengths Unicode code points.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

_UNSPACED = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+(?:'[^\W{_UNSPACED}]+)*")


RAW_RATE = 24_000
"""Samples per second of sound without a header."""
LOWEST_RATE, HIGHEST_RATE = 8_000, 48_000


WIDTH = 2
"""Bytes of a sample: all sound is PCM with 16 bits a sample, little-endian."""


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A model of transformers for a process to load: a hub name or a folder, without `~`. Device "auto": CUDA, else the CPU.

    `pickled_weights`: also load weights that are not safetensors.
    """

    model: str
    device: str = "auto"
    pickled_weights: bool = False


class Recording(msgspec.Struct, frozen=True):
    """Samples as received; channels alternate."""

    rate: int
    channels: int
    samples: bytes

    @property
    def seconds(self) -> float:
        """Its duration in seconds."""
        return len(self.samples) / (WIDTH * self.channels * self.rate)


class Listening(msgspec.Struct, frozen=True, kw_only=True):
    """The format of the sound, with one channel, and the rules for the end of speech.

    `pause_ms`: silence until a `Paused`, at which a turn begins that is taken back if speech continues; `silence_ms`: silence until a `Stopped`. After a sentence that is known to be complete,
    `finished_ms` counts instead if it is less; after one that is known to be incomplete, `unfinished_ms` if it is more.
    `threshold`: the share of frames, 0 to 1, that must be speech before a speaker counts as speaking. `detects`: if False, only
    `commit` ends an utterance. `language`: one of the supported codes; None: any.
    """

    rate: int
    detects: bool = True
    pause_ms: int = 30
    silence_ms: int = 500
    finished_ms: int = 500
    unfinished_ms: int = 500
    threshold: float = 0.5
    language: str | None = None


class Started(msgspec.Struct, frozen=True, tag=True):
    """Speech began at `at_ms`."""

    at_ms: int


class Partial(msgspec.Struct, frozen=True, tag=True):
    """Speech continues at `at_ms`: reported about ten times a second. `text`: the words so far, which may be revised.

    `is_new`: the words were recognized again; otherwise they are those of the previous event. `is_confident`: see `Stopped`.
    """

    at_ms: int
    text: str
    is_new: bool = True
    is_confident: bool = True


class Paused(msgspec.Struct, frozen=True, tag=True):
    """A short silence, which may be the end. `text`: the words so far; `is_whole`: if False, an incomplete sentence.

    A pause in an incomplete sentence may be reported once more, with better words.
    """

    at_ms: int
    text: str
    is_whole: bool = True
    is_confident: bool = True


class Resumed(msgspec.Struct, frozen=True, tag=True):
    """The pause was not the end."""

    at_ms: int


class Stopped(msgspec.Struct, frozen=True, tag=True):
    """Speech ended at `at_ms`. `text`: all words, empty if none were understood; `started_ms`: when speech began.

    `is_committed`: by a `commit`. `is_confident`: False: the words may be noise.
    """

    started_ms: int
    at_ms: int
    text: str
    is_committed: bool = False
    is_confident: bool = True


Heard = Started | Partial | Paused | Resumed | Stopped
"""The order is Started (Partial* (Paused+ Resumed)*)* Stopped, repeated."""


def word_count(text: str) -> int:
    """Return how many words a text has. Chinese, Japanese and Thai text, which has no spaces, counts by the character."""
    return len(_WORD.findall(text))


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A word of a text with the punctuation next to it, and its time."""

    off: int
    len: int
    start_ms: int
    end_ms: int


class SpokenClause(msgspec.Struct, frozen=True):
    """A clause as sound: 16-bit PCM with one channel. `marks`: None if the voice does not know the times of words.

    Marks are in order, do not overlap, and end within the sound.
    """

    rate: int
    pcm: bytes
    marks: tuple[Mark, ...] | None


class Synthesizer(Protocol):
    """Speaks whole texts."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the voices, the default first."""
        ...

    @property
    def name(self) -> str:
        """Its name for clients."""
        ...

    @property
    def examples(self) -> str:
        """Some of the voices, for an error."""
        ...

    @property
    def speeds(self) -> tuple[float, float]:
        """The slowest and the fastest speed, as multiples of the usual one."""
        ...

    def speaking(
        self, text: str, *, voice: str, speed: float, owner: str
    ) -> AbstractAsyncContextManager[AudioStream]:
        """Speak a text while the context lasts. Owners take turns. Raises VoiceFailed."""
        ...


class AudioStream(Protocol):
    """A text that is being spoken: 16-bit PCM with one channel."""

    @property
    def rate(self) -> int:
        """Samples per second."""
        ...

    def parts(self) -> AsyncGenerator[bytes]:
        """Yield whole samples as they are made; close the generator. Raises VoiceFailed."""
        ...
