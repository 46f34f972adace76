"""What all models that speak are asked alike. Knows no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from speech.contract import SpokenClause
from speech.voice.messages import VoiceReady


class Left(Exception):
    """Whoever asked has left."""


class TooLong(Exception):
    """The model says that a clause takes longer than any does."""


Watch = Callable[[], None]
"""Called before every step. Raises Left."""


class Speaking(Protocol):
    """A model."""

    @property
    def facts(self) -> VoiceReady:
        """What can be asked of it."""
        ...

    def speak(self, clause: str, *, voice: str, speed: float, watch: Watch) -> SpokenClause:
        """Return a clause as sound. Raises Left, TooLong, FloatingPointError where the model computed no numbers."""
        ...
