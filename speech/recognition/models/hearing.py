"""What all models that recognise are asked alike: recordings, some at once, a window of each at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from speech.recognition.messages import Ready, Segment

Wave = npt.NDArray[np.float32]
"""Samples from -1 to 1."""

Watch = Callable[[], Sequence[bool]]
"""Called before every step: which of the recordings nobody waits for any more."""


class Job(Protocol):
    """A recording that is being heard."""

    @property
    def is_over(self) -> bool:
        """Whether all of it was heard."""
        ...


J = TypeVar("J", bound=Job)


class Hearing(Protocol[J]):
    """A model. Results come per job, in order; None: what the model computed are no numbers."""

    rate: int

    @property
    def facts(self) -> Ready:
        """What can be asked of it."""
        ...

    def begin(self, wave: Wave, *, language: str | None, wants_words: bool) -> J:
        """Return a recording that is to be heard."""
        ...

    def hear(self, jobs: Sequence[J], watch: Watch) -> list[list[Segment] | None]:
        """Hear the next window of each; what a watch says is not wanted may be cut short.

        Jobs want times of words, or none of them does. Where this raises, no job has moved.
        """
        ...
