"""Speaks clauses one by one, for a voice's process. Knows no model."""

from __future__ import annotations

from speech.process.channel import Channel
from speech.process.messages import Failed
from speech.process.worker import Worker
from speech.voice.messages import Speak, Spoken
from speech.voice.models.interface import ClauseTooLong, SpeakCancelled, SynthesisModel


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
