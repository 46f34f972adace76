"""The options of a session's translation, as its client wants them. Pure."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import UnsetType

from connections.translations.events import Audio, Input, Output, SessionWishes, Transcription
from connections.wire.frames import InterpretStart
from sessions.interpreting.languages import AUTO
from sessions.records import Interpreting, Told

T = TypeVar("T")


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """The languages, and when words are told. `target`: None: not set yet.

    `voice`: None: a voice of the language, if the source is spoken.
    """

    source: str = AUTO
    target: str | None = None
    told: Told = "agreement"
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

    wish: Wish = Wish()
    transcription: Transcription | None = None

    def changed(self, wishes: SessionWishes) -> Settings:
        """Return the settings with a client's changes."""
        given, made = wishes.audio.input, wishes.audio.output
        source = AUTO if given.language is None else _or(given.language, self.wish.source)
        wish = Wish(
            source=source,
            target=_or(made.language, self.wish.target),
            told=_or(wishes.told, self.wish.told),
            wait=_or(wishes.wait, self.wish.wait),
            voice=_or(made.voice, self.wish.voice),
        )
        return Settings(wish=wish, transcription=_or(given.transcription, self.transcription))

    def shown(self) -> Audio:
        """Return the settings as the session shows them."""
        return Audio(
            Input(transcription=self.transcription, language=self.wish.source),
            Output(language=self.wish.target, voice=self.wish.voice),
        )


def _or(said: T | UnsetType, before: T) -> T:
    return before if isinstance(said, UnsetType) else said
