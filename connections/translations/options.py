"""The options of a session's translation, as its client wants them. Pure."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import UnsetType

from connections.protocol.frames import InterpretStart
from connections.translations.events import Audio, Input, Output, SessionOptions, Transcription
from sessions.interpreting.languages import AUTO
from sessions.records import Interpreting, PublishPolicy

T = TypeVar("T")


class TranslationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The languages, and when words are told. `target`: None: not set yet.

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

    def interpreting(self) -> Interpreting | None:
        """Return what the model is asked, once the target is known."""
        return None if self.target is None else Interpreting(self.source, self.target, self.told, self.wait)


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
