"""Converts what is heard to the session's events: an utterance becomes an item, and a message of the session. Pure.

Speech over a reply is reported once it ends the reply, so that a cough empties no player. A guess is reported
once it is right.
"""

from __future__ import annotations

import secrets

import msgspec

from connections.realtime import server_events
from connections.realtime.asking import Asking
from connections.realtime.items import Item, Items, State
from connections.realtime.server_events import ItemAdded, ItemDone, ServerEvent
from connections.realtime.sound.spoken_replies import Guess
from connections.realtime.sound.told import (
    Committed,
    Duration,
    SpeechStarted,
    SpeechStopped,
    TranscriptCompleted,
    TranscriptDelta,
)
from connections.realtime.telling import Said
from connections.spoken.conduct import Act, Do, Spoke, Understood
from connections.wire.frames import Frame, Send


class Hearing:
    """One session's microphone."""

    def __init__(self, items: Items, asking: Asking) -> None:
        self._items = items
        self._asking = asking
        self._now = _Utterance()
        self._guess: _Guess | None = None
        self._buffer = _Buffer()

    def take(self, ms: float) -> None:
        """Count received sound."""
        self._buffer.ms += ms

    def ends(self) -> None:
        """Note that the current utterance is complete."""
        self._buffer.ended_ms, self._buffer.ms = self._buffer.ms, 0.0

    def forget(self) -> None:
        """Forget the sound so far: it is no part of the next utterance."""
        self._buffer = _Buffer()

    def heed(self, act: Act, *, talking: bool) -> list[Frame]:  # noqa: PLR0911 - one for each kind
        """Return the frames about an act. `talking`: a reply is being made or played."""
        match act:
            case Spoke(True, at_ms):
                self._now = _Utterance(started_ms=at_ms)
                return [] if talking and self._interrupts else self._start()
            case Spoke(False, at_ms):
                if self._now.is_committed:  # without detection it is all sound since then
                    self._now = _Utterance()
                self._now.stopped_ms = at_ms
                self._now.ms = self._lasted()
                return self._stop() if self._now.is_told else []
            case Understood(text, False):
                return self._words(text) if self._now.is_told else []
            case Do.CUT if not self._now.is_told and self._now.started_ms is not None:
                stop = [] if self._now.stopped_ms is None else self._stop()
                return [*self._start(), *stop]
            case Do.CONFIRM if (guess := self._guess) is not None:
                self._guess = None
                return [*self._commit(guess.text, State.ASKED), Guess(known_by=guess.known_by, came="true")]
            case Do.CONFIRM:  # nothing was sent
                return self._commit(self._now.text, State.WAITING)
            case Do.TAKE_BACK if (guess := self._guess) is not None:
                self._guess = None
                self._asking.give_back(guess.known_by)
                return [Guess(known_by=guess.known_by, came="false")]
            case _:
                return []

    def message(self, send: Send, *, is_guess: bool) -> tuple[Send | None, list[Frame]]:
        """Return the utterance as a message, and the frames about it; None: it waits for `response.create`."""
        self._now.text = send.content
        if not self._creates:
            return None, [] if is_guess else self._commit(send.content, State.WAITING)
        if is_guess:
            self._guess = _Guess(send.client_msg_id, send.content)
            asked = self._asking.say(send, self._now.item_id)
            return asked, [Guess(known_by=send.client_msg_id, came="up")]
        told = self._commit(send.content, State.WAITING)
        return self._asking.say(send, self._now.item_id), told

    def refused(self, known_by: str) -> list[Frame]:
        """Note that a message was refused: its utterance waits, as any item."""
        self._asking.give_back(known_by)
        if self._guess is not None and self._guess.known_by == known_by:
            self._guess = None
        return [Guess(known_by=known_by, came="void")]

    @property
    def _creates(self) -> bool:
        sound = self._asking.settings.sound
        return sound is not None and sound.creates

    @property
    def _interrupts(self) -> bool:
        sound = self._asking.settings.sound
        return sound is not None and sound.interrupts

    @property
    def _transcribes(self) -> bool:
        sound = self._asking.settings.sound
        return sound is not None and sound.transcription is not None

    def _lasted(self) -> int:
        """Return the length of the last utterance in ms; without detection, that of the sound sent for it."""
        now, sent_ms = self._now, self._buffer.ended_ms
        self._buffer.ended_ms = 0.0
        if now.started_ms is None:
            return round(sent_ms)
        return max(0, (now.stopped_ms or 0) - now.started_ms)

    def _start(self) -> list[Frame]:
        now = self._now
        now.is_told = True
        return _said(SpeechStarted(audio_start_ms=now.started_ms or 0, item_id=now.item_id))

    def _stop(self) -> list[Frame]:
        return _said(SpeechStopped(audio_end_ms=self._now.stopped_ms or 0, item_id=self._now.item_id))

    def _words(self, text: str) -> list[Frame]:
        """Take the words so far; each text extends the one before."""
        if not self._transcribes or not text.startswith(self._now.told) or text == self._now.told:
            return []
        more, self._now.told = text[len(self._now.told) :], text
        return _said(TranscriptDelta(item_id=self._now.item_id, delta=more))

    def _commit(self, text: str, state: State) -> list[Frame]:
        now = self._now
        if now.is_committed:  # a second message of one utterance, as behind a forgotten one
            self._now = now = _Utterance()
        now.is_committed = True
        is_kept = state is State.WAITING and not self._asking.settings.transcribes
        gone = self._asking.make_room(text) if is_kept else []
        item = Item(item_id=now.item_id, role="user", text=text, state=state, sound_ms=0)
        if self._asking.settings.transcribes:  # nothing will answer it
            previous = self._items.store(msgspec.structs.replace(item, state=State.STORED))
        else:
            previous = self._items.create(item, behind=None)
        shown = item.shown()
        if self._transcribes and isinstance(shown, server_events.Message):
            unheard = server_events.SpokenContent("input_audio", None)
            shown = msgspec.structs.replace(shown, content=(unheard,))
        events: list[ServerEvent] = [
            *gone,
            Committed(previous_item_id=previous, item_id=now.item_id),
            ItemAdded(previous_item_id=previous, item=shown),
            ItemDone(previous_item_id=previous, item=shown),
        ]
        if self._transcribes:
            usage = Duration(now.ms / 1000)
            events.append(TranscriptCompleted(item_id=now.item_id, transcript=text, usage=usage))
        return _said(*events)


class _Guess:
    """The words that were understood at a pause."""

    __slots__ = ("known_by", "text")

    def __init__(self, known_by: str, text: str) -> None:
        self.known_by = known_by
        self.text = text


class _Buffer:
    """Received sound in ms. `ended_ms`: committed sound that is not understood yet."""

    __slots__ = ("ended_ms", "ms")

    def __init__(self) -> None:
        self.ms = self.ended_ms = 0.0


class _Utterance:
    """The words between two silences. `told`: those that its client knows; `ms`: their length."""

    __slots__ = ("is_committed", "is_told", "item_id", "ms", "started_ms", "stopped_ms", "text", "told")

    def __init__(self, started_ms: int | None = None) -> None:
        self.item_id = f"item_{secrets.token_hex(12)}"
        self.started_ms = started_ms
        self.stopped_ms: int | None = None
        self.is_told = self.is_committed = False
        self.text = self.told = ""
        self.ms = 0


def _said(*events: ServerEvent) -> list[Frame]:
    return [Said(events=events)]
