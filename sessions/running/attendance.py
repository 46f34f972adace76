"""Ends turns without attached connections, each after its grace period."""

from __future__ import annotations

import asyncio

from sessions.conversation.conversation import Conversation
from sessions.events import Cause
from sessions.running import runner
from sessions.turn.live_turn import LiveTurn


class Attendance:
    """Checks a conversation whenever a connection left it, here or on another replica."""

    def look(self, conversation: Conversation) -> None:
        """Cancel turns that nobody waits for, at once or after their grace period; a returning connection stops that. Synchronous."""
        if conversation.is_attended:
            conversation.keep_turns()
            return
        for live in conversation.blocking():
            if live.send.on_disconnect == "cancel" and live.grace is None:
                self._give_grace(conversation, live)

    def _give_grace(self, conversation: Conversation, live: LiveTurn) -> None:
        if live.send.grace_s > 0:
            loop = asyncio.get_running_loop()
            live.grace = loop.call_later(live.send.grace_s, self._passed, conversation, live)
        else:
            runner.cancel(conversation, live, Cause.DISCONNECT)

    @staticmethod
    def _passed(conversation: Conversation, live: LiveTurn) -> None:
        live.grace = None
        if not conversation.is_attended:
            runner.cancel(conversation, live, Cause.DISCONNECT)
