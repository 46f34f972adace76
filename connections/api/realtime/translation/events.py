"""The events of translation sessions, and the encoder that makes them of the session's interpretations.

The types are OpenAI's (API reference: Translation client events, server events). Our own are typed text
(`session.input_text_buffer.append`), the language of the source, and when words are told. A session sends what it
appended, and its translation: each character once, in order, over all of its interpretations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from connections.api.realtime.client_events import ClientEvent
from connections.api.realtime.server_events import ServerEvent, error_event
from connections.protocol.base import ServerFrame
from connections.protocol.errors import Close, CloseCode
from connections.protocol.frames import Error, Frame, LanguageTag
from sessions.events import Accepted, Deleted, Delta, Done, Gap, Reason, SourceText
from sessions.records import PublishPolicy
from sessions.translation.sentences import joint

Wait = Annotated[int, Meta(ge=1, le=20)]
VoiceName = Annotated[str, Meta(min_length=1, max_length=64)]
END_TIMEOUT_S = 5.0
"""How long to wait for the end of an interpretation, or its growth, that the store reported."""
TAIL = 8
"""Last characters of the translation, which determine how the next interpretation is joined."""
_NAMES = {
    "target": "session.audio.output.language",
    "source": "session.audio.input.language",
    "language": "session.audio.input.language",
    "content": "text",
}
"""This endpoint's names of a turn's fields."""
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


class Transcription(msgspec.Struct, frozen=True):
    """The source is sent, too. `model`: the client's name of the recognizer, or nothing for typed text."""

    model: Annotated[str, Meta(max_length=128)] = ""


class InputOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the source. `language`: our own; `noise_reduction` has no effect."""

    transcription: Transcription | UnsetType | None = UNSET
    language: LanguageTag | UnsetType | None = UNSET


class OutputOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the translation. `voice`: our own; null: text only."""

    language: LanguageTag | UnsetType = UNSET
    voice: VoiceName | UnsetType | None = UNSET


class AudioOptions(msgspec.Struct, frozen=True):
    """Options of both sides."""

    input: InputOptions = InputOptions()
    output: OutputOptions = OutputOptions()


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options that change from now on. `told`, `wait`: our own, as in `interpret.start`."""

    audio: AudioOptions = AudioOptions()
    told: PublishPolicy | UnsetType = UNSET
    wait: Wait | UnsetType = UNSET


class SessionUpdate(ClientEvent, frozen=True, kw_only=True, tag="session.update"):
    """Changes the options of the translation from now on."""

    session: SessionOptions


class TextAppend(ClientEvent, frozen=True, kw_only=True, tag="session.input_text_buffer.append"):
    """More typed text. Words end with a blank, or a mark."""

    text: str


class AudioAppend(ClientEvent, frozen=True, kw_only=True, tag="session.input_audio_buffer.append"):
    """More speech: PCM16 at 24,000 Hz with one channel, little-endian, in base64."""

    audio: str


class SessionClose(ClientEvent, frozen=True, kw_only=True, tag="session.close"):
    """Ends the source: the rest is translated, then the session is closed."""


AnyClientEvent = SessionUpdate | TextAppend | AudioAppend | SessionClose


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """The current options of the source."""

    transcription: Transcription | None
    noise_reduction: None = None
    language: str


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """The current options of the translation. `language`: null until the client sets it."""

    language: str | None
    voice: str | None


class Audio(msgspec.Struct, frozen=True):
    """The current options of both sides."""

    input: Input
    output: Output


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A session in its current state. `expires_at`: Unix seconds; `conversation_id`: our own, of its history."""

    id: str
    type: Literal["translation"] = "translation"
    model: str
    expires_at: int
    audio: Audio
    told: PublishPolicy
    wait: int
    conversation_id: str


class SessionCreated(ServerEvent, frozen=True, kw_only=True, tag="session.created"):
    """The first event."""

    session: Session


class SessionUpdated(ServerEvent, frozen=True, kw_only=True, tag="session.updated"):
    """The options from now on."""

    session: Session


class SessionClosed(ServerEvent, frozen=True, kw_only=True, tag="session.closed"):
    """The last event."""


class InputDelta(ServerEvent, frozen=True, kw_only=True, tag="session.input_transcript.delta"):
    """More of the source, which is never revised. `elapsed_ms`: of the received sound, if there is any."""

    delta: str
    elapsed_ms: int | UnsetType = UNSET


class OutputDelta(ServerEvent, frozen=True, kw_only=True, tag="session.output_transcript.delta"):
    """More of the translation, which is never revised."""

    delta: str
    elapsed_ms: int | UnsetType = UNSET


class AudioDelta(ServerEvent, frozen=True, kw_only=True, tag="session.output_audio.delta"):
    """More of the translation as sound, in base64."""

    delta: str
    format: Literal["pcm16"] = "pcm16"
    sample_rate: int = 24_000
    channels: int = 1


class TranslationFrame(ServerFrame, frozen=True, kw_only=True, tag="translations"):
    """Events of this endpoint, in order with all other frames."""

    events: tuple[ServerEvent, ...]


class Interpretation:
    """An interpretation of this session. `chars`: of its source, as far as known; `over`: its end was published.

    Other connections may grow its source, too.
    """

    __slots__ = ("_changed", "chars", "client_msg_id", "over", "turn_id")

    def __init__(self, client_msg_id: str) -> None:
        self.client_msg_id = client_msg_id
        self.turn_id: str | None = None
        self.chars = 0
        self.over = asyncio.Event()
        self._changed = asyncio.Event()

    def note_chars(self, chars: int) -> None:
        """Note that its source has at least so many characters."""
        self.chars = max(self.chars, chars)
        self._changed.set()

    def end(self) -> None:
        """Note that its end was published."""
        self.over.set()
        self._changed.set()

    async def continues_after(self, chars: int) -> bool:
        """Wait a moment for its end, or for more of its source than this; return whether that came."""
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                while not self.over.is_set() and self.chars <= chars:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True


class TranslationEventEncoder:
    """One session as its client knows it. `lost`: called if something could not be sent."""

    def __init__(self, lost: Callable[[Close], None] = lambda _: None) -> None:
        self.lost = lost
        self.current: Interpretation | None = None
        self.sends_source = False
        self.on_translation: Callable[[str], None] | None = None
        self._target, self._source = "", ""
        self._separator: str | None = None

    def begin(self, client_msg_id: str) -> Interpretation:
        """Begin another interpretation; those before it are over."""
        self.current = Interpretation(client_msg_id)
        return self.current

    def encode(self, frame: Frame) -> Sequence[ServerEvent]:
        """Return the events of a frame; none if the protocol has no word for it."""
        match frame:
            case TranslationFrame():
                return frame.events
            case Accepted():
                self._accepted(frame)
            case SourceText() if self.current is not None and self._is_ours(frame.turn_id):
                self.current.note_chars(frame.off + len(frame.text))
                return self._source_text(frame)
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
        return self.current is not None and self.current.turn_id == turn_id

    def _accepted(self, accepted: Accepted) -> None:
        ours = self.current
        if ours is not None and accepted.client_msg_id == ours.client_msg_id and ours.turn_id is None:
            ours.turn_id = accepted.turn_id
            self._separator = None

    def _source_text(self, source: SourceText) -> list[ServerEvent]:
        if self._separator is None and source.text.strip():
            leading = source.text[: len(source.text) - len(source.text.lstrip())]
            self._separator = self._source[len(self._source.rstrip()) :] + leading
        self._source = (self._source + source.text)[-TAIL:]
        return [InputDelta(delta=source.text)] if self.sends_source and source.text else []

    def _translated(self, delta: Delta) -> list[ServerEvent]:
        between = "" if delta.off else joint(self._target, self._separator or "")
        text = between + delta.text
        self._target = (self._target + text)[-TAIL:]
        if self.on_translation is not None:
            self.on_translation(text)
        return [OutputDelta(delta=text)]

    def _done(self, done: Done) -> list[ServerEvent]:
        self._end()
        if done.error is not None:
            return [error_event(Error(code=done.error.code, message=done.error.message))]
        if (stopped := _STOPPED.get(done.reason)) is not None:
            return [error_event(Error(code=stopped[0], message=stopped[1]))]
        return []

    def _end(self) -> None:
        if self.current is not None:
            self.current.end()
            self.current = None


def closed() -> TranslationFrame:
    """Return the last event of a session."""
    return TranslationFrame(events=(SessionClosed(),))


def renamed(error: Error) -> Error:
    """Return a refusal with this endpoint's name of its field."""
    for ours, theirs in _NAMES.items():
        if error.message.startswith(f"`{ours}`"):
            message = f"`{theirs}`{error.message[len(ours) + 2 :]}"
            return msgspec.structs.replace(error, message=message)
    return error
