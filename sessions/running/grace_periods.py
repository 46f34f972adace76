"""Ends turns without attached connections, each after its grace period."""

from __future__ import annotations

import asyncio

from sessions.conversation.conversation import Conversation
from sessions.events import Cause
from sessions.running import runner
from sessions.turn.turn import Turn


class GracePeriods:
    """Checks a conversation whenever a connection left it, here or on another replica."""

    def check(self, conversation: Conversation) -> None:
        """Cancel turns that nobody waits for, at once or after their grace period; a returning connection stops that. Synchronous."""
        if conversation.is_attended:
            conversation.cancel_grace()
            return
        for live in conversation.blocking():
            if live.send.on_disconnect == "cancel" and live.grace is None:
                self._give_grace(conversation, live)

    def _give_grace(self, conversation: Conversation, live: Turn) -> None:
        if live.send.grace_s > 0:
            loop = asyncio.get_running_loop()
            live.grace = loop.call_later(live.send.grace_s, self._expired, conversation, live)
        else:
            runner.cancel(conversation, live, Cause.DISCONNECT)

    @staticmethod
    def _expired(conversation: Conversation, live: Turn) -> None:
        live.grace = None
        if not conversation.is_attended:
            runner.cancel(conversation, live, Cause.DISCONNECT)
