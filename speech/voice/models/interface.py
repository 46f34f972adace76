"""The common interface of speech synthesis models. Knows no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from speech.interfaces import SpokenClause
from speech.voice.messages import VoiceReady


class SpeakCancelled(Exception):
    """Nobody waits for the result any more."""


class ClauseTooLong(Exception):
    """The model predicts an impossible length for a clause."""


CancelCheck = Callable[[], None]
"""Called before every step. Raises SpeakCancelled."""


class SynthesisModel(Protocol):
    """A model."""

    @property
    def facts(self) -> VoiceReady:
        """Its facts for the gateway."""
        ...

    def speak(self, clause: str, *, voice: str, speed: float, watch: CancelCheck) -> SpokenClause:
        """Return a clause as sound. Raises SpeakCancelled, ClauseTooLong, and FloatingPointError for invalid numbers of the model."""
        ...
