"""Handles requests about whole conversations: the list, search, titles, links, deletion."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import assert_never

from connections.connection import Connection
from connections.protocol import frames
from connections.protocol.errors import BadParams
from sessions.service import Sessions

PendingWork = Coroutine[None, None, None]


class ConversationListHandler:
    """Answers the frames that are about no turn."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def handle(self, connection: Connection, frame: frames.Listing) -> PendingWork:
        """Return the work that waits for the store. That raises BadParams, Refused."""
        match frame:
            case frames.Conversations():
                return self._conversations(connection, frame)
            case frames.Search():
                return self._search(connection, frame)
            case frames.Rename():
                return self._rename(connection, frame)
            case frames.Share() | frames.Unshare():
                return self._share(connection, frame)
            case frames.Delete():
                return self._sessions.delete(
                    connection.owner, frame.conversation_id, ref=frame.ref, subscriber=connection
                )
            case _:
                assert_never(frame)

    async def _conversations(self, connection: Connection, frame: frames.Conversations) -> None:
        page = await self._sessions.conversations(connection.owner, limit=frame.limit, before=frame.before)
        connection.push(
            frames.ConversationsPage(ref=frame.ref, conversations=page.conversations, has_more=page.has_more)
        )

    async def _search(self, connection: Connection, frame: frames.Search) -> None:
        if not frame.query.strip():
            raise BadParams("is empty.", field="query")
        found = await self._sessions.search(
            connection.owner,
            frame.query,
            limit=frame.limit,
            before=frame.before,
            group=connection.caller.group,
        )
        connection.push(frames.Found(ref=frame.ref, hits=found.hits, next=found.next))

    async def _rename(self, connection: Connection, frame: frames.Rename) -> None:
        if not (title := " ".join(frame.title.split())):
            raise BadParams("is empty.", field="title")
        row = await self._sessions.rename(connection.owner, frame.conversation_id, title)
        connection.push(frames.ConversationsPage(ref=frame.ref, conversations=[row], has_more=False))

    async def _share(self, connection: Connection, frame: frames.Share | frames.Unshare) -> None:
        owner, conversation_id, share_id = connection.owner, frame.conversation_id, None
        if isinstance(frame, frames.Share):
            share_id = await self._sessions.share(owner, conversation_id)
        else:
            await self._sessions.take_back_share(owner, conversation_id)
        connection.push(frames.Shared(ref=frame.ref, conversation_id=conversation_id, share_id=share_id))
