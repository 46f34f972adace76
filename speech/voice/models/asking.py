"""The common interface of speech synthesis models. Knows no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from speech.contract import SpokenClause
from speech.voice.messages import VoiceReady


class Left(Exception):
    """Nobody waits for the result any more."""


class TooLong(Exception):
    """The model predicts an impossible length for a clause."""


Watch = Callable[[], None]
"""Called before every step. Raises Left."""


class Speaking(Protocol):
    """A model."""

    @property
    def facts(self) -> VoiceReady:
        """Its facts for the gateway."""
        ...

    def speak(self, clause: str, *, voice: str, speed: float, watch: Watch) -> SpokenClause:
        """Return a clause as sound. Raises Left, TooLong, and FloatingPointError for invalid numbers of the model."""
        ...
