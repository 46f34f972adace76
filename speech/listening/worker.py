"""Recognizes all speakers, a piece at a time, with owners taking turns. Knows no recognizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import assert_never

from speech.listening.messages import Clear, Cleared, Commit, Listen, Processed, Recognized, Sound
from speech.listening.stream import SpeechStream, Utterance
from speech.process.worker import Channel, Worker
from speech.recognition.messages import Ready
from speech.sound.samples import Samples

LOOK_S = 0.1
"""How often speakers are checked who send no more sound."""

Recognize = Callable[[Samples, str | None], Utterance]
"""From an utterance and its language to words."""


class ListenWorker(Worker[SpeechStream]):
    """A failure of one speaker's sound ends only that stream."""

    def __init__(
        self, channel: Channel, hello: Ready, recognize: Recognize, *, clock: Callable[[], float] = monotonic
    ) -> None:
        super().__init__(channel, hello)
        self._recognize_samples = recognize
        self._clock = clock
        self._streams: dict[int, tuple[str, SpeechStream]] = {}
        self._speaking: set[int] = set()
        self._checked_at = clock()

    def step(self) -> None:
        """Do the next piece of work. Who is silent waits only for the first words of others who speak on."""
        number, stream = self.queue.next()
        is_hurried = any(other is not stream and other.is_urgent for _, other in self._streams.values())
        try:
            heard = (
                stream.step(is_hurried=is_hurried, speakers=len(self._speaking)) if stream.has_work else None
            )
            if heard is not None:
                self.channel.send(Recognized(number, heard))
        except Exception as error:  # noqa: BLE001 - it affects only this speaker
            self._give_up(number, error)
        else:
            if not stream.has_work:
                self.queue.remove(number)
            self._continue(number)

    def take(self, message: Listen | Sound | Commit | Clear) -> None:
        """Take a message."""
        number = message.number
        try:
            if isinstance(message, Listen):
                recognize = partial(self._text_of, message.listening.language)
                stream = SpeechStream(message.listening, recognize, clock=self._clock)
                self._streams[number] = message.owner, stream
            elif number in self._streams:
                self._do(message, self._streams[number][1])
        except Exception as error:  # noqa: BLE001 - it affects only this speaker
            self._give_up(number, error)
        else:
            self._continue(number)

    def leave(self, number: int) -> None:
        """Forget a speaker who left."""
        self._streams.pop(number, None)
        self._speaking.discard(number)
        super().leave(number)

    def timeout_s(self) -> float | None:
        """Return how long to wait if there is nothing to do."""
        return LOOK_S if self._speaking else None

    def catch_up(self) -> None:
        """Take new messages, and end utterances whose sound stopped coming."""
        super().catch_up()
        if self._clock() - self._checked_at < LOOK_S:
            return
        self._checked_at = self._clock()
        for number in list(self._speaking):
            self._streams[number][1].expire()
            self._continue(number)

    def _do(self, message: Sound | Commit | Clear, stream: SpeechStream) -> None:
        match message:
            case Sound():
                stream.feed(message.sound)
            case Commit():
                stream.commit()
            case Clear():
                stream.clear()
                self.channel.send(Cleared(message.number))
            case _:
                assert_never(message)

    def _text_of(self, language: str | None, samples: Samples) -> Utterance:
        return self._recognize_samples(samples, language)

    def _continue(self, number: int) -> None:
        """Report processed bytes, and let the stream take its next turn if it has work."""
        if number not in self._streams:
            return
        owner, stream = self._streams[number]
        (self._speaking.add if stream.is_speaking else self._speaking.discard)(number)
        if size := stream.taken():
            self.channel.send(Processed(number, size))
        if stream.has_work:
            self.queue.add(owner, number, stream)

    def _give_up(self, number: int, error: Exception) -> None:
        self._streams.pop(number, None)
        self._speaking.discard(number)
        self.fail(number, error, "What was said could not be listened to")
