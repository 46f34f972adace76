"""What a duplicate of a message is answered: its turn, as far as it is known by now."""

from __future__ import annotations

import msgspec

from sessions.conversation import Conversation
from sessions.errors import Conflict
from sessions.events import Accepted, Delta, Done
from sessions.live_turn import LiveTurn, Subscriber
from sessions.places import digest_of
from sessions.records import TurnRecord
from sessions.sends import Send
from sessions.transactions import Since


def accepted_event(
    conversation: Conversation, record: TurnRecord, send: Send, epoch: str, *, duplicate: bool = False
) -> Accepted:
    """The event of a turn; its `ref` for a duplicate alone, as that goes to one connection."""
    return Accepted(
        conversation_id=conversation.conversation_id,
        client_msg_id=record.client_msg_id,
        turn_id=record.turn_id,
        message_id=record.message_id,
        epoch=epoch,
        seq=record.accepted_seq,
        ref=send.ref if duplicate else None,
        duplicate=duplicate,
        parent_id=record.parent_id,
    )


def refuse_other_content(record: TurnRecord, send: Send) -> None:
    """Raises Conflict where the same id came with another text, or for another place."""
    if record.digest != digest_of(send.content, send.place):
        raise Conflict("client_msg_id: other content was sent under this id before.")


def repeat_live(conversation: Conversation, live: LiveTurn, arrival: LiveTurn) -> None:
    """Answers a duplicate of a running turn; one that does not follow it yet gets what was told so far: its text, as one delta."""
    refuse_other_content(live.record, arrival.send)
    reader = arrival.sender
    reader.publish(
        accepted_event(conversation, live.record, arrival.send, conversation.epoch, duplicate=True)
    )
    conversation.attach(reader)
    if live.record.done is not None:  # told, but not saved so far
        repeat_end(reader, live.record, live.record.done, live.turn.text)
        return
    if reader in live.followers:
        return
    live.followers.add(reader)
    if live.wait is not None:
        reader.publish(live.wait)
    if text := live.published_text:
        reader.publish(
            Delta(
                conversation_id=conversation.conversation_id,
                turn_id=live.record.turn_id,
                seq=conversation.published_seq,
                first_seq=live.record.accepted_seq + 1,
                off=0,
                text=text,
                tokens=live.turn.tokens_at(len(text)),
            )
        )


def repeat_elsewhere(conversation: Conversation, record: TurnRecord, since: Since, arrival: LiveTurn) -> None:
    """Answers a duplicate of a turn that runs on another replica, as far as that is journalled."""
    reader = arrival.sender
    reader.publish(accepted_event(conversation, record, arrival.send, since.epoch, duplicate=True))
    conversation.attach(reader)
    deltas = [event for event in since.events if isinstance(event, Delta)]
    if deltas and not arrival.was_attached:
        whole = msgspec.structs.replace(
            deltas[0],
            seq=since.seq,
            first_seq=record.accepted_seq + 1,
            text="".join(delta.text for delta in deltas),
            tokens=sum(delta.tokens for delta in deltas),
        )
        reader.publish(whole)


def repeat_end(reader: Subscriber, record: TurnRecord, done: Done, text: str) -> None:
    """A turn that has ended, once more: its text as one delta, and its end."""
    if text:
        reader.publish(
            Delta(
                conversation_id=done.conversation_id,
                turn_id=record.turn_id,
                seq=done.seq - 1,
                first_seq=record.accepted_seq + 1,
                off=0,
                text=text,
                tokens=done.usage.sent_tokens,
            )
        )
    reader.publish(done)
