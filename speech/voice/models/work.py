"""Speaks clauses one by one, for a voice's process. Knows no model."""

from __future__ import annotations

from speech.process.line import Line
from speech.process.messages import Failed
from speech.process.work import Work
from speech.voice.messages import Speak, Spoken
from speech.voice.models.asking import Left, Speaking, TooLong


class VoiceWork(Work[Speak]):
    """Speaks a clause at a time, and checks between two steps whether it was cancelled."""

    def __init__(self, line: Line, model: Speaking) -> None:
        super().__init__(line, model.facts)
        self._model = model

    def step(self) -> None:
        """Speak the next clause."""
        number, asked = self.turns.next()
        try:
            made = self._model.speak(
                asked.clause, voice=asked.voice, speed=asked.speed, watch=lambda: self._watch(number)
            )
        except Left:
            return
        except (TooLong, FloatingPointError):
            self.end(number, Failed(number, "The voice could not speak this text."))
        except Exception as error:  # noqa: BLE001 - it affects only this clause
            self.fail(number, error, "This text could not be spoken")
        else:
            self.end(number, Spoken(number, made))

    def take(self, message: Speak) -> None:
        """Add a clause after its owner's others."""
        self.turns.add(message.owner, message.number, message)

    def _watch(self, number: int) -> None:
        if any(self.watch((number,))):
            raise Left
