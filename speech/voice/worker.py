"""Speaks clauses one by one, for a voice's process, and the interface of its models. Knows no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from speech.interfaces import SpokenClause
from speech.process.messages import Failed
from speech.process.worker import Channel, Worker
from speech.voice.model_voice import Speak, Spoken, VoiceReady

CancelCheck = Callable[[], None]
"""Called before every step. Raises SpeakCancelled."""


class SpeakCancelled(Exception):
    """Nobody waits for the result any more."""


class ClauseTooLong(Exception):
    """The model predicts an impossible length for a clause."""


class SynthesisModel(Protocol):
    """A model."""

    @property
    def facts(self) -> VoiceReady:
        """Its facts for the gateway."""
        ...

    def speak(self, clause: str, *, voice: str, speed: float, watch: CancelCheck) -> SpokenClause:
        """Return a clause as sound. Raises SpeakCancelled, ClauseTooLong, and FloatingPointError for invalid numbers of the model."""
        ...


class VoiceWorker(Worker[Speak]):
    """Speaks a clause at a time, and checks between two steps whether it was cancelled."""

    def __init__(self, channel: Channel, model: SynthesisModel) -> None:
        super().__init__(channel, model.facts)
        self._model = model

    def step(self) -> None:
        """Speak the next clause."""
        number, request = self.queue.next()
        try:
            spoken_clause = self._model.speak(
                request.clause, voice=request.voice, speed=request.speed, watch=lambda: self._watch(number)
            )
        except SpeakCancelled:
            return
        except (ClauseTooLong, FloatingPointError):
            self.end(number, Failed(number, "The voice could not speak this text."))
        except Exception as error:  # noqa: BLE001 - it affects only this clause
            self.fail(number, error, "This text could not be spoken")
        else:
            self.end(number, Spoken(number, spoken_clause))

    def take(self, message: Speak) -> None:
        """Add a clause after its owner's others."""
        self.queue.add(message.owner, message.number, message)

    def _watch(self, number: int) -> None:
        if any(self.watch((number,))):
            raise SpeakCancelled
