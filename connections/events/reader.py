"""One reader of a conversation: what it missed, or where the conversation stands, and what happens from then on."""

from __future__ import annotations

import asyncio

from connections.events.telling import Telling
from connections.line.connection import Connection
from connections.wire.errors import Close, CloseCode
from connections.wire.frames import Frame
from sessions.commands.resuming import Position
from sessions.errors import Refused
from sessions.events import Deleted, Gap
from sessions.service import Sessions

PAGE = 50
"""Messages of the history that a reader is shown: as many as on a socket that names no number."""


class Reader:
    """Asks in the name of one who can't."""

    def __init__(self, sessions: Sessions, conversation_id: str) -> None:
        self._sessions = sessions
        self._conversation_id = conversation_id
        self._telling = Telling()
        self._news = asyncio.Event()

    def encode(self, frame: Frame) -> bytes:
        """The event of a frame on its way to the reader."""
        if isinstance(frame, Gap | Deleted):
            self._news.set()
        return self._telling.encode(frame)

    async def begin(self, view: Connection, position: Position | None) -> None:
        """Attaches the view; what its reader is told first waits in it then. Raises Refused."""
        if position is None:
            await self._show_history(view)
        else:
            await self._sessions.resume(view.owner, view, self._conversation_id, position, ref=None)

    async def follow(self, view: Connection) -> None:
        """Shows the history behind every gap, and ends the view with its conversation."""
        while not self._telling.is_over:
            await self._news.wait()
            self._news.clear()
            if self._telling.owes_history:
                try:
                    await self._show_history(view)
                except Refused as refused:  # whoever comes back is told why
                    view.shut(Close(CloseCode.INTERNAL, str(refused)))
                    return
        view.shut(Close(CloseCode.BYE, "The conversation is gone."))

    async def _show_history(self, view: Connection) -> None:
        shown = await self._sessions.history(view.owner, view, self._conversation_id, limit=PAGE)
        view.publish(shown.page)
        if shown.wait is not None:
            view.publish(shown.wait)
