"""Converts the events of a session's interpretations to a translation session's. Pure, except for waits for an end.

A session sends what it appended, and its translation: each character once, in order, over all of its interpretations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from connections.realtime.problems import error_event
from connections.realtime.server_events import ServerEvent
from connections.translations.events import InputDelta, OutputDelta, SessionClosed
from connections.wire.errors import Close, CloseCode
from connections.wire.frames import Error, Frame, ServerFrame
from sessions.events import Accepted, Deleted, Delta, Done, Gap, Reason, SourceText
from sessions.interpreting.scripts import joint

ENDED_S = 5.0
"""How long to wait for the end of an interpretation, or its growth, that the store reported."""
TAIL = 8
"""Last characters of the translation, which determine how the next interpretation is joined."""
_NAMES = {
    "target": "session.audio.output.language",
    "source": "session.audio.input.language",
    "language": "session.audio.input.language",
    "content": "text",
}
"""This door's names of a turn's fields."""
_LOST = Close(CloseCode.OVERLOAD, "Some of the translation could not be sent; reconnect.")
_STOPPED = {
    Reason.CANCELLED: (
        "translation_stopped",
        "The translation was stopped elsewhere; later text is translated.",
    ),
    Reason.LENGTH: (
        "translation_cut",
        "The model reached its limit of tokens: the rest of this text is not translated, later text is.",
    ),
    Reason.TIMEOUT: (
        "translation_timed_out",
        "The translation ended: the pause was too long, or the model was too slow. Later text is translated.",
    ),
    Reason.FILTERED: ("content_filter", "A filter of this server ended the translation of the text so far."),
}


class Said(ServerFrame, frozen=True, kw_only=True, tag="translations"):
    """Events of this door, in order with all other frames."""

    events: tuple[ServerEvent, ...]


class Interpretation:
    """An interpretation of this session. `chars`: of its source, as far as known; `over`: its end was published.

    Other connections may grow its source, too.
    """

    __slots__ = ("_news", "chars", "known_by", "over", "turn_id")

    def __init__(self, known_by: str) -> None:
        self.known_by = known_by
        self.turn_id: str | None = None
        self.chars = 0
        self.over = asyncio.Event()
        self._news = asyncio.Event()

    def grew(self, chars: int) -> None:
        """Note that its source has at least so many characters."""
        self.chars = max(self.chars, chars)
        self._news.set()

    def end(self) -> None:
        """Note that its end was published."""
        self.over.set()
        self._news.set()

    async def goes_on_from(self, chars: int) -> bool:
        """Wait a moment for its end, or for more of its source than this; return whether that came."""
        try:
            async with asyncio.timeout(ENDED_S):
                while not self.over.is_set() and self.chars <= chars:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return False
        return True


class Telling:
    """One session as its client knows it. `lost`: called if something could not be sent."""

    def __init__(self, lost: Callable[[Close], None] = lambda _: None) -> None:
        self.lost = lost
        self.at_hand: Interpretation | None = None
        self.tells_source = False
        self.hears: Callable[[str], None] | None = None
        self._target, self._source = "", ""
        self._blank: str | None = None

    def begin(self, known_by: str) -> Interpretation:
        """Begin another interpretation; those before it are over."""
        self.at_hand = Interpretation(known_by)
        return self.at_hand

    def tell(self, frame: Frame) -> Sequence[ServerEvent]:
        """Return the events of a frame; none if the protocol has no word for it."""
        match frame:
            case Said():
                return frame.events
            case Accepted():
                self._accepted(frame)
            case SourceText() if self.at_hand is not None and self._is_ours(frame.turn_id):
                self.at_hand.grew(frame.off + len(frame.text))
                return self._source_grew(frame)
            case Delta() if self._is_ours(frame.turn_id):
                return self._translated(frame)
            case Done() if self._is_ours(frame.turn_id):
                return self._done(frame)
            case Deleted():
                self._end()
            case Gap():
                self.lost(_LOST)
            case Error():
                return (error_event(renamed(frame)),)
        return ()

    def _is_ours(self, turn_id: str) -> bool:
        return self.at_hand is not None and self.at_hand.turn_id == turn_id

    def _accepted(self, accepted: Accepted) -> None:
        ours = self.at_hand
        if ours is not None and accepted.client_msg_id == ours.known_by and ours.turn_id is None:
            ours.turn_id = accepted.turn_id
            self._blank = None

    def _source_grew(self, source: SourceText) -> list[ServerEvent]:
        if self._blank is None and source.text.strip():
            leading = source.text[: len(source.text) - len(source.text.lstrip())]
            self._blank = self._source[len(self._source.rstrip()) :] + leading
        self._source = (self._source + source.text)[-TAIL:]
        return [InputDelta(delta=source.text)] if self.tells_source and source.text else []

    def _translated(self, delta: Delta) -> list[ServerEvent]:
        between = "" if delta.off else joint(self._target, self._blank or "")
        text = between + delta.text
        self._target = (self._target + text)[-TAIL:]
        if self.hears is not None:
            self.hears(text)
        return [OutputDelta(delta=text)]

    def _done(self, done: Done) -> list[ServerEvent]:
        self._end()
        if done.error is not None:
            return [error_event(Error(code=done.error.code, message=done.error.message))]
        if (stopped := _STOPPED.get(done.reason)) is not None:
            return [error_event(Error(code=stopped[0], message=stopped[1]))]
        return []

    def _end(self) -> None:
        if self.at_hand is not None:
            self.at_hand.end()
            self.at_hand = None


def closed() -> Said:
    """Return the last event of a session."""
    return Said(events=(SessionClosed(),))


def renamed(error: Error) -> Error:
    """Return a refusal with this door's name of its field."""
    for ours, theirs in _NAMES.items():
        if error.message.startswith(f"`{ours}`"):
            message = f"`{theirs}`{error.message[len(ours) + 2 :]}"
            return msgspec.structs.replace(error, message=message)
    return error
