"""Several who speak at once, and one process that listens by turns. No process, no recognizer."""

from __future__ import annotations

from typing import cast

import msgspec

from speech.contract import Listening
from speech.listening.messages import Listen, Sound
from speech.listening.stream import Utterance
from speech.listening.work import ListenWork
from speech.process.line import Line
from speech.recognition.messages import Ready
from speech.sound.samples import Samples
from speech.sound.wav import Coding
from tests.speech.voiced import RATE, silence, voiced


class Wire:
    """Takes what is told; nothing comes from it."""

    def send(self, message: msgspec.Struct) -> None:
        """It goes nowhere."""

    def poll(self) -> None:
        return None


def test_who_has_ended_waits_for_no_words_of_others_who_speak_on() -> None:
    understood: list[str | None] = []

    def understand(_: Samples, language: str | None) -> Utterance:
        understood.append(language)
        return Utterance("words")

    work = ListenWork(cast("Line", Wire()), Ready(languages={}), understand, clock=lambda: 0.0)
    speakers = ("first", "second", "third")
    for number, name in enumerate(speakers):
        work.take(
            Listen(number, name, Listening(coding=Coding.PCM16, rate=RATE, language=name))
        )  # a name is told with the sound

    def hear(*sounds: bytes) -> list[str | None]:
        for number, sound in enumerate(sounds):
            work.take(Sound(number, sound))
        understood.clear()
        while work.turns:
            work.step()
        return understood.copy()

    going, ends = voiced(300), silence(300)
    hear(*[silence(300) + voiced(600)] * 3)
    assert hear(going, going, going) == ["first", "second", "third"]
    assert hear(going, going, ends) == ["third"]
    assert hear(going, going, b"") == ["first", "second"]


def test_who_begins_over_others_silences_has_first_words() -> None:
    """He may interrupt a reply, which only words do."""
    understood: list[str | None] = []

    def understand(_: Samples, language: str | None) -> Utterance:
        understood.append(language)
        return Utterance("words")

    work = ListenWork(cast("Line", Wire()), Ready(languages={}), understand, clock=lambda: 0.0)
    for number, name in enumerate(("beginning", "silent")):
        work.take(Listen(number, name, Listening(coding=Coding.PCM16, rate=RATE, language=name)))
    work.take(Sound(1, silence(300) + voiced(600)))
    work.take(Sound(0, silence(300)))
    while work.turns:
        work.step()
    understood.clear()
    work.take(Sound(0, voiced(600)))
    work.take(Sound(1, silence(600)))
    while work.turns:
        work.step()
    assert "beginning" in understood
