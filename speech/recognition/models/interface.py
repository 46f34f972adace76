"""The common interface of recognition models: several recordings at once, a window of each at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from speech.recognition.messages import Ready, Segment

Wave = npt.NDArray[np.float32]
"""Samples from -1 to 1."""

CancelCheck = Callable[[], Sequence[bool]]
"""Called before every step; returns which recordings nobody waits for any more."""


class Job(Protocol):
    """A recording that is being recognized."""

    @property
    def is_over(self) -> bool:
        """Whether all of it was recognized."""
        ...


J = TypeVar("J", bound=Job)


class RecognitionModel(Protocol[J]):
    """A model. Results come per job, in order; None: the model computed invalid numbers."""

    rate: int

    @property
    def facts(self) -> Ready:
        """Its facts for the gateway."""
        ...

    def begin(self, wave: Wave, *, language: str | None, wants_words: bool) -> J:
        """Return a recording to recognize."""
        ...

    def transcribe(self, jobs: Sequence[J], watch: CancelCheck) -> list[list[Segment] | None]:
        """Recognize the next window of each; windows that the watch reports may be cut short.

        All jobs want times of words, or none. If this raises, no job has advanced.
        """
        ...
