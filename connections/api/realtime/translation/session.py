"""One translation session: its options, the text that waits, its events, and their encoder. Pure.

The types are OpenAI's (API reference: Translation client events, server events). Our own are typed text
(`session.input_text_buffer.append`), the language of the source, and when words are sent. A session sends what it
appended, and its translation: each character once, in order, over all of its interpretations.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from connections.api.realtime.events import NULL, ClientEvent, InvalidEvent, ServerEvent, error_event
from connections.protocol.base import ServerFrame
from connections.protocol.errors import Close, CloseCode
from connections.protocol.frames import Error, Frame, LanguageTag
from engine.messages import ModelFacts
from sessions.errors import Overloaded
from sessions.events import Accepted, Deleted, Delta, Done, Gap, Reason, SourceText
from sessions.languages import AUTO
from sessions.records import PublishPolicy, SourceState
from sessions.translation.interpretation import MAX_SOURCE_CHARS
from sessions.translation.sentences import CLOSERS, ENDS_AT_ONCE, SENTENCE_ENDS, joint
from sessions.translation.translator import Translator

_LANGUAGE = "session.audio.output.language"
_VOICE = "session.audio.output.voice"
_NO_TARGET = "The target language is missing: set it with `session.update` first."
_CLOSING = "The session is closing: no event can follow `session.close`."
T = TypeVar("T")
MAX_QUEUED_CHARS = 32_000
"""Characters that may wait; more are refused until some were taken."""
MAX_QUEUED_PARTS = 32
"""Parts with different options: each is one interpretation, however short."""
FULL_CHARS = 24_000
"""An interpretation of this length ends with its sentence, and the next one begins."""
Wait = Annotated[int, Meta(ge=1, le=20)]
VoiceName = Annotated[str, Meta(min_length=1, max_length=64)]
END_TIMEOUT_S = 5.0
"""How long to wait for an interpretation's end or growth that the store reported."""
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
    Reason.CANCELLED: Error(
        code="translation_stopped",
        message="The translation of this text was stopped elsewhere; later text will be translated.",
    ),
    Reason.LENGTH: Error(
        code="translation_cut",
        message="The model reached its token limit: the rest of this text is not translated; later text will be.",
    ),
    Reason.TIMEOUT: Error(
        code="translation_timed_out",
        message="The translation ended: the pause was too long, or the model was too slow. Later text is translated.",
    ),
    Reason.FILTERED: Error(
        code="content_filter", message="A filter stopped the translation of the text so far."
    ),
}


class TranslationSession:
    """`facts`: the model's; `expires_at`: of its client's token, in Unix seconds; `voices`: the available ones."""

    def __init__(
        self,
        *,
        conversation_id: str,
        model: str,
        facts: Callable[[], ModelFacts | None],
        expires_at: int,
        voices: Sequence[str] = (),
    ) -> None:
        self.conversation_id = conversation_id
        self.model = model
        self.settings = Settings()
        self.queue = InputQueue()
        self.is_closing = self._input_ended = False
        self._facts = facts
        self._expires_at = expires_at
        self._voices = voices
        self._session_id = f"sess_{secrets.token_hex(12)}"

    def created(self) -> ServerEvent:
        """Return the first event of a session."""
        return SessionCreated(session=self._shown())

    def update(self, event: SessionUpdate) -> ServerEvent:
        """Change options for later text. Raises InvalidEvent; BadParams if the model can't follow."""
        self._refuse_closed()
        settings = self.settings.changed(event.session)
        options, facts = settings.options, self._facts()
        if options.target is not None and facts is not None:
            policy = options.publish_policy
            wanted = SourceState(options.source, options.target, policy, options.wait_words)
            Translator.refuse_unable(facts, wanted)
        if options.voice is not None and options.voice not in self._voices:
            why = "is not available: this server has no voice."
            if self._voices:
                why = f"is not a voice of this server. Available voices include {self._voices[0]}."
            raise InvalidEvent(why, field=_VOICE)
        self.settings = settings
        return SessionUpdated(session=self._shown())

    def append(self, text: str, ref: str | None) -> None:
        """Add text; empty text has no effect. Raises InvalidEvent, Overloaded."""
        self.check()
        if text:
            self.queue.add(text, self.settings.options, ref=ref)

    def check(self) -> None:
        """Raise InvalidEvent if nothing can be translated now."""
        self._refuse_closed()
        if self.settings.options.target is None:
            raise InvalidEvent(_NO_TARGET, field=_LANGUAGE, code="missing_required_parameter")

    def end_input(self) -> None:
        """Note that its client sends no more. May be called again."""
        self._input_ended = True

    def close(self) -> None:
        """End the source."""
        self._input_ended = self.is_closing = True

    def _refuse_closed(self) -> None:
        if self._input_ended:
            raise InvalidEvent(_CLOSING, field="type", code="session_closing")

    def _shown(self) -> Session:
        options = self.settings.options
        return Session(
            id=self._session_id,
            model=self.model,
            expires_at=self._expires_at,
            audio=Audio(
                InputOptions(transcription=self.settings.transcription, language=options.source),
                Output(language=options.target, voice=options.voice),
            ),
            publish_policy=options.publish_policy,
            wait_words=options.wait_words,
            conversation_id=self.conversation_id,
        )


class TranslationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The languages, and when words are published. `target`: None: not set yet.

    `voice`: None: a voice of the language, if the source is spoken.
    """

    source: str = AUTO
    target: str | None = None
    publish_policy: PublishPolicy = "agreement"
    wait_words: int = 3
    voice: str | None = None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a session. `transcription`: the source is sent, too."""

    options: TranslationOptions = TranslationOptions()
    transcription: Transcription | None = None

    def changed(self, update: SessionOptions) -> Settings:
        """Return the settings with a client's changes."""
        given, output = update.audio.input, update.audio.output
        source = AUTO if given.language is None else _value_or(given.language, self.options.source)
        options = TranslationOptions(
            source=source,
            target=_value_or(output.language, self.options.target),
            publish_policy=_value_or(update.publish_policy, self.options.publish_policy),
            wait_words=_value_or(update.wait_words, self.options.wait_words),
            voice=_value_or(output.voice, self.options.voice),
        )
        return Settings(options=options, transcription=_value_or(given.transcription, self.transcription))


def _value_or(value: T | UnsetType, before: T) -> T:
    return before if isinstance(value, UnsetType) else value


class QueuedText(msgspec.Struct, frozen=True):
    """Text for one interpretation, with one set of options. `ends`: it is the last there.

    `ref`: of the event with its newest text.
    """

    text: str
    options: TranslationOptions
    ends: bool = False
    ref: str | None = None


class InputQueue:
    """The waiting parts. `chars`: their length."""

    __slots__ = ("_parts", "chars")

    def __init__(self) -> None:
        self._parts: deque[QueuedText] = deque()
        self.chars = 0

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, text: str, options: TranslationOptions, *, ref: str | None = None) -> None:
        """Add text. Raises Overloaded."""
        if self.chars + len(text) > MAX_QUEUED_CHARS:
            raise Overloaded(f"{self.chars} characters are waiting for translation; append more in a moment.")
        if self._parts and self._parts[-1].options == options:
            last = self._parts.pop()
            self._parts.append(QueuedText(last.text + text, options, ref=ref or last.ref))
        elif len(self._parts) >= MAX_QUEUED_PARTS:
            raise Overloaded(
                f"{len(self)} pieces in changing languages are waiting for translation; append more in a moment."
            )
        else:
            self._parts.append(QueuedText(text, options, ref=ref))
        self.chars += len(text)

    def head(self) -> QueuedText | None:
        """Return what is translated next; None if nothing waits."""
        return self._parts[0] if self._parts else None

    def take(self, chars: int) -> QueuedText:
        """Remove and return what still fits an interpretation of `chars` characters."""
        first = self._parts.popleft()
        end, ends = fitting(first.text, chars)
        if rest := first.text[end:]:
            self._parts.appendleft(QueuedText(rest, first.options, ref=first.ref))
        self.chars -= end
        return QueuedText(first.text[:end], first.options, ends, first.ref)

    def put_back(self, part: QueuedText) -> None:
        """Put a part back to the front."""
        if part.text:
            self._parts.appendleft(part)
            self.chars += len(part.text)

    def drop(self) -> QueuedText:
        """Remove and return the next part, which is not translated."""
        part = self._parts.popleft()
        self.chars -= len(part.text)
        return part


def fitting(text: str, chars: int) -> tuple[int, bool]:
    """Return how much of a text fits into a source of `chars` characters, and whether it fills the source."""
    limit = MAX_SOURCE_CHARS - chars
    if chars + len(text) <= FULL_CHARS:
        return len(text), False
    earliest = max(0, FULL_CHARS - chars)
    if (end := _sentence_end(text, earliest, limit)) is not None:
        return end, True
    if len(text) <= limit:
        return len(text), False
    blanks = (place + 1 for place in range(limit - 1, -1, -1) if text[place].isspace())
    return next(blanks, limit), True


def _sentence_end(text: str, earliest: int, limit: int) -> int | None:
    """Return where the first sentence ends from `earliest` on, with its closing characters."""
    for place in range(earliest, min(len(text), limit)):
        if text[place] == "\n":
            return place + 1
        if text[place] in SENTENCE_ENDS:
            after = place + 1
            while after < len(text) and (text[after] in SENTENCE_ENDS or text[after] in CLOSERS):
                after += 1
            is_closed = after < len(text) and text[after].isspace()
            if after <= limit and (is_closed or text[place] in ENDS_AT_ONCE):
                return after
    return None


class Transcription(msgspec.Struct, frozen=True):
    """The source is sent, too. `model`: the client's name of the recognizer, or nothing for typed text."""

    model: Annotated[str, Meta(max_length=128)] = ""


class InputOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the source, asked for or current. `language`: our own; `noise_reduction` has no effect."""

    transcription: Transcription | UnsetType | None = UNSET
    noise_reduction: msgspec.Raw = NULL
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
    """Options that change from now on. `publish_policy`, `wait_words`: our own, as in `interpret.start`."""

    audio: AudioOptions = AudioOptions()
    publish_policy: PublishPolicy | UnsetType = UNSET
    wait_words: Wait | UnsetType = UNSET


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


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """The current options of the translation. `language`: null until the client sets it."""

    language: str | None
    voice: str | None


class Audio(msgspec.Struct, frozen=True):
    """The current options of both sides."""

    input: InputOptions
    output: Output


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A session in its current state. `expires_at`: Unix seconds; `conversation_id`: our own, of its history."""

    id: str
    type: Literal["translation"] = "translation"
    model: str
    expires_at: int
    audio: Audio
    publish_policy: PublishPolicy
    wait_words: int
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
    """More of the source, which is never revised."""

    delta: str


class OutputDelta(ServerEvent, frozen=True, kw_only=True, tag="session.output_transcript.delta"):
    """More of the translation, which is never revised."""

    delta: str


class AudioDelta(ServerEvent, frozen=True, kw_only=True, tag="session.output_audio.delta"):
    """More of the translation as sound, in base64."""

    delta: str
    format: Literal["pcm16"] = "pcm16"
    sample_rate: int = 24_000
    channels: int = 1


class TranslationFrame(ServerFrame, frozen=True, kw_only=True, tag="translations"):
    """Events of this endpoint, in order with all other frames."""

    events: tuple[ServerEvent, ...]


class Interpretation(msgspec.Struct):
    """An interpretation of this session. `chars`: of its source, as far as known; `over`: its end was published.

    Other connections may grow its source, too.
    """

    client_msg_id: str
    turn_id: str | None = None
    chars: int = 0
    over: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    changed: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    def note_chars(self, chars: int) -> None:
        """Note that its source has at least `chars` characters."""
        self.chars = max(self.chars, chars)
        self.changed.set()

    def end(self) -> None:
        """Note that its end was published."""
        self.over.set()
        self.changed.set()

    async def continues_after(self, chars: int) -> bool:
        """Wait a moment for its end, or more of its source than `chars`; return whether one came."""
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                while not self.over.is_set() and self.chars <= chars:
                    self.changed.clear()
                    await self.changed.wait()
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
                return (error_event(frame, _NAMES),)
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
        return [error_event(_STOPPED[done.reason])] if done.reason in _STOPPED else []

    def _end(self) -> None:
        if self.current is not None:
            self.current.end()
            self.current = None


def closed() -> TranslationFrame:
    """Return the last event of a session."""
    return TranslationFrame(events=(SessionClosed(),))
