"""One session as its client shapes it: its options, and the text that waits. Pure."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
from msgspec import UnsetType

from connections.api.realtime.server_events import InvalidEvent, ServerEvent
from connections.api.realtime.translation.events import (
    Audio,
    Input,
    Output,
    Session,
    SessionCreated,
    SessionOptions,
    SessionUpdate,
    SessionUpdated,
    Transcription,
)
from connections.protocol.frames import InterpretStart
from engine.messages import ModelFacts
from sessions.errors import Overloaded
from sessions.languages import AUTO
from sessions.records import PublishPolicy, SourceState
from sessions.translation.interpretation import MAX_SOURCE_CHARS
from sessions.translation.sentences import CLOSERS, ENDS_AT_ONCE, SENTENCE_ENDS
from sessions.translation.translator import Translator

_LANGUAGE = "session.audio.output.language"
_VOICE = "session.audio.output.voice"
_NO_TARGET = "The language to translate into is missing: set it by `session.update` first."
_CLOSING = "The session is being closed: nothing can follow `session.close`."
T = TypeVar("T")
MAX_QUEUED_CHARS = 32_000
"""Characters that may wait; more are refused until some were taken."""
MAX_QUEUED_PARTS = 32
"""Parts of different wishes: each is an interpretation of its own, however short."""
FULL_CHARS = 24_000
"""An interpretation of this length ends with its sentence, and the next one begins."""


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
        """Change the options for later text. Raises BadParams if the model can't follow them, Invalid."""
        self._refuse_closed()
        settings = self.settings.changed(event.session)
        interpreting, facts = settings.options.interpreting(), self._facts()
        if interpreting is not None and facts is not None:
            Translator.refuse_unable(facts, interpreting)
        self._refuse_unknown(settings.options.voice)
        self.settings = settings
        self.queue.add("", settings.options)
        return SessionUpdated(session=self._shown())

    def _refuse_unknown(self, voice: str | None) -> None:
        if voice is None or voice in self._voices:
            return
        if not self._voices:
            raise InvalidEvent("can't be had: this server has no voice.", field=_VOICE)
        raise InvalidEvent(f"is none of this server's voices, such as {self._voices[0]}.", field=_VOICE)

    def append(self, text: str, ref: str | None) -> None:
        """Add text; an empty one has no effect. Raises InvalidEvent, Overloaded."""
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
        return Session(
            id=self._session_id,
            model=self.model,
            expires_at=self._expires_at,
            audio=self.settings.shown(),
            told=self.settings.options.told,
            wait=self.settings.options.wait,
            conversation_id=self.conversation_id,
        )


class TranslationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The languages, and when words are published. `target`: None: not set yet.

    `voice`: None: a voice of the language, if the source is spoken.
    """

    source: str = AUTO
    target: str | None = None
    told: PublishPolicy = "agreement"
    wait: int = 3
    voice: str | None = None

    def start(self, *, client_msg_id: str, conversation_id: str, model: str) -> InterpretStart:
        """Return the frame that begins such an interpretation. A client that leaves ends it."""
        assert self.target is not None  # noqa: S101 - nothing is taken before it is said
        return InterpretStart(
            client_msg_id=client_msg_id,
            conversation_id=conversation_id,
            model=model,
            source=self.source,
            target=self.target,
            told=self.told,
            wait=self.wait,
        )

    def interpreting(self) -> SourceState | None:
        """Return what the model is asked, once the target is known."""
        return None if self.target is None else SourceState(self.source, self.target, self.told, self.wait)


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
            told=_value_or(update.told, self.options.told),
            wait=_value_or(update.wait, self.options.wait),
            voice=_value_or(output.voice, self.options.voice),
        )
        return Settings(options=options, transcription=_value_or(given.transcription, self.transcription))

    def shown(self) -> Audio:
        """Return the settings as the session shows them."""
        return Audio(
            Input(transcription=self.transcription, language=self.options.source),
            Output(language=self.options.target, voice=self.options.voice),
        )


def _value_or(value: T | UnsetType, before: T) -> T:
    return before if isinstance(value, UnsetType) else value


class QueuedText(msgspec.Struct, frozen=True):
    """Text for one interpretation, with one set of options. `ends`: no text follows it there.

    `ref`: of the event with its newest text.
    """

    text: str
    options: TranslationOptions
    ends: bool = False
    ref: str | None = None


class InputQueue:
    """The waiting parts. `chars`: their length. Only the last one may be empty: it has new options."""

    __slots__ = ("_parts", "chars")

    def __init__(self) -> None:
        self._parts: deque[QueuedText] = deque()
        self.chars = 0

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, text: str, options: TranslationOptions, *, ref: str | None = None) -> None:
        """Add text. Raises Overloaded."""
        if self.chars + len(text) > MAX_QUEUED_CHARS:
            raise Overloaded(f"{self.chars} characters wait to be translated; append more in a moment.")
        if text and self._begins(options) and self._filled >= MAX_QUEUED_PARTS:
            raise Overloaded(
                f"{self._filled} pieces in changing languages wait to be translated; append more in a moment."
            )
        self.chars += len(text)
        if self._parts and not self._parts[-1].text:  # the only part without text is the last one
            self._parts.pop()
        last = (
            self._parts.pop()
            if self._parts and self._parts[-1].options == options
            else QueuedText("", options)
        )
        self._parts.append(QueuedText(last.text + text, options, ref=ref or last.ref))

    @property
    def _filled(self) -> int:
        return len(self._parts) - (bool(self._parts) and not self._parts[-1].text)

    def _begins(self, options: TranslationOptions) -> bool:
        """Whether text under this wish is a part of its own."""
        last = next((part for part in reversed(self._parts) if part.text), None)
        return last is None or last.options != options

    def head(self) -> QueuedText | None:
        """Return what is translated next; None if nothing waits."""
        return self._parts[0] if self._parts else None

    def take(self, chars: int) -> QueuedText:
        """Remove and return what fits an interpretation that has so many characters."""
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
    """Return how much of a text fits into a source of so many characters, and whether that ends the source."""
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
    """Return the end of the first sentence that ends there or later, with its closing characters."""
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
