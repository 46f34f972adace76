"""What a message that was sent before is answered: its turn, as far as that is known by now."""

from __future__ import annotations

import msgspec

from sessions.commands.resuming import steady
from sessions.conversation.conversation import Conversation
from sessions.conversation.following import follow_up_to
from sessions.conversation.requests import accepted_event
from sessions.errors import Conflict, StoreDown
from sessions.events import Delta, Done
from sessions.records import TurnRecord
from sessions.replicas.watching import Watching
from sessions.store.history.history import History
from sessions.store.history.transactions import Since
from sessions.turn.live_turn import LiveTurn, Subscriber
from sessions.turn.positions import digest_of
from sessions.turn.sends import Send


class Repeater:
    """Answers duplicates. `unsettled`: turns of which nobody knows whether the store accepted them."""

    def __init__(self, *, history: History, watching: Watching, unsettled: set[str]) -> None:
        self._history = history
        self._watching = watching
        self._unsettled = unsettled

    async def answers(self, conversation: Conversation, arrival: LiveTurn) -> bool:
        """Answers a `client_msg_id` that has its turn, live or ended; False where none is known so far. Raises Refused."""
        while (live := conversation.twin(arrival)) is not None:
            if await live.stages.accepted:
                _repeat_live(conversation, live, arrival)
                return True
        if not conversation.blocking():
            return False  # the atomic write will tell
        record = await self._history.turn_of(conversation.keys, arrival.send.client_msg_id)
        if record is None:
            return False
        await self.repeat(conversation, arrival, record)
        return True

    async def repeat(self, conversation: Conversation, arrival: LiveTurn, record: TurnRecord) -> None:
        """Answers with a turn that does not run here: `accepted`, and where it has ended its text and `done`. Raises Refused."""
        _refuse_other_content(record, arrival.send)
        if record.turn_id in self._unsettled or _is_taken_back(conversation, record):
            raise StoreDown(
                "This message was refused when the store did not answer; send it again in a moment."
            )
        if record.done is None:
            await self._watching.begin(conversation)
            since = await steady(self._history, conversation, record.accepted_seq)
            if since.running is not None and since.running.turn_id == record.turn_id:
                _repeat_elsewhere(conversation, record, since, arrival)
                return
            record = await self._history.turn(conversation.keys, record.turn_id) or record
        await self._repeat_ended(conversation, arrival, record)

    async def _repeat_ended(self, conversation: Conversation, arrival: LiveTurn, record: TurnRecord) -> None:
        await self._watching.try_to_begin(conversation)
        if (meta := await self._history.load(conversation.keys)) is not None:
            await follow_up_to(self._history, conversation, meta.epoch, meta.seq)
        reply = await self._history.message(conversation.keys, record.reply_id)
        event = accepted_event(conversation, record, arrival.send, meta.epoch if meta else "", duplicate=True)
        arrival.sender.publish(event)
        conversation.attach(arrival.sender)
        if (done := record.done) is not None:
            # one that was adopted may have got another id since
            kept = msgspec.structs.replace(done, conversation_id=conversation.conversation_id)
            kept = kept if reply is not None else msgspec.structs.replace(kept, removed=True)
            _repeat_end(arrival.sender, record, kept, reply.content if reply else "")


def _is_taken_back(conversation: Conversation, record: TurnRecord) -> bool:
    """Whether it waited behind what runs here, and was refused: that it left is still to be written."""
    runs_here = conversation.live is not None and conversation.live.journal is not None
    return record.done is None and runs_here and conversation.turn(record.turn_id) is None


def _refuse_other_content(record: TurnRecord, send: Send) -> None:
    """Raises Conflict where the same id came with another text, or for another place."""
    if record.digest != digest_of(send.content, send.place):
        raise Conflict("`client_msg_id` was used before, for another message.")


def _repeat_live(conversation: Conversation, live: LiveTurn, arrival: LiveTurn) -> None:
    """Answers a duplicate of a running turn; one that does not follow it yet gets what was told so far: its text, as one delta."""
    _refuse_other_content(live.record, arrival.send)
    reader = arrival.sender
    reader.publish(
        accepted_event(conversation, live.record, arrival.send, conversation.published.epoch, duplicate=True)
    )
    conversation.attach(reader)
    if live.record.done is not None:  # told, but not saved so far
        _repeat_end(reader, live.record, live.record.done, live.turn.text)
        return
    if reader in live.delivery.followers:
        return
    live.delivery.followers.add(reader)
    if live.wait is not None:
        reader.publish(live.wait)
    if text := live.published_text:
        reader.publish(
            Delta(
                conversation_id=conversation.conversation_id,
                turn_id=live.record.turn_id,
                seq=conversation.published.seq,
                first_seq=live.record.accepted_seq + 1,
                off=0,
                text=text,
                tokens=live.turn.tokens_at(len(text)),
            )
        )


def _repeat_elsewhere(
    conversation: Conversation, record: TurnRecord, since: Since, arrival: LiveTurn
) -> None:
    """Answers a duplicate of a turn that runs on another replica, as far as that is journalled."""
    reader = arrival.sender
    reader.publish(accepted_event(conversation, record, arrival.send, since.epoch, duplicate=True))
    conversation.attach(reader)
    deltas = [event for event in since.events if isinstance(event, Delta)]
    if deltas and not arrival.intake.was_attached:
        whole = msgspec.structs.replace(
            deltas[0],
            seq=since.seq,
            first_seq=record.accepted_seq + 1,
            text="".join(delta.text for delta in deltas),
            tokens=sum(delta.tokens for delta in deltas),
        )
        reader.publish(whole)


def _repeat_end(reader: Subscriber, record: TurnRecord, done: Done, text: str) -> None:
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
