"""Several who speak at once, and one process that listens by turns. No process, no recognizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import msgspec

from speech.interfaces import Listening
from speech.listening_worker import ListenWorker
from speech.process import Channel
from speech.recognition import Listen, Ready, Sound, Utterance
from speech.samples import Samples
from tests.speech.voice_samples import RATE, silence, voiced


class StubChannel:
    """Takes what is told; nothing comes from it."""

    def send(self, message: msgspec.Struct) -> None:
        """It goes nowhere."""

    def poll(self) -> None:
        return None


class Listeners:
    """Some speakers, known by their languages, and one process that listens to them. All that is said is understood."""

    def __init__(self, *names: str, takes_s: float = 0.0) -> None:
        """`takes_s`: how long it takes to understand one."""
        self._takes_s = takes_s
        self._now = 0.0
        self._understood: list[str | None] = []
        self._work = ListenWorker(
            cast("Channel", StubChannel()), Ready(languages={}), self._understand, clock=lambda: self._now
        )
        for number, name in enumerate(names):
            listening = Listening(rate=RATE, language=name)
            self._work.take(Listen(number, name, listening))

    def feed(self, *sounds: bytes) -> list[str | None]:
        """Take a sound of each; return whose words were recognized, in this order."""
        for number, sound in enumerate(sounds):
            self._work.take(Sound(number, sound))
        self._understood.clear()
        while self._work.queue:
            self._work.step()
        return self._understood.copy()

    def _understand(self, _: Samples, language: str | None, _check: Callable[[], None]) -> Utterance:
        self._understood.append(language)
        self._now += self._takes_s
        return Utterance("words")


def test_who_has_ended_waits_for_no_words_of_others_who_speak_on() -> None:
    listeners = Listeners("first", "second", "third")
    going, ends = voiced(300), silence(300)
    listeners.feed(*[silence(300) + voiced(600)] * 3)
    assert listeners.feed(going, going, going) == ["first", "second", "third"]
    assert listeners.feed(going, going, ends) == ["third"]
    assert listeners.feed(going, going, b"") == ["first", "second"]


def test_who_begins_over_others_silences_has_first_words() -> None:
    """He may interrupt a reply, which only words do."""
    listeners = Listeners("beginning", "silent")
    listeners.feed(silence(300), silence(300) + voiced(600))
    assert "beginning" in listeners.feed(voiced(600), silence(600))


def test_words_of_many_who_speak_on_come_less_often() -> None:
    """Otherwise eight speakers would take the whole process before anybody ends."""

    def times(*names: str) -> int:
        listeners = Listeners(*names, takes_s=0.05)
        listeners.feed(*[silence(300) + voiced(600)] * len(names))
        return sum(len(listeners.feed(*[voiced(120)] * len(names))) for _ in range(40))

    alone, together = times("a"), times(*"abcdefgh")
    assert alone >= 8
    assert together < 8 * alone / 2
