"""All spoken conversations of this replica: the recognizer, the voice, and how many may use them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from connections.connection import Connection
from connections.protocol.audio import AudioStart
from connections.protocol.errors import BadParams
from connections.voice.conversation import VoiceConversation
from sessions.errors import NotFound, Overloaded
from sessions.fair_share import FairShare, Subject
from sessions.records import Owner
from sessions.running.admission import AGAIN_MS
from sessions.service import Sessions
from speech.interfaces import StreamingRecognizer, Voice


class VoiceService:
    """Use `running` around everything else."""

    def __init__(
        self, *, sessions: Sessions, ear: StreamingRecognizer, voice: Voice | None, slots: int
    ) -> None:
        """`voice`: None: replies are text only; `slots`: concurrent connections that are listened to."""
        self.ear = ear
        self.voice = self._voice = voice
        self._sessions = sessions
        self._slots = FairShare(slots)
        self._conversations: dict[tuple[Owner, str], VoiceConversation] = {}
        self._tasks = asyncio.TaskGroup()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Speak replies while the context lasts."""
        async with self._tasks:
            try:
                yield
            finally:
                for conversation in self._conversations.values():
                    conversation.cut()

    @property
    def voices(self) -> tuple[str, ...]:
        """The voices, the default first; none if replies are text only."""
        return () if self._voice is None else self._voice.names

    def check(self, start: AudioStart) -> None:
        """Raise BadParams if the request is impossible here."""
        language = self.language_of(start)
        if language is not None and language not in self.ear.languages:
            raise BadParams(
                f"must be one of {', '.join(self.ear.languages)}: no other is understood.", field="language"
            )
        if start.output is None:
            return
        if self._voice is None:
            raise BadParams("can't be had: this server has no voice.", field="output")
        if start.output.voice is not None and start.output.voice not in self._voice.names:
            raise BadParams(
                f"is none of this server's voices, such as {self._voice.names[0]}.", field="output.voice"
            )

    def language_of(self, start: AudioStart) -> str | None:
        """Return the code of the requested language; None: none, or the recognizer needs none."""
        language = (start.language or "").partition("-")[0].lower()
        return language if language and self.ear.languages else None

    def voice_of(self, start: AudioStart) -> str | None:
        """Return the voice that will speak."""
        if start.output is None or self._voice is None:
            return None
        return start.output.voice or self._voice.names[0]

    async def attach(self, connection: Connection, conversation_id: str) -> None:
        """Attach a connection to a conversation, and keep its replies, as a history request does. Raises Refused."""
        with suppress(NotFound):  # it begins with the first words, which attach it
            await self._sessions.history(connection.owner, connection, conversation_id, limit=1)

    @contextmanager
    def talking(self, connection: Connection, conversation_id: str) -> Iterator[VoiceConversation]:
        """Give a connection a place and its conversation. Raises Overloaded."""
        with self.slot(connection.caller.subject):
            try:
                yield self._conversation(connection.owner, conversation_id)
            finally:
                self._forget_idle()

    @contextmanager
    def slot(self, subject: Subject) -> Iterator[None]:
        """Count a connection that is listened to. Raises Overloaded."""
        if not self._slots.has_capacity_for(subject):
            raise Overloaded(
                "The server is listening to as many speakers as it can.", retry_after_ms=AGAIN_MS
            )
        self._slots.take(subject)
        try:
            yield
        finally:
            self._slots.give_back(subject)

    def _conversation(self, owner: Owner, conversation_id: str) -> VoiceConversation:
        self._forget_idle()
        key = owner, conversation_id
        if key not in self._conversations:
            self._conversations[key] = VoiceConversation(
                owner=owner,
                conversation_id=conversation_id,
                sessions=self._sessions,
                voice=self._voice,
                tasks=self._tasks,
            )
        return self._conversations[key]

    def _forget_idle(self) -> None:
        """Forget idle conversations. Each that stays has a speaker, or a turn."""
        for key in [key for key, conversation in self._conversations.items() if conversation.is_idle]:
            del self._conversations[key]
