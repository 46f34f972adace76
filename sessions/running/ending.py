"""What is kept, told and logged of a turn's end."""

from __future__ import annotations

import structlog

from sessions.conversation.conversation import Conversation
from sessions.events import Done
from sessions.observer import Observer
from sessions.records import Client, MessageRecord, Owner, status_of
from sessions.store.history.keys import now_ms
from sessions.turn.live_turn import LiveTurn

_log = structlog.get_logger("midstream.turn")


class EndTeller:
    """Tells attached connections, the observer and the log that a turn ended."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def tell(self, conversation: Conversation, live: LiveTurn, done: Done) -> None:
        """Once for each turn."""
        conversation.publish_done(done)
        note_end(self._observer, done, sender_of(conversation.owner, live.send.client_id))


def sender_of(owner: Owner, client_id: str) -> Client:
    """The client that began a turn; a replica of version 0.1.0 passes messages on without its name."""
    return Client(owner.principal, client_id or owner.client_id)


def note_end(observer: Observer, done: Done, client: Client) -> None:
    """Tells those who measure, and the log; once for each turn."""
    observer.ended(done, client)
    _log_end(done)


def reply_of(live: LiveTurn, done: Done) -> MessageRecord:
    """The reply as it is kept."""
    return MessageRecord(
        message_id=live.record.reply_id,
        parent_id=live.record.message_id,
        turn_id=live.record.turn_id,
        role="assistant",
        content=live.turn.text,
        status=status_of(done.reason),
        created_at=now_ms(),
        usage=done.usage,
    )


def _log_end(done: Done) -> None:
    _log.info(
        "turn ended",
        conversation_id=done.conversation_id,
        turn_id=done.turn_id,
        reason=done.reason.value,
        cause=done.cancel.cause.value if done.cancel else None,
        steps_after=done.cancel.steps_after if done.cancel else None,
        generated_tokens=done.usage.generated_tokens,
        wasted_tokens=done.usage.wasted_tokens,
        first_token_ms=done.timing.first_token_ms,
        total_ms=done.timing.total_ms,
        error=done.error.code if done.error else None,
    )
