"""Converts what is heard to the session's events: an utterance becomes an item, and a message of the session. Pure.

Speech over a reply is reported once it ends the reply, so that a cough empties no player. A guess is reported
once it is right.
"""

from __future__ import annotations

import secrets

import msgspec

from connections.protocol.frames import Frame, Send
from connections.realtime import server_events
from connections.realtime.audio.audio_events import (
    Committed,
    Duration,
    SpeechStarted,
    SpeechStopped,
    TranscriptCompleted,
    TranscriptDelta,
)
from connections.realtime.audio.spoken_replies import Speculation
from connections.realtime.event_encoder import RealtimeFrame
from connections.realtime.items import Item, Items, ItemState
from connections.realtime.server_events import ItemAdded, ItemDone, ServerEvent
from connections.realtime.session import RealtimeSession
from connections.voice.turn_taking import Action, ReplyAction, SpeechEdge, TranscriptUpdate


class UtteranceTracker:
    """One session's microphone."""

    def __init__(self, items: Items, session: RealtimeSession) -> None:
        self._items = items
        self._session = session
        self._utterance = _Utterance()
        self._guess: _SpeculativeText | None = None
        self._buffer = _Buffer()

    def take(self, ms: float) -> None:
        """Count received sound."""
        self._buffer.ms += ms

    def end_utterance(self) -> None:
        """Note that the current utterance is complete."""
        self._buffer.ended_ms, self._buffer.ms = self._buffer.ms, 0.0

    def forget(self) -> None:
        """Forget the sound so far: it is not part of the next utterance."""
        self._buffer = _Buffer()

    def on_action(self, act: Action, *, talking: bool) -> list[Frame]:  # noqa: PLR0911 - one for each kind
        """Return the frames about an act. `talking`: a reply is being made or played."""
        match act:
            case SpeechEdge(True, at_ms):
                self._utterance = _Utterance(started_ms=at_ms)
                return [] if talking and self._interrupts else self._start()
            case SpeechEdge(False, at_ms):
                if self._utterance.is_committed:  # without detection it is all sound since then
                    self._utterance = _Utterance()
                self._utterance.stopped_ms = at_ms
                self._utterance.ms = self._duration_ms()
                return self._stop() if self._utterance.is_announced else []
            case TranscriptUpdate(text, False):
                return self._extend_transcript(text) if self._utterance.is_announced else []
            case ReplyAction.CUT if (
                not self._utterance.is_announced and self._utterance.started_ms is not None
            ):
                stop = [] if self._utterance.stopped_ms is None else self._stop()
                return [*self._start(), *stop]
            case ReplyAction.CONFIRM if (guess := self._guess) is not None:
                self._guess = None
                return [
                    *self._commit(guess.text, ItemState.PENDING),
                    Speculation(request_id=guess.request_id, status="true"),
                ]
            case ReplyAction.CONFIRM:  # nothing was sent
                return self._commit(self._utterance.text, ItemState.WAITING)
            case ReplyAction.ROLL_BACK if (guess := self._guess) is not None:
                self._guess = None
                self._session.requeue(guess.request_id)
                return [Speculation(request_id=guess.request_id, status="false")]
            case _:
                return []

    def message(self, send: Send, *, is_guess: bool) -> tuple[Send | None, list[Frame]]:
        """Return the utterance as a message, and the frames about it; None: it waits for `response.create`."""
        self._utterance.text = send.content
        if not self._creates:
            return None, [] if is_guess else self._commit(send.content, ItemState.WAITING)
        if is_guess:
            self._guess = _SpeculativeText(send.client_msg_id, send.content)
            message = self._session.speech_message(send, self._utterance.item_id)
            return message, [Speculation(request_id=send.client_msg_id, status="up")]
        sent = self._commit(send.content, ItemState.WAITING)
        return self._session.speech_message(send, self._utterance.item_id), sent

    def refused(self, request_id: str) -> list[Frame]:
        """Note that a message was refused: its utterance waits, as any item."""
        self._session.requeue(request_id)
        if self._guess is not None and self._guess.request_id == request_id:
            self._guess = None
        return [Speculation(request_id=request_id, status="void")]

    @property
    def _creates(self) -> bool:
        sound = self._session.settings.sound
        return sound is not None and sound.creates

    @property
    def _interrupts(self) -> bool:
        sound = self._session.settings.sound
        return sound is not None and sound.interrupts

    @property
    def _transcribes(self) -> bool:
        sound = self._session.settings.sound
        return sound is not None and sound.transcription is not None

    def _duration_ms(self) -> int:
        """Return the length of the last utterance in ms; without detection, that of the sound sent for it."""
        utterance, sent_ms = self._utterance, self._buffer.ended_ms
        self._buffer.ended_ms = 0.0
        if utterance.started_ms is None:
            return round(sent_ms)
        return max(0, (utterance.stopped_ms or 0) - utterance.started_ms)

    def _start(self) -> list[Frame]:
        utterance = self._utterance
        utterance.is_announced = True
        return _frames(SpeechStarted(audio_start_ms=utterance.started_ms or 0, item_id=utterance.item_id))

    def _stop(self) -> list[Frame]:
        return _frames(
            SpeechStopped(audio_end_ms=self._utterance.stopped_ms or 0, item_id=self._utterance.item_id)
        )

    def _extend_transcript(self, text: str) -> list[Frame]:
        """Take the words so far; each text extends the one before."""
        if not self._transcribes or not text.startswith(self._utterance.sent) or text == self._utterance.sent:
            return []
        more, self._utterance.sent = text[len(self._utterance.sent) :], text
        return _frames(TranscriptDelta(item_id=self._utterance.item_id, delta=more))

    def _commit(self, text: str, state: ItemState) -> list[Frame]:
        utterance = self._utterance
        if utterance.is_committed:  # a second message of one utterance, as after a forgotten one
            self._utterance = utterance = _Utterance()
        utterance.is_committed = True
        is_kept = state is ItemState.WAITING and not self._session.settings.transcribes
        gone = self._session.evict_for(text) if is_kept else []
        item = Item(item_id=utterance.item_id, role="user", text=text, state=state, sound_ms=0)
        if self._session.settings.transcribes:  # nothing will answer it
            previous = self._items.store(msgspec.structs.replace(item, state=ItemState.STORED))
        else:
            previous = self._items.create(item, after=None)
        shown = item.shown()
        if self._transcribes and isinstance(shown, server_events.Message):
            unheard = server_events.SpokenContent("input_audio", None)
            shown = msgspec.structs.replace(shown, content=(unheard,))
        events: list[ServerEvent] = [
            *gone,
            Committed(previous_item_id=previous, item_id=utterance.item_id),
            ItemAdded(previous_item_id=previous, item=shown),
            ItemDone(previous_item_id=previous, item=shown),
        ]
        if self._transcribes:
            usage = Duration(utterance.ms / 1000)
            events.append(TranscriptCompleted(item_id=utterance.item_id, transcript=text, usage=usage))
        return _frames(*events)


class _SpeculativeText:
    """The words that were understood at a pause."""

    __slots__ = ("request_id", "text")

    def __init__(self, request_id: str, text: str) -> None:
        self.request_id = request_id
        self.text = text


class _Buffer:
    """Received sound in ms. `ended_ms`: committed sound that is not understood yet."""

    __slots__ = ("ended_ms", "ms")

    def __init__(self) -> None:
        self.ms = self.ended_ms = 0.0


class _Utterance:
    """The words between two silences. `sent`: those that its client knows; `ms`: their length."""

    __slots__ = ("is_announced", "is_committed", "item_id", "ms", "sent", "started_ms", "stopped_ms", "text")

    def __init__(self, started_ms: int | None = None) -> None:
        self.item_id = f"item_{secrets.token_hex(12)}"
        self.started_ms = started_ms
        self.stopped_ms: int | None = None
        self.is_announced = self.is_committed = False
        self.text = self.sent = ""
        self.ms = 0


def _frames(*events: ServerEvent) -> list[Frame]:
    return [RealtimeFrame(events=events)]
