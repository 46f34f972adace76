"""Speaks a clause at a time, for a model's process. Knows no model."""

from __future__ import annotations

import sys

from speech.process.line import Line
from speech.process.messages import Cancel, Failed, Working
from speech.process.turns import Turns
from speech.voice.messages import Speak, Spoken, ToVoice
from speech.voice.models.asking import Left, Speaking, TooLong


class Work:
    """Speaks a clause at a time, and looks between two steps for who has left."""

    def __init__(self, line: Line, model: Speaking) -> None:
        self._line = line
        self._model = model
        self._turns: Turns[Speak] = Turns()
        self._gone: set[int] = set()

    def run(self) -> None:
        """Work until the gateway is gone."""
        self._line.send(self._model.facts)
        while True:
            if not self._turns:
                self._take(self._line.wait())
            self._catch_up()
            if self._turns:
                self._speak(*self._turns.next())

    def _speak(self, number: int, asked: Speak) -> None:
        self._gone.clear()
        try:
            made = self._model.speak(
                asked.clause, voice=asked.voice, speed=asked.speed, watch=lambda: self._watch(number)
            )
        except Left:
            return
        except (TooLong, FloatingPointError):
            self._end(number, Failed(number, "The voice lost itself in this text."))
        except Exception as error:  # noqa: BLE001 - it is of this clause alone; its message may quote the text
            print(f"a clause could not be spoken: {type(error).__name__}", file=sys.stderr)  # noqa: T201
            self._end(number, Failed(number, "This text could not be spoken."))
        else:
            self._end(number, Spoken(number, made))

    def _end(self, number: int, told: Spoken | Failed) -> None:
        self._turns.remove(number)
        self._line.send(told)

    def _watch(self, number: int) -> None:
        self._line.send(Working())
        self._catch_up()
        if number in self._gone:
            raise Left

    def _catch_up(self) -> None:
        while (message := self._line.poll()) is not None:
            self._take(message)

    def _take(self, message: ToVoice) -> None:
        match message:
            case Speak(number, owner):
                self._turns.add(owner, number, message)
            case Cancel(number):
                self._gone.add(number)
                self._turns.remove(number)
