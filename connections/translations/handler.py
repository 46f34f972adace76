"""What each client event does: text goes into interpretations, one after the other, which begin and grow as any."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from functools import partial
from typing import Any, assert_never

from connections.limits.limiters import Limiters
from connections.line.connection import Connection, Handler, refusal
from connections.openai.unserved import NO_SOUND
from connections.realtime.problems import Invalid
from connections.spoken.desk import SpokenDesk
from connections.translations.events import Asks, AudioAppend, SessionClose, SessionUpdate, TextAppend
from connections.translations.hearing import Microphone
from connections.translations.session import TranslationSession
from connections.translations.speaking import Speaking, voice_for
from connections.translations.telling import Interpretation, Said, Telling, closed
from connections.translations.waiting import Part
from connections.translations.wishes import Wish
from connections.wire import frames
from connections.wire.audio import AudioStart
from connections.wire.errors import BadParams, Close, CloseCode
from sessions.errors import Conflict, NotFound, Overloaded, Refused
from sessions.interpreting.languages import AUTO
from sessions.interpreting.source import Growth
from sessions.service import Sessions

Slow = Coroutine[Any, Any, None]
TRIES = 5
"""How often a growth is sent that may be sent again."""
AGAIN_MS = 500
"""The pause before, where the refusal names none."""
ENDED_S = 5.0
"""So long the end is waited for of an interpretation that is said to have ended."""


class TranslationsHandler:
    """Answers one session's events. `inner`: what answers frames. One task at a time hands on what waits."""

    def __init__(
        self,
        *,
        session: TranslationSession,
        telling: Telling,
        inner: Handler[frames.Request],
        sessions: Sessions,
        limiters: Limiters,
        desk: SpokenDesk | None,
        speaking: Speaking | None,
    ) -> None:
        """`desk`: None, nobody is listened to; `speaking`: None, translations are text alone."""
        self._session = session
        self._telling = telling
        self._inner = inner
        self._sessions = sessions
        self._limiters = limiters
        self._wish: Wish | None = None  # of the interpretation at hand
        self._is_busy = False
        self._desk = desk
        self._speaking = speaking
        self._microphone: Microphone | None = None
        self._heard: asyncio.TaskGroup | None = None

    def handle(self, connection: Connection, event: Asks) -> Slow | None:
        """Decides at once; gives back what hands on what waits, unless that is under way. Raises BadParams, Refused."""
        match event:
            case SessionUpdate():
                connection.push(Said(events=(self._session.update(event),)))
                self._telling.tells_source = self._session.settings.transcription is not None
                self._choose_voice()
            case TextAppend():
                self._session.append(event.text, event.ref)
            case AudioAppend():
                return self._listen(connection, event.audio)
            case SessionClose():
                self._session.say_over()
                return self._end(connection)
            case _:
                assert_never(event)
        return None if self._is_busy else self._hand_on(connection)

    def _choose_voice(self) -> None:
        """Who speaks is answered in sound, if there is a voice of the language; who types, if he names one."""
        settings = self._session.settings
        if self._speaking is not None and self._desk is not None and self._desk.voice is not None:
            found = voice_for(self._desk.voice.names, settings.wish.target or "")
            self._speaking.name = settings.voice or (None if self._microphone is None else found)

    def _listen(self, connection: Connection, audio: str) -> Slow | None:
        """Take sound; the first one gives back what listens from then on. Raises Invalid, BadParams."""
        if self._desk is None:
            raise Invalid(NO_SOUND, field="type", code="unsupported_content_type")
        self._session.check()
        if self._microphone is not None:
            self._microphone.feed(audio)
            return None
        source = self._session.settings.wish.source
        self._desk.check(AudioStart(language=None if source == AUTO else source))
        microphone = Microphone(self._desk, connection, partial(self._said, connection))
        microphone.feed(audio)
        self._microphone = microphone
        self._choose_voice()
        return self._hear(microphone)

    async def _hear(self, microphone: Microphone) -> None:
        """Raises Overloaded."""
        try:
            async with asyncio.TaskGroup() as self._heard:
                await microphone.run()
        except* Overloaded as full:
            self._microphone = None
            raise full.exceptions[0] from None

    def _said(self, connection: Connection, text: str) -> None:
        try:
            self._session.waiting.add(text, self._session.settings.wish)
        except Overloaded as why:
            connection.push(refusal(why, None))
        if self._heard is not None and not self._is_busy:
            self._heard.create_task(self._hand_on(connection))

    async def _end(self, connection: Connection) -> None:
        """The rest is understood, translated and spoken."""
        if self._microphone is not None:
            await self._microphone.end()
        self._session.close()
        await self._hand_on(connection)

    async def _hand_on(self, connection: Connection) -> None:
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while await self._step(connection):
                pass
        finally:
            self._is_busy = False

    async def _step(self, connection: Connection) -> bool:
        """Hand on some of what waits; whether there may be more to do. What is refused is told, and not translated."""
        part, at_hand = self._session.waiting.head(), self._telling.at_hand
        try:
            if at_hand is not None and (
                self._session.is_closing if part is None else part.wish != self._wish
            ):
                await self._grow(connection, at_hand, "", final=True)
            elif part is None:
                return await self._close(connection)
            elif at_hand is not None:
                await self._take(connection, at_hand)
            elif part.text.strip():
                await self._begin(connection, part.wish)
            else:
                self._session.waiting.take(0)
        except (Refused, BadParams) as why:
            self._session.waiting.drop()
            connection.push(refusal(why, self._session.waiting.ref))
            if part is None:  # it was to end
                self._telling.at_hand = None
        return True

    async def _close(self, connection: Connection) -> bool:
        if self._session.is_closing and not connection.closed:
            if self._speaking is not None:
                await self._speaking.finish()
            connection.push(closed())
            connection.shut(Close(CloseCode.BYE, "The session is closed."))
        return False

    async def _begin(self, connection: Connection, wish: Wish) -> None:
        """Raises Refused, BadParams."""
        known_by = f"translation_{secrets.token_hex(12)}"
        start = wish.start(
            client_msg_id=known_by,
            conversation_id=self._session.conversation_id,
            model=self._session.model,
        )
        self._telling.begin(known_by)
        try:
            if (slow := self._inner.handle(connection, start)) is not None:
                await slow
        except BaseException:
            self._telling.at_hand = None
            raise
        self._wish = wish

    async def _take(self, connection: Connection, at_hand: Interpretation) -> None:
        part = self._session.waiting.take(at_hand.chars)
        if part.text or part.ends:
            await self._grow(connection, at_hand, part.text, final=part.ends)

    async def _grow(self, connection: Connection, at_hand: Interpretation, text: str, *, final: bool) -> None:
        """Raises Refused where more of the source is refused; what came too late for it waits for the next one."""
        growth = Growth(off=at_hand.chars, text=text, final=final, turn_id=at_hand.turn_id)
        try:
            await self._grown(connection, growth)
        except (Conflict, NotFound):
            if not await _over(at_hand):
                self._telling.at_hand = None
                raise
            self._session.waiting.put_back(Part(text, self._wish or self._session.settings.wish))
            return
        at_hand.chars += len(text)
        if final:
            await at_hand.over.wait()

    async def _grown(self, connection: Connection, growth: Growth) -> None:
        """Raises Refused."""
        for tried in range(1, TRIES + 1):
            try:
                self._limiters.take_read(connection.caller.subject)
                await self._sessions.grow(connection.owner, self._session.conversation_id, growth)
            except Refused as why:
                if not why.retryable:
                    raise
                if tried == TRIES:  # nobody knows how much of it was kept
                    self._telling.at_hand = None
                    connection.shut(Close(CloseCode.OVERLOAD, "The translation can't go on; reconnect."))
                    raise
                await asyncio.sleep((why.retry_after_ms or AGAIN_MS) / 1000)
            else:
                return


async def _over(at_hand: Interpretation) -> bool:
    """Whether its end is told, within a moment."""
    try:
        async with asyncio.timeout(ENDED_S):
            await at_hand.over.wait()
    except TimeoutError:
        return False
    return True
