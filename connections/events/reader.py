"""One reader of a conversation: missed events or the current state, then live events."""

from __future__ import annotations

import asyncio

from connections.connection import Connection
from connections.events.sse_encoder import EventStreamEncoder
from connections.protocol.errors import Close, CloseCode
from connections.protocol.frames import Frame
from sessions.commands.resumption import ReaderPosition
from sessions.errors import Refused
from sessions.events import Deleted, Gap
from sessions.service import Sessions

PAGE = 50
"""Messages of the history for a reader: the default of sockets."""


class EventReader:
    """Sends requests for a reader, which can't send any."""

    def __init__(self, sessions: Sessions, conversation_id: str) -> None:
        self._sessions = sessions
        self._conversation_id = conversation_id
        self._encoder = EventStreamEncoder()
        self._changed = asyncio.Event()

    def encode(self, frame: Frame) -> bytes:
        """Return the event of a frame."""
        if isinstance(frame, Gap | Deleted):
            self._changed.set()
        return self._encoder.encode(frame)

    async def begin(self, view: Connection, position: ReaderPosition | None) -> None:
        """Attach the reader; its first events then wait in it. Raises Refused."""
        if position is None:
            await self._show_history(view)
        else:
            await self._sessions.resume(view.owner, view, self._conversation_id, position, ref=None)

    async def follow(self, view: Connection) -> None:
        """Send the history after every gap, and end with the conversation."""
        while not self._encoder.is_over:
            await self._changed.wait()
            self._changed.clear()
            if self._encoder.needs_history:
                try:
                    await self._show_history(view)
                except Refused as refused:  # a reconnecting reader is told why
                    view.shut(Close(CloseCode.INTERNAL, str(refused)))
                    return
        view.shut(Close(CloseCode.BYE, "The conversation is gone."))

    async def _show_history(self, view: Connection) -> None:
        shown = await self._sessions.history(view.owner, view, self._conversation_id, limit=PAGE)
        view.publish(shown.page)
        if shown.wait is not None:
            view.publish(shown.wait)
