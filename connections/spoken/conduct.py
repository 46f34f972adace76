"""Decides when speech becomes a message, interrupts a reply, or makes a guess wrong. Pure.

silence ──Started──► speaking ──Paused──► guessing: the turn begins, its sound is held
                        ▲                     │ Resumed: the turn is rolled back
                        └─────────────────────┤ Stopped: it was the end, its sound is let go
reply ──Started──► held ──as long as interrupt_ms──► cut;  ──Stopped before──► goes on where it was held
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto

import msgspec

from speech.contract import Heard, Partly, Paused, Resumed, Started, Stopped

NODS = frozenset(("yes", "yeah", "yep", "mhm", "uh-huh", "hm", "hmm", "ok", "okay", "right", "sure", "i see"))
"""What listeners say without wanting to speak. Alone it interrupts nothing."""
NOD_MS = 1000
"""Longer speech always interrupts, whatever its words."""


class Do(Enum):
    """Acts without further data."""

    HOLD = auto()
    """Pause the reply's sound."""
    LET_GO = auto()
    CUT = auto()
    """End the reply at what was heard."""
    TAKE_BACK = auto()
    """The guess was wrong: roll its turn back."""
    CONFIRM = auto()
    """The guess was right."""


class Spoke(msgspec.Struct, frozen=True):
    """The user began to speak, or stopped."""

    began: bool
    at_ms: int


class Understood(msgspec.Struct, frozen=True):
    """The words so far, or all of them."""

    text: str
    final: bool


class Say(msgspec.Struct, frozen=True):
    """A message. `is_guess`: its reply is not played until the guess is confirmed."""

    text: str
    is_guess: bool


Act = Do | Spoke | Understood | Say


class Conduct:
    """The rules for one speaker, and the replies to that speaker."""

    def __init__(self, *, interrupts: bool, interrupt_ms: int, guesses: bool) -> None:
        """`interrupt_ms`: speech over a reply that ends it; `guesses`: whether turns begin at a pause."""
        self._interrupts = interrupts
        self._interrupt_ms = interrupt_ms
        self._guesses = guesses
        self._started_ms = 0
        self._holds = False
        self._guess: str | None = None
        self._agreement = Agreement()

    def heard(self, event: Heard, *, talking: bool) -> list[Act]:
        """Return the acts for an event. `talking`: a reply is being made or played."""
        match event:
            case Started(at_ms):
                return list(self._start(at_ms, talking=talking))
            case Partly(at_ms, text, is_new):
                return [*(self._agree(text) if is_new else ()), *self._interrupt(at_ms, text)]
            case Paused(at_ms, text, is_whole):
                told = [*self._agree(text), *self._interrupt(at_ms, text)]
                return [*told, *self._try(text, talking=talking)] if is_whole else told
            case Resumed():
                return list(self._take_back())
            case Stopped(_, at_ms, text):
                return [Spoke(began=False, at_ms=at_ms), *self._stop(at_ms, text)]

    def lost(self) -> list[Act]:
        """Forget the current utterance: nobody listens any more, or it is to be dropped."""
        acts: list[Act] = [*self._take_back(), *self._resume()]
        self._agreement = Agreement()
        return acts

    def _start(self, at_ms: int, *, talking: bool) -> Iterator[Act]:
        self._started_ms = at_ms
        self._agreement = Agreement()
        yield Spoke(began=True, at_ms=at_ms)
        if talking and self._interrupts:
            self._holds = True
            yield Do.HOLD

    def _agree(self, text: str) -> Iterator[Act]:
        if (agreed := self._agreement.take(text)) is not None:
            yield Understood(agreed, final=False)

    def _interrupt(self, at_ms: int, text: str) -> Iterator[Act]:
        if self._holds and self._wants_the_word(at_ms, text):
            self._holds = False
            yield Do.CUT

    def _wants_the_word(self, at_ms: int, text: str) -> bool:
        """Return whether speech interrupts; a cough, which has no words, does not."""
        lasted_ms = at_ms - self._started_ms
        return bool(text) and lasted_ms >= (NOD_MS if text.lower() in NODS else self._interrupt_ms)

    def _try(self, text: str, *, talking: bool) -> Iterator[Act]:
        if self._guesses and text and not talking and self._guess is None:
            self._guess = text
            yield Say(text, is_guess=True)

    def _take_back(self) -> Iterator[Act]:
        if self._guess is not None:
            self._guess = None
            yield Do.TAKE_BACK

    def _resume(self) -> Iterator[Act]:
        if self._holds:
            self._holds = False
            yield Do.LET_GO

    def _stop(self, at_ms: int, text: str) -> Iterator[Act]:
        yield Understood(text, final=True)
        if self._holds and not self._wants_the_word(at_ms, text):
            yield from self._resume()
        elif self._guess is not None and self._guess == text:
            self._guess = None
            yield Do.CONFIRM
        else:
            yield from self._interrupt(at_ms, text)
            yield from self._take_back()
            if text:
                yield Say(text, is_guess=False)


class Agreement:
    """Tells the words on which two successive hypotheses agree, never revised (LocalAgreement-2; Liu et al., 2020)."""

    def __init__(self) -> None:
        self._before: list[str] = []
        self._agreed: list[str] = []

    def take(self, text: str) -> str | None:
        """Take the next hypothesis; return the agreed words if there are more of them."""
        words, told = text.split(), len(self._agreed)
        if words[:told] == self._agreed:
            pairs = zip(self._before[told:], words[told:], strict=False)
            for before, word in pairs:
                if before != word:
                    break
                self._agreed.append(word)
        self._before = words
        return " ".join(self._agreed) if len(self._agreed) > told else None
