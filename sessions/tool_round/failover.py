"""Continues a turn that waits for calls after its replica died: here, under another id, from what the store has of it.

The id fences its writes. So writes of the other replica are refused if it only stalled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import structlog

from sessions.conversation.catch_up import catch_up_to
from sessions.conversation.conversation import Conversation, ConversationRegistry
from sessions.records import Meta
from sessions.running.orphaned_turn import close_orphaned
from sessions.store.history.codec import encode_message, encode_turn
from sessions.store.history.history import Ending
from sessions.store.ownership import RunningTurn
from sessions.store.storage import Storage
from sessions.turn.tool_calls import ToolCalls
from sessions.turn.turn import NullSubscriber, Turn, WaitingTurn
from sessions.turn.turn_state import TurnMessageIds

COMEBACK_S = 60.0
"""How long the dead replica's clients have to come back, whatever grace period they asked for."""

Begin = Callable[[Conversation, Turn], None]

_log = structlog.get_logger("midstream.turns")


class Failover:
    """Takes turns over. `on_takeover` is called first, with what continues them."""

    def __init__(self, *, directory: ConversationRegistry, storage: Storage) -> None:
        self._directory = directory
        self._storage = storage
        self._history = storage.history
        self._begin: Begin | None = None

    def on_takeover(self, begin: Begin) -> None:
        """Set what is called with each turn that waits here from now on."""
        self._begin = begin

    async def take_over(self, orphan: RunningTurn) -> bool:
        """Take over a turn that waits for calls; False if no turn of this id waits any more. Raises StoreDown."""
        with self._directory.using(orphan.owner, orphan.conversation_id) as conversation:
            kept = await self._history.following(conversation.keys)
            following = None if kept is None else WaitingTurn.decoded(kept)
            if following is None or following.turn_id != orphan.turn_id:
                return False
            return await self._take_over(conversation, following)

    async def _take_over(self, conversation: Conversation, old: WaitingTurn) -> bool:
        new = _renamed(old, conversation)
        await self._storage.register_turn(conversation.owner, conversation.conversation_id, new.turn_id)
        named = new.encoded()
        watched = await self._history.continue_turn(
            conversation.keys, old.turn_id, next_id=new.turn_id, following=named
        )
        if watched is None:
            await self._storage.ownership.discard(new.turn_id)
            return False
        message = await self._history.message(conversation.keys, new.message_id)
        meta = await self._history.load(conversation.keys) or Meta.new("")
        await catch_up_to(self._history, conversation, meta.epoch, meta.seq)
        live = Turn.waiting(new, ToolCalls(message.calls if message is not None else ()), NullSubscriber())
        conversation.continue_turn(live, seq=meta.seq, watched=watched)
        _log.info("waiting turn taken over", turn_id=new.turn_id, follows=new.follows)
        if self._begin is None:
            raise RuntimeError("Nothing begins turns here.")
        self._begin(conversation, live)
        await self._end_queue(conversation, live, meta.queue)
        return True

    async def _end_queue(self, conversation: Conversation, live: Turn, queue: Sequence[str]) -> None:
        """End the turns that were queued in the dead replica's memory: nobody else knows what they asked for."""
        for place, turn_id in enumerate(queue, start=1):
            if (record := await self._history.turn(conversation.keys, turn_id)) is None:
                continue
            base = await self._history.base(conversation.keys, record)
            async with conversation.order_lock:
                if live.journal is None or live.end is not None:
                    return  # the reaper ends them behind it
                seq = conversation.next_seq()
                ending = close_orphaned(conversation.conversation_id, record, (), seq=seq, base=base)
                saved = await live.journal.write(ending.done, _exit(ending, " ".join(queue[place:])))
                done = ending.done
                conversation.publish_done(done if saved else msgspec.structs.replace(done, saved=False))
                live.tool_round.news.set()  # what the store does not take now is written later


def _exit(ending: Ending, queue: str) -> bytes:
    """Return what else the store changes when a turn ends in the queue."""
    turn = ending.turn
    patch: dict[str, list[str]] = {
        "set": ["queue", queue],
        "ended": [turn.turn_id, encode_turn(turn).decode()],
    }
    if not ending.stays:
        patch["reply"] = [turn.message_id, turn.reply_id, encode_message(ending.reply).decode()]
    return msgspec.json.encode(patch)


def _renamed(old: WaitingTurn, conversation: Conversation) -> WaitingTurn:
    send = msgspec.structs.replace(
        old.send,
        conversation_id=conversation.conversation_id,
        grace_s=max(old.send.grace_s, COMEBACK_S),
    )
    return msgspec.structs.replace(old, turn_id=TurnMessageIds.new().turn_id, send=send)
