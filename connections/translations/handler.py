"""Handles each client event: text goes into interpretations, one after another, which begin and grow as any."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, assert_never

from connections.limits.limiters import Limiters
from connections.line.connection import Connection, Handler, refusal
from connections.openai.unserved import NO_SOUND
from connections.realtime.problems import Invalid
from connections.spoken.desk import SpokenDesk
from connections.translations.events import Asks, AudioAppend, SessionClose, SessionUpdate, TextAppend
from connections.translations.hearing import Microphone
from connections.translations.session import TranslationSession
from connections.translations.speaking import Speaking, read_down, voice_for
from connections.translations.telling import Interpretation, Said, Telling, closed
from connections.translations.waiting import Part
from connections.translations.wishes import Wish
from connections.wire import frames
from connections.wire.audio import AudioStart
from connections.wire.errors import BadParams, Close, CloseCode
from sessions.errors import Conflict, NotFound, Overloaded, Refused
from sessions.interpreting.languages import AUTO
from sessions.interpreting.source import Grown, Growth
from sessions.service import Sessions

Slow = Coroutine[Any, Any, None]
T = TypeVar("T")
TRIES = 5
"""How often a growth, or the beginning of an interpretation, is sent if it fails for now."""
AGAIN_MS = 500
"""The pause before a retry, if the refusal names none."""
READ_S = 10.0
"""How long the end of a session waits for a late reader."""
_STUCK = Close(CloseCode.OVERLOAD, "The translation can't go on; reconnect.")


class TranslationsHandler:
    """Handles one session's events. `inner`: answers frames. Only one task at a time passes on what waits."""

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
        """`desk`: None without speech recognition; `speaking`: None if translations are text only."""
        self._session = session
        self._telling = telling
        self._inner = inner
        self._sessions = sessions
        self._limiters = limiters
        self._wish: Wish | None = None  # of the current interpretation
        self._is_busy = False
        self._desk = desk
        self._speaking = speaking
        self._microphone: Microphone | None = None
        self._heard: asyncio.TaskGroup | None = None
        self._is_spoken_to = False

    def handle(self, connection: Connection, event: Asks) -> Slow | None:
        """Decide at once; return the work that passes on what waits, unless it runs. Raises BadParams, Refused."""
        match event:
            case SessionUpdate():
                self._update(connection, event)
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

    def _update(self, connection: Connection, event: SessionUpdate) -> None:
        """Change the options. Raises BadParams, Refused."""
        before = self._session.settings.wish.source
        settings = self._session.settings.changed(event.session)
        if self._desk is not None and self._microphone is not None and settings.wish.source != before:
            self._desk.check(_start(settings.wish))
        connection.push(Said(events=(self._session.update(event),)))
        self._telling.tells_source = settings.transcription is not None
        if self._desk is not None and self._microphone is not None:
            self._microphone.understand(self._desk.language_of(_start(settings.wish)))

    def _choose_voice(self, wish: Wish) -> None:
        """Choose the voice: a client that speaks gets one of the language, one that types only the one it names."""
        if self._speaking is not None and self._desk is not None:
            found = voice_for(self._desk.voices, wish.target or "") if self._is_spoken_to else None
            self._speaking.begin(wish.voice or found)

    def _listen(self, connection: Connection, audio: str) -> Slow | None:
        """Take sound; the first one returns the work of listening. Raises Invalid, BadParams."""
        if self._desk is None:
            raise Invalid(NO_SOUND, field="type", code="unsupported_content_type")
        self._session.check()
        if self._microphone is not None:
            self._microphone.feed(audio)
            return None
        start = _start(self._session.settings.wish)
        self._desk.check(start)
        microphone = Microphone(
            self._desk,
            connection,
            partial(self._said, connection),
            language=self._desk.language_of(start),
        )
        microphone.feed(audio)
        self._microphone = microphone
        self._is_spoken_to = True
        return self._hear(microphone)

    async def _hear(self, microphone: Microphone) -> None:
        """Listen. Raises Overloaded."""
        try:
            async with asyncio.TaskGroup() as self._heard:
                await microphone.run()
        except* Overloaded as full:
            raise full.exceptions[0] from None
        finally:
            self._microphone = self._heard = None

    def _said(self, connection: Connection, text: str) -> None:
        try:
            self._session.waiting.add(text, self._session.settings.wish)
        except Overloaded as why:
            connection.push(refusal(why, None))
        if self._heard is not None and not self._is_busy:
            self._heard.create_task(self._hand_on(connection))

    async def _end(self, connection: Connection) -> None:
        """Wait until the rest is understood, translated and spoken."""
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
        """Pass on some of what waits; return whether there may be more. Refusals are sent, their text is dropped."""
        part, at_hand = self._session.waiting.head(), self._telling.at_hand
        if at_hand is not None and (self._session.is_closing if part is None else part.wish != self._wish):
            await self._grow(
                connection, at_hand, Part("", self._wish or self._session.settings.wish, ends=True)
            )
        elif part is None:
            return await self._close(connection)
        elif at_hand is not None:
            await self._take(connection, at_hand)
        elif part.text.strip():
            await self._begin(connection, part.wish)
        else:
            self._session.waiting.take(0)
        return True

    async def _close(self, connection: Connection) -> bool:
        if self._session.is_closing and not connection.closed:
            if self._speaking is not None:
                await self._speaking.finish()
            connection.push(closed())
            with suppress(TimeoutError):
                async with asyncio.timeout(READ_S):
                    await read_down(connection, 0)
            connection.shut(Close(CloseCode.BYE, "The session is closed."))
        return False

    async def _begin(self, connection: Connection, wish: Wish) -> None:
        known_by = f"translation_{secrets.token_hex(12)}"
        start = wish.start(
            client_msg_id=known_by,
            conversation_id=self._session.conversation_id,
            model=self._session.model,
        )
        begun, is_refused = self._telling.begin(known_by), True
        self._choose_voice(wish)
        try:
            await _again(partial(self._ask, connection, start))
            is_refused = False
        except (Refused, BadParams) as why:
            connection.push(refusal(why, self._session.waiting.drop().ref))
        finally:
            if is_refused:
                self._telling.at_hand = None
        if not is_refused:
            self._wish = wish
        elif begun.turn_id is not None:  # the store took it, but could not confirm it
            await self._give_up(connection, begun)

    async def _ask(self, connection: Connection, frame: frames.Request) -> None:
        """Have a frame answered. Raises Refused, BadParams."""
        if (slow := self._inner.handle(connection, frame)) is not None:
            await slow

    async def _take(self, connection: Connection, at_hand: Interpretation) -> None:
        part = self._session.waiting.take(at_hand.chars)
        if part.text or part.ends:
            await self._grow(connection, at_hand, part)

    async def _grow(self, connection: Connection, at_hand: Interpretation, part: Part) -> None:
        """Grow an interpretation. Text that is too late waits for the next one; growth by others is continued."""
        growth = Growth(off=at_hand.chars, text=part.text, final=part.ends, turn_id=at_hand.turn_id)
        try:
            grown = await _again(partial(self._send, connection, growth))
        except Refused as why:
            is_lost = isinstance(why, Conflict | NotFound)
            if is_lost and await at_hand.goes_on_from(growth.off):
                self._session.waiting.put_back(part)
                return
            connection.push(refusal(why, part.ref))
            if is_lost or why.retryable or not part.text:
                await self._give_up(connection, at_hand)
            if why.retryable:  # it is not known how much of it was stored
                connection.shut(_STUCK)
            return
        at_hand.grew(grown.chars)
        if part.ends:
            await at_hand.over.wait()

    async def _send(self, connection: Connection, growth: Growth) -> Grown:
        """Send a growth. Raises Refused."""
        self._limiters.take_read(connection.caller.subject)
        return await self._sessions.grow(connection.owner, self._session.conversation_id, growth)

    async def _give_up(self, connection: Connection, given_up: Interpretation) -> None:
        """Cancel an interpretation that its session does not know: it would block the next one of its conversation."""
        self._telling.at_hand = None
        if given_up.over.is_set():
            return
        if given_up.turn_id is None:  # its client reads too late to know; leaving ends it, too
            connection.shut(_STUCK)
            return
        place = self._session.conversation_id
        try:
            await self._ask(connection, frames.Cancel(turn_id=given_up.turn_id, conversation_id=place))
        except (Refused, BadParams) as why:
            connection.push(refusal(why, None))
            connection.shut(_STUCK)


def _start(wish: Wish) -> AudioStart:
    return AudioStart(language=None if wish.source == AUTO else wish.source)


async def _again(act: Callable[[], Awaitable[T]]) -> T:
    """Repeat an act until it succeeds, while that may help. Raises Refused, BadParams."""
    tried = 1
    while True:
        try:
            return await act()
        except Refused as why:
            if not why.retryable or tried == TRIES:
                raise
            pause_ms = why.retry_after_ms or AGAIN_MS
        tried += 1
        await asyncio.sleep(pause_ms / 1000)
