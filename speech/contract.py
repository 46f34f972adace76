"""What listens while somebody speaks, and what speaks with the times of its words: the shapes that all kinds of both have.

Only types: libraries and models stand behind them, each in a process of its own. Times are milliseconds of the sound, offsets
and lengths Unicode code points.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from speech.sound.wav import Coding


class Listening(msgspec.Struct, frozen=True, kw_only=True):
    """The sound that comes, with one channel, and when speech is over.

    `pause_ms`: so much silence is a `Paused`; `silence_ms`: so much is a `Stopped`. If the words so far are known to be a whole
    sentence, `finished_ms` is enough, where that is less; if they are known to be none it takes `unfinished_ms`, where that is
    more. `threshold`: the share of frames, 0 to 1, that have to be speech before somebody speaks. `detects`: False, only
    `commit` ends what was said. `language`: a code of those that are understood; None: whichever it is.
    """

    coding: Coding
    rate: int
    detects: bool = True
    pause_ms: int = 60
    silence_ms: int = 500
    finished_ms: int = 500
    unfinished_ms: int = 500
    threshold: float = 0.5
    language: str | None = None


class Started(msgspec.Struct, frozen=True, tag=True):
    """Somebody speaks since `at_ms`."""

    at_ms: int


class Partly(msgspec.Struct, frozen=True, tag=True):
    """Somebody still speaks at `at_ms`: told about ten times a second. `text`: what is understood so far; a later one may differ."""

    at_ms: int
    text: str


class Paused(msgspec.Struct, frozen=True, tag=True):
    """A short silence: the end, perhaps. `text`: what was said so far; `is_whole`: False, it is known to be no whole sentence."""

    at_ms: int
    text: str
    is_whole: bool = True


class Resumed(msgspec.Struct, frozen=True, tag=True):
    """The pause before was no end."""

    at_ms: int


class Stopped(msgspec.Struct, frozen=True, tag=True):
    """It is over since `at_ms`. `text`: all that was said, empty where nothing was understood; `started_ms`: when it began.

    `is_committed`: by `commit`.
    """

    started_ms: int
    at_ms: int
    text: str
    is_committed: bool = False


Heard = Started | Partly | Paused | Resumed | Stopped
"""Started (Partly* (Paused Resumed)*)* Stopped, again and again."""


class Hearing(Protocol):
    """Sound that is being listened to."""

    def feed(self, sound: bytes) -> None:
        """Take the next sound, whole samples. Never waits. Raises TooFarBehind: more waits to be understood than may.

        Where somebody speaks and no more sound comes for a while, he has stopped.
        """
        ...

    def commit(self) -> None:
        """What came so far is all that is said: `Stopped` follows, whether or not there was speech."""
        ...

    def clear(self) -> None:
        """Forget what was said and not committed. Nothing is told of it from now on, though it was heard before."""
        ...

    def events(self) -> AsyncIterator[Heard]:
        """Yield what is heard, for as long as the context lasts. Raises RecognizerLost: what came meanwhile is lost.

        It is to be read on: what was understood counts as such once it was yielded.
        """
        ...


class Ear(Protocol):
    """Listens to many at once, who take turns."""

    @property
    def languages(self) -> tuple[str, ...]:
        """What it understands, as `en`; empty: anything."""
        ...

    def listen(self, listening: Listening, *, owner: str) -> AbstractAsyncContextManager[Hearing]:
        """Listen while the context lasts. Raises RecognizerLost."""
        ...


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A word of a text, with what stands at it without white space, and when it is heard."""

    off: int
    len: int
    start_ms: int
    end_ms: int


class SpokenClause(msgspec.Struct, frozen=True):
    """A clause as sound: 16-bit PCM with one channel. `marks`: None where the voice does not know its words' times.

    Marks are in order, do not overlap, and end within the sound.
    """

    rate: int
    pcm: bytes
    marks: tuple[Mark, ...] | None


class Voice(Protocol):
    """Speaks clauses."""

    @property
    def names(self) -> tuple[str, ...]:
        """The voices that it has, the default first."""
        ...

    async def speak(self, clause: str, *, voice: str) -> SpokenClause:
        """Return a clause as sound; who is cancelled while he waits ends the work. Raises VoiceFailed."""
        ...
