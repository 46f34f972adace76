"""One session as its client shapes it: its options, and the text that waits. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from connections.realtime.problems import InvalidEvent
from connections.realtime.server_events import ServerEvent
from connections.translations.events import Session, SessionCreated, SessionUpdate, SessionUpdated
from connections.translations.input_queue import InputQueue
from connections.translations.options import Settings
from engine.messages import ModelFacts
from sessions.translation.translator import refuse_unable

_LANGUAGE = "session.audio.output.language"
_VOICE = "session.audio.output.voice"
_NO_TARGET = "The language to translate into is missing: set it by `session.update` first."
_CLOSING = "The session is being closed: nothing can follow `session.close`."


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
            refuse_unable(facts, interpreting)
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
