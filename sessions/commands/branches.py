"""The branches of a conversation: where a turn goes in them, and which of them is active.

A conversation is a tree. An edit is another user's message beside an old one, a regenerated reply another one under the
same message. Nothing is lost by it: all that share a parent are siblings, and one branch is active.
"""

from __future__ import annotations

import msgspec
from redis.asyncio import Redis

from sessions.conversation.conversation import Conversation
from sessions.conversation.paging import page_of, read_steadily
from sessions.errors import BadParams, Busy, Conflict, NotFound
from sessions.events import Reason
from sessions.records import Interpreting, MessageRecord, Meta, TurnRecord
from sessions.running import runner
from sessions.store.history.history import History
from sessions.store.history.keys import Keys
from sessions.store.redis.client import ACTIVATE, run_script
from sessions.turn.live_turn import Subscriber
from sessions.turn.positions import Again, Behind, Beside, Onward, Place

MAX_CHILDREN = 1000
"""Messages behind one, or at the root: each write looks at all of them."""
TOLD_MESSAGES = 50
"""How many messages those are told who did not ask for the branch that is active now: as many as a page has by default."""

_BUSY = "A reply is being written in this conversation; its branch is the active one until that has ended."


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the history. `answered`: the message that the turn answers once more; None where it brings its own.

    It may be a reply whose calls are settled: then their results are answered once more. `continued`: the reply that goes on.

    `model`: the one that was asked for the reply that gets a sibling; empty where there is none. `interprets`: how the reply
    that goes on translates, where it does.
    """

    parent_id: str | None
    answered: MessageRecord | None = None
    continued: MessageRecord | None = None
    model: str = ""
    interprets: Interpreting | None = None

    def asked(self, message: MessageRecord) -> list[MessageRecord]:
        """What the prompt ends with: a message, and what goes on behind it."""
        return [message] if self.continued is None else [message, self.continued]


async def placed(history: History, keys: Keys, place: Place, meta: Meta) -> Placed:
    """Finds a place. Raises NotFound, BadParams, Conflict where it has as many versions as may be, StoreDown."""
    found = await _placed(history, keys, place, meta)
    if place != Behind() and found.continued is None:
        beside = found.parent_id if found.answered is None else found.answered.message_id
        if await history.children(keys, beside) >= MAX_CHILDREN:
            raise Conflict(f"This message has {MAX_CHILDREN} versions, and may not have more.")
    return found


async def _placed(history: History, keys: Keys, place: Place, meta: Meta) -> Placed:
    match place:
        case Behind(parent_id):
            if isinstance(parent_id, msgspec.UnsetType):
                return Placed(parent_id=meta.leaf)
            if parent_id is not None:
                await _message(history, keys, parent_id, field="parent_id", role="assistant")
            return Placed(parent_id=parent_id)
        case Beside(message_id):
            edited = await _message(history, keys, message_id, field="message_id", role="user")
            return Placed(
                parent_id=edited.parent_id,
                model=await _asked_model(history, keys, edited.turn_id),
                interprets=_anew(edited),
            )
        case Again(reply_id) | Onward(reply_id):
            reply = await _message(history, keys, reply_id, field="message_id", role="assistant")
            answered = await history.message(keys, reply.parent_id or "")
            if answered is None:
                raise NotFound("What this reply answers is not in the history any more.")
            model = await _asked_model(history, keys, reply.turn_id)
            found = Placed(
                parent_id=answered.parent_id, answered=answered, model=model, interprets=_anew(answered)
            )
            if isinstance(place, Again):
                return found
            record = await _refuse_whole(history, keys, reply)
            return msgspec.structs.replace(found, continued=reply, interprets=record.interprets)


def _anew(source: MessageRecord) -> Interpreting | None:
    """How a message is translated once more, as it is now, where it is a source."""
    if (languages := source.interprets) is None:
        return None
    return Interpreting(languages.source, languages.target, "segment", 0, is_final=True)


_CUT = (Reason.CANCELLED, Reason.INTERRUPTED, Reason.LENGTH, Reason.TIMEOUT, Reason.ERROR)
"""How a reply ends that could go on."""


async def _refuse_whole(history: History, keys: Keys, reply: MessageRecord) -> TurnRecord:
    """The turn that cut a reply. Raises Conflict where that can't go on: it came to its end, is empty, or is followed."""
    if reply.calls:
        raise Conflict("This reply calls tools; it does not go on.")
    record = await history.turn(keys, reply.turn_id)
    if record is None or record.done is None or record.done.reason not in _CUT:
        raise Conflict("This reply has come to its end; only one that was stopped or cut goes on.")
    if not (reply.content or reply.reasoning or record.interprets):
        raise Conflict("There is nothing in this reply that could go on; ask for another one.")
    if await history.children(keys, reply.message_id):
        raise Conflict("The conversation went on from this reply; only the last one of a branch goes on.")
    return record


async def _asked_model(history: History, keys: Keys, turn_id: str) -> str:
    record = await history.turn(keys, turn_id)
    return record.model if record is not None else ""


async def _message(history: History, keys: Keys, message_id: str, *, field: str, role: str) -> MessageRecord:
    message = await history.message(keys, message_id)
    if message is None:
        raise NotFound(f'`{field}` names no message of this conversation: "{message_id}".')
    if message.role != role:
        raise BadParams(f"`{field}` must name {'an assistant' if role == 'assistant' else 'a user'} message.")
    return message


class Brancher:
    """Changes which branch is active. Its methods raise Refused."""

    def __init__(self, client: Redis, *, history: History, replica: str) -> None:
        self._client = client
        self._replica = replica
        self._history = history

    async def activate(self, conversation: Conversation, message_id: str, *, by: Subscriber) -> None:
        """Makes the branch through a message the active one, from it down along the newest children; `by` asked for it.

        All others who are attached are told, here and on other replicas. Waits for turns whose end is decided.
        """
        while (live := next(iter(conversation.turns), None)) is not None:
            if conversation.blocking():
                raise Busy(_BUSY)
            await runner.ended(live)
        async with conversation.locks.writing:
            changed = await self._activate(conversation, message_id)
        if changed:
            await self.tell(conversation, but=by)

    async def tell(self, conversation: Conversation, *, but: Subscriber | None = None) -> None:
        """Gives the newest page of the active branch, which has become another one, to all who are attached here."""
        conversation.forget()
        if not conversation.subscribers - {but}:
            return
        reading = await read_steadily(self._history, conversation, limit=TOLD_MESSAGES, before=None)
        for subscriber in conversation.subscribers - {but}:
            shown = page_of(conversation, reading, subscriber, limit=TOLD_MESSAGES)
            subscriber.publish(shown.page)
            if shown.wait is not None:
                subscriber.publish(shown.wait)

    async def _activate(self, conversation: Conversation, message_id: str) -> bool:
        match await run_script(
            self._client, ACTIVATE, [conversation.keys.conversation], [message_id, self._replica]
        ):
            case b"ok":
                conversation.forget()
                return True
            case b"same":
                return False
            case b"busy":
                raise Busy(_BUSY)
            case b"unknown":
                raise NotFound(f'`leaf` names no message of this conversation: "{message_id}".')
            case _:
                raise NotFound(f'There is no conversation "{conversation.conversation_id}".')
