"""The branches of a conversation: the place of a turn in them, and the active branch.

A conversation is a tree. An edit is another user message beside an old one. A regenerated reply is another reply to the same
message. Nothing is lost: messages with the same parent are siblings, and one branch is active.
"""

from __future__ import annotations

import msgspec
from redis.asyncio import Redis

from sessions.conversation.conversation import Conversation
from sessions.conversation.history_page import page_of, read_branch
from sessions.errors import BadParams, Busy, Conflict, NotFound
from sessions.events import Reason
from sessions.records import MessageRecord, Meta, SourceState, TurnRecord
from sessions.running import runner
from sessions.store.client import ACTIVATE, run_script
from sessions.store.codec import Keys
from sessions.store.history import History
from sessions.turn.message_request import Append, Continue, Edit, Placement, Regenerate
from sessions.turn.turn import Subscriber

MAX_CHILDREN = 1000
"""Children of a message, or of the root: each write reads all of them."""
PUBLISHED_MESSAGES = 50
"""Messages sent to readers that did not ask for the new active branch: the default page."""

_BUSY = "A reply is being written in this conversation; its branch stays active until it has ended."


class ResolvedPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the history. `answered`: the message that the turn answers again; None if it brings its own.

    That may be a reply whose calls are settled: then their results are answered again. `continued`: the reply that is continued.

    `model`: what the old or continued turn requested, or empty. `source`: how the turn answers a source, if the message is one.
    """

    parent_id: str | None
    answered: MessageRecord | None = None
    continued: MessageRecord | None = None
    model: str = ""
    source: SourceState | None = None

    def prompt_tail(self, message: MessageRecord) -> list[MessageRecord]:
        """The end of the prompt: a message, and the reply that is continued."""
        return [message] if self.continued is None else [message, self.continued]


async def resolve_placement(
    history: History, keys: Keys, placement: Placement, meta: Meta
) -> ResolvedPlacement:
    """Find a place. Raises NotFound, BadParams, StoreDown; Conflict, also at `MAX_CHILDREN` versions."""
    found = await _resolve(history, keys, placement, meta)
    if placement != Append() and found.continued is None:
        parent_id = found.parent_id if found.answered is None else found.answered.message_id
        if await history.children(keys, parent_id) >= MAX_CHILDREN:
            raise Conflict(f"This message has {MAX_CHILDREN} versions already, which is the limit.")
    return found


async def _resolve(history: History, keys: Keys, placement: Placement, meta: Meta) -> ResolvedPlacement:
    match placement:
        case Append(parent_id):
            if isinstance(parent_id, msgspec.UnsetType):
                return ResolvedPlacement(parent_id=meta.leaf)
            if parent_id is not None:
                await _message(history, keys, parent_id, field="parent_id", role="assistant")
            return ResolvedPlacement(parent_id=parent_id)
        case Edit(message_id):
            edited = await _message(history, keys, message_id, field="message_id", role="user")
            return ResolvedPlacement(
                parent_id=edited.parent_id,
                model=await _requested_model(history, keys, edited.turn_id),
                source=_whole_source(edited),
            )
        case Regenerate(reply_id) | Continue(reply_id):
            reply = await _message(history, keys, reply_id, field="message_id", role="assistant")
            if isinstance(placement, Regenerate) and placement.is_last and meta.leaf != reply_id:
                raise Conflict("Another request has changed this conversation: read it again.")
            answered = await history.message(keys, reply.parent_id or "")
            if answered is None:
                raise NotFound("The message that this reply answers is no longer in the history.")
            model = await _requested_model(history, keys, reply.turn_id)
            found = ResolvedPlacement(
                parent_id=answered.parent_id,
                answered=answered,
                model=model,
                source=_whole_source(answered),
            )
            if isinstance(placement, Regenerate):
                return found
            record = await _refuse_complete(history, keys, reply)
            return msgspec.structs.replace(found, continued=reply, source=record.source)


def _whole_source(message: MessageRecord) -> SourceState | None:
    """Return how to answer a message again if it is a whole source."""
    if (languages := message.languages) is None:
        return None
    return SourceState(languages.source, languages.target, "segment", is_final=True)


_CUT = (Reason.CANCELLED, Reason.INTERRUPTED, Reason.LENGTH, Reason.TIMEOUT, Reason.ERROR)
"""Ends after which a reply can be continued."""


async def _refuse_complete(history: History, keys: Keys, reply: MessageRecord) -> TurnRecord:
    """Return the turn of a cut reply. Raises Conflict if it can't be continued: it is complete, empty, followed, or has calls."""
    if reply.calls:
        raise Conflict("This reply calls tools; it can't be continued.")
    record = await history.turn(keys, reply.turn_id)
    if record is None or record.done is None or record.done.reason not in _CUT:
        raise Conflict("This reply is complete; only one that was stopped or cut can be continued.")
    if not (reply.content or reply.reasoning or record.source):
        raise Conflict("This reply is empty; ask for another one.")
    if await history.children(keys, reply.message_id):
        raise Conflict(
            "The conversation has continued after this reply; only the last one of a branch can be continued."
        )
    return record


async def _requested_model(history: History, keys: Keys, turn_id: str) -> str:
    record = await history.turn(keys, turn_id)
    return record.model if record is not None else ""


async def _message(history: History, keys: Keys, message_id: str, *, field: str, role: str) -> MessageRecord:
    message = await history.message(keys, message_id)
    if message is None:
        raise NotFound(f'`{field}` names no message of this conversation: "{message_id}".')
    if message.role != role:
        raise BadParams(f"`{field}` must name {'an assistant' if role == 'assistant' else 'a user'} message.")
    return message


class BranchSwitcher:
    """Changes the active branch. Its methods raise Refused."""

    def __init__(self, client: Redis, *, history: History, replica: str) -> None:
        self._client = client
        self._replica = replica
        self._history = history

    async def activate(self, conversation: Conversation, message_id: str, *, by: Subscriber) -> None:
        """Activate the branch through a message and on along the newest children, as `by` requested.

        Tells all other connections, here and on other replicas. Waits for turns whose end is decided.
        """
        while (live := next(iter(conversation.turns), None)) is not None:
            if conversation.blocking():
                raise Busy(_BUSY)
            await runner.ended(live)
        async with conversation.write_lock:
            changed = await self._activate(conversation, message_id)
        if changed:
            await self.publish(conversation, but=by)

    async def publish(self, conversation: Conversation, *, but: Subscriber | None = None) -> None:
        """Send the newest page of the new active branch to attached connections except `but`."""
        conversation.note_change()
        if not conversation.subscribers - {but}:
            return
        reading = await read_branch(self._history, conversation, limit=PUBLISHED_MESSAGES, before=None)
        for subscriber in conversation.subscribers - {but}:
            shown = page_of(conversation, reading, subscriber, limit=PUBLISHED_MESSAGES)
            subscriber.publish(shown.page)
            if shown.wait is not None:
                subscriber.publish(shown.wait)

    async def _activate(self, conversation: Conversation, message_id: str) -> bool:
        match await run_script(
            self._client, ACTIVATE, [conversation.keys.conversation], [message_id, self._replica]
        ):
            case b"ok":
                conversation.note_change()
                return True
            case b"same":
                return False
            case b"busy":
                raise Busy(_BUSY)
            case b"unknown":
                raise NotFound(f'`leaf` names no message of this conversation: "{message_id}".')
            case _:
                raise NotFound(f'There is no conversation "{conversation.conversation_id}".')
