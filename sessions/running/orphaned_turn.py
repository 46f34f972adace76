"""The end of a turn whose replica died: it keeps what was journalled. Pure, except for the time of day."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sessions.events import (
    Delta,
    Done,
    Failure,
    Journalled,
    Reason,
    Reasoning,
    Timing,
    Usage,
)
from sessions.records import MessageRecord, TurnRecord, digest, status_of
from sessions.store.history.codec import now_ms
from sessions.store.history.history import Ending
from sessions.turn.tool_calls import calls_of, cancelled

_DOWN = Failure(code="internal", message="The server that wrote this reply went down.")


def close_orphaned(
    conversation_id: str,
    record: TurnRecord,
    events: Sequence[Journalled],
    *,
    seq: int,
    base: MessageRecord | None = None,
) -> Ending:
    """Return the end of a turn from its events. Published calls are cancelled unless they were settled.

    `base`: the reply that it continued, which is unchanged if nothing was added.
    """
    own = [event for event in events if getattr(event, "turn_id", None) == record.turn_id]
    deltas = [event for event in own if isinstance(event, Delta)]
    thoughts = [event for event in own if isinstance(event, Reasoning)]
    text, reasoning = ("".join(part.text for part in parts) for parts in (deltas, thoughts))
    if base is not None:
        text, reasoning = base.content + text, base.reasoning + reasoning
    calls = tuple(map(cancelled, calls_of(own)))
    thought = sum(part.tokens for part in thoughts)
    tokens = thought + sum(part.tokens for part in deltas) + sum(call.tokens for call in calls)
    done = Done(
        conversation_id=conversation_id,
        turn_id=record.turn_id,
        message_id=record.reply_id,
        seq=seq,
        reason=Reason.INTERRUPTED,
        chars=len(text),
        usage=_usage(tokens, reasoning_tokens=thought),
        timing=Timing(queued_ms=None, first_token_ms=None, total_ms=0.0),
        text_sha256=digest(text),
        saved=True,
        error=_DOWN,
        reasoning_chars=len(reasoning),
    )
    signed = record.signed(done)
    turn = msgspec.structs.replace(
        record,
        done=signed,
        text_seq=deltas[0].first_seq if deltas else None,
        reasoning_seq=thoughts[0].first_seq if thoughts else None,
    )
    reply = MessageRecord(
        message_id=record.reply_id,
        parent_id=record.message_id,
        turn_id=record.turn_id,
        role="assistant",
        content=text,
        status=status_of(done.reason),
        created_at=now_ms() if base is None else base.created_at,
        usage=done.usage,
        model=signed.model,
        reasoning=reasoning,
        calls=calls,
    )
    return Ending(reply=reply, turn=turn, stays=record.leaves_reply_unchanged(done, calls))


def _usage(tokens: int, *, reasoning_tokens: int) -> Usage:
    return Usage(
        prompt_tokens=0,
        cached_tokens=0,
        generated_tokens=tokens,
        sent_tokens=tokens,
        wasted_tokens=0,
        reasoning_tokens=reasoning_tokens,
    )
