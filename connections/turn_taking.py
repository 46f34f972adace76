"""Decides when speech becomes a message, interrupts a reply, or makes a guess wrong. Pure.

silence ──Started──► speaking ──Paused──► guessing: the turn begins, its sound is held
                        ▲                     │ Resumed: the turn is rolled back
                        └─────────────────────┤ Stopped: it was the end, its sound is let go
reply ──Started──► it continues, ducked by its player ──words that interrupt──► cut;  ──Stopped before──► it continues
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum, auto
from itertools import takewhile

import msgspec

from speech.interfaces import Heard, Partial, Paused, Resumed, Started, Stopped, word_count

SUSTAINED_MS, _SUSTAINED_WORDS = 1500, 3
"""Speech this long with this many words interrupts, however unsure the recognizer is of them; a fit of coughs has fewer."""
_BACKCHANNELS = (
    r"yes|yeah|yea|yep|yup|uh[- ]huh|mm*-?h+m+|m h m|mm+|hm+|u+h+|u+m+|huh|okay|ok|(?:all ?)?right|sure|i see|got it|aha|ah|oh|"
    "ja|genau|嗯|是的|是|好的|好|对"
)
_BACKCHANNEL = re.compile(rf"\W*+(?:(?:{_BACKCHANNELS})\W*+)++", re.IGNORECASE)
"""What listeners say without wanting to speak. Alone it interrupts nothing. Possessive: a long hum takes linear time."""
_MOMENT = r"a\W+(?:moment|minute|second|sec)"
_STOPS = (
    rf"stop(?:\W+(?:it|that|talking|there))?|(?:wait|hold\W+on|hang\W+on)(?:\W+{_MOMENT})?|just\W+{_MOMENT}|"
    r"(?:that\W+is|that's)\W+enough|enough|be\W+quiet|quiet|shut\W+up|stopp|halt|warte(?:\W+mal)?|"
    r"hör\W+auf|sei\W+still|das\W+reicht|停|停下|停止|等一下|别说了"
)
_STOP = re.compile(
    rf"\W*(?:(?:please|okay|ok|no|now|hey|oh|yeah|just|bitte|jetzt|请)\W*)*"
    rf"(?:(?:{_STOPS})\W*(?:(?:please|now|bitte|jetzt)\W*)*)+",
    re.IGNORECASE,
)
"""What ends a reply at once. By itself it is not sent as a message, since it needs no answer."""


class ReplyAction(Enum):
    """Actions without further data."""

    CUT = auto()
    """End the reply at what was heard."""
    ROLL_BACK = auto()
    """The guess was wrong: roll its turn back."""
    CONFIRM = auto()
    """The guess was right."""


class SpeechEdge(msgspec.Struct, frozen=True):
    """The user began to speak, or stopped."""

    began: bool
    at_ms: int


class TranscriptUpdate(msgspec.Struct, frozen=True):
    """The words so far or, if `final`, all of them."""

    text: str
    final: bool


class SubmitMessage(msgspec.Struct, frozen=True):
    """A message. `is_guess`: its reply is not played until the guess is confirmed."""

    text: str
    is_guess: bool


Action = ReplyAction | SpeechEdge | TranscriptUpdate | SubmitMessage


class TurnTakingPolicy:
    """The rules for one speaker, and the replies to that speaker."""

    def __init__(self, *, interrupts: bool, interrupt_ms: int, guesses: bool) -> None:
        """`interrupt_ms`: for how long somebody must speak over a reply to end it; `guesses`: whether a pause begins a turn."""
        self._interrupts = interrupts
        self._interrupt_ms = interrupt_ms
        self._guesses = guesses
        self._started_ms = 0
        self._is_over_reply = self._may_interrupt = False
        self._guess: str | None = None
        self._agreement = LocalAgreement()

    def heard(self, event: Heard, *, talking: bool) -> list[Action]:
        """Return the actions for an event. `talking`: whether a reply is being made or played."""
        match event:
            case Started(at_ms):
                self._started_ms = at_ms
                self._agreement = LocalAgreement()
                self._is_over_reply = self._may_interrupt = talking and self._interrupts
                return [SpeechEdge(began=True, at_ms=at_ms)]
            case Partial(at_ms, text, is_new, is_confident):
                cut = self._interrupt(at_ms, text, is_confident=is_confident)
                return [*(self._agree(text) if is_new and is_confident else ()), *cut]
            case Paused(at_ms, text, is_whole, is_confident):
                cut = self._interrupt(at_ms, text, is_confident=is_confident or _is_stop(text))
                acts = [*(self._agree(text) if is_confident else ()), *cut]
                if is_whole:
                    acts += self._speculate(text, talking=talking, is_confident=is_confident)
                return acts
            case Resumed():
                return list(self._roll_back())
            case Stopped(at_ms=at_ms):
                return [SpeechEdge(began=False, at_ms=at_ms), *self._stop(event, talking=talking)]

    def lost(self) -> list[Action]:
        """Forget the current utterance: listening has ended, or the utterance is to be dropped."""
        self._is_over_reply = self._may_interrupt = False
        self._agreement = LocalAgreement()
        return list(self._roll_back())

    def _agree(self, text: str) -> Iterator[Action]:
        if self._agreement.take(text.split()):
            yield TranscriptUpdate(" ".join(self._agreement.agreed), final=False)

    def _interrupt(self, at_ms: int, text: str, *, is_confident: bool) -> Iterator[Action]:
        """End the reply if speech interrupts it; a cough, a tone or a backchannel does not."""
        duration_ms = at_ms - self._started_ms
        if not text or _BACKCHANNEL.fullmatch(text):
            return
        if is_confident:
            interrupts = duration_ms >= self._interrupt_ms or _is_stop(text)
        else:
            interrupts = duration_ms >= SUSTAINED_MS and word_count(text) >= _SUSTAINED_WORDS
        if interrupts:
            yield from self._cut()

    def _cut(self) -> Iterator[Action]:
        """End the reply that the utterance began over, once."""
        if self._may_interrupt:
            self._may_interrupt = False
            yield ReplyAction.CUT

    def _is_answered(self, text: str, *, is_confident: bool) -> bool:
        """Return whether ending the reply was all that was wanted: a "stop" may turn out as "okay", or as a doubtful word."""
        is_cut = self._is_over_reply and not self._may_interrupt
        is_doubtful = not is_confident and word_count(text) < _SUSTAINED_WORDS
        return (self._is_over_reply and _is_stop(text)) or (
            is_cut and (is_doubtful or _BACKCHANNEL.fullmatch(text) is not None)
        )

    def _speculate(self, text: str, *, talking: bool, is_confident: bool) -> Iterator[Action]:
        if (
            self._guesses
            and text
            and not (talking or self._guess or self._is_answered(text, is_confident=is_confident))
        ):
            yield from self._cut()
            self._is_over_reply = False
            self._guess = text
            yield SubmitMessage(text, is_guess=True)

    def _roll_back(self) -> Iterator[Action]:
        if self._guess is not None:
            self._guess = None
            yield ReplyAction.ROLL_BACK

    def _stop(self, event: Stopped, *, talking: bool) -> Iterator[Action]:
        is_confident = event.is_confident or _is_stop(event.text)
        cut = list(self._interrupt(event.at_ms, event.text, is_confident=is_confident))
        reply_continues = self._may_interrupt and talking and not event.is_committed
        text = event.text
        is_answered = not event.is_committed and self._is_answered(text, is_confident=is_confident)
        if reply_continues or is_answered:
            text = ""
        yield TranscriptUpdate(text, final=True)
        yield from cut
        if self._guess is not None and self._guess == text:
            self._guess = None
            yield ReplyAction.CONFIRM
        else:
            yield from self._roll_back()
            if text:
                yield from self._cut()
                yield SubmitMessage(text, is_guess=False)
        self._is_over_reply = self._may_interrupt = False


def _is_stop(text: str) -> bool:
    return _STOP.fullmatch(text) is not None


class LocalAgreement:
    """Finds the words on which two successive hypotheses agree; they are never revised (LocalAgreement-2; Liu et al., 2020)."""

    def __init__(self) -> None:
        self.agreed: list[str] = []
        self._before: list[str] = []

    def take(self, words: list[str]) -> int:
        """Take the next hypothesis; return how many more words are agreed."""
        known = len(self.agreed)
        if words[:known] == self.agreed:
            pairs = zip(self._before[known:], words[known:], strict=False)
            self.agreed += [word for _, word in takewhile(lambda pair: pair[0] == pair[1], pairs)]
        self._before = words
        return len(self.agreed) - known
