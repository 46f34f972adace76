"""A page of a conversation's history, and a stored turn's facts, for clients."""

from __future__ import annotations

from typing import Literal

import msgspec

from sessions.conversation.catch_up import PartialReply, catch_up_to, partial_reply
from sessions.conversation.conversation import Conversation
from sessions.errors import NotFound
from sessions.events import Attachment, Event, Languages, ShownCall, Status, Usage, attachments_of
from sessions.records import MessageRecord, Meta, Owner, TurnRecord, reply_message
from sessions.store.codec import Keys, now_ms
from sessions.store.history import Branch, History, Notes, Siblings
from sessions.turn.turn import Subscriber, Turn


class StoredTurn(msgspec.Struct, frozen=True):
    """A turn. `reply`: None until it has ended; `note`: what its endpoint keeps with it."""

    record: TurnRecord
    reply: MessageRecord | None
    note: bytes


class TurnReader:
    """Reads turns, each for its owner only. Methods raise StoreDown."""

    def __init__(self, history: History, notes: Notes) -> None:
        self._history = history
        self._notes = notes

    async def turn(self, owner: Owner, conversation_id: str, turn_id: str) -> StoredTurn | None:
        """Return a turn that an endpoint kept a note of; None if this owner has none."""
        keys = Keys.of(owner, conversation_id)
        record, note = await self._history.turn(keys, turn_id), await self._notes.get(keys, turn_id)
        if record is None or note is None:
            return None
        reply = None if record.done is None else await self._history.message(keys, record.reply_id)
        if record.done is not None and reply is None:
            return None  # it was removed from the history
        return StoredTurn(record, reply, note)

    async def awaits_calls(self, owner: Owner, conversation_id: str, turn_id: str) -> bool:
        """Return whether the turn that follows another one's calls is not accepted yet."""
        keys = Keys.of(owner, conversation_id)
        record, meta = await self._history.turn(keys, turn_id), await self._history.load(keys)
        if record is None or meta is None or meta.running is None:
            return False
        return await self._history.follower(keys, record) is None

    async def path(
        self, owner: Owner, conversation_id: str, message_id: str | None = None, *, most_bytes: int
    ) -> tuple[list[MessageRecord], bool]:
        """Return the messages up to one, oldest first, and whether there are older ones.

        `message_id` None: up to the active leaf. The first message is the one that exceeds `most_bytes`.
        """
        branch = await self._history.branch(
            Keys.of(owner, conversation_id), leaf=message_id, most_bytes=most_bytes
        )
        return branch.messages, branch.older is not None

    async def conversation(self, owner: Owner, conversation_id: str) -> tuple[Meta, bytes | None] | None:
        """Return the facts of a conversation and its description; None if this owner has none."""
        keys = Keys.of(owner, conversation_id)
        meta = await self._history.load(keys)
        return None if meta is None else (meta, await self._notes.description(keys))

    async def is_empty(self, owner: Owner, conversation_id: str) -> bool:
        """Return whether a conversation has no messages."""
        meta = await self._history.load(Keys.of(owner, conversation_id))
        return meta is not None and not meta.messages


MAX_PAGE_BYTES = 256 * 1024
_FRAME_BYTES = 2048  # a frame without its messages: ids of at most 128 code points


class ShownMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the page. `status`: `complete`, `running`, or the reason why the message's turn ended.

    `created_at`: Unix milliseconds. `siblings`: the messages with the same parent, including this one, oldest first. If there
    are many, only the nearest are listed. `sibling_index`: how many siblings are older than this message. `model`: the model
    that wrote the reply. `interprets`: the message is the source of live translations.
    """

    message_id: str
    parent_id: str | None
    siblings: list[str]
    sibling_count: int
    sibling_index: int
    turn_id: str
    role: Literal["user", "assistant"]
    content: str
    status: str
    created_at: int
    usage: Usage | None = None
    model: str | None = None
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    calls: tuple[ShownCall, ...] | msgspec.UnsetType = msgspec.UNSET
    interprets: Languages | msgspec.UnsetType = msgspec.UNSET
    attachments: tuple[Attachment, ...] | msgspec.UnsetType = msgspec.UNSET


class HistoryPage(Event, frozen=True, kw_only=True, tag="history"):
    """Messages of the active branch, oldest first. Not journalled. Sent without `ref` if another branch became active.

    `seq`: the last event that the messages include.
    """

    epoch: str
    seq: int
    messages: list[ShownMessage]
    has_more: bool | msgspec.UnsetType = msgspec.UNSET
    ref: str | None = None


class PageWithStatus(msgspec.Struct, frozen=True):
    """A page, with the status of its running reply if that has no text yet."""

    page: HistoryPage
    wait: Status | None


class RunningReply(msgspec.Struct, frozen=True):
    """A running reply, as far as it was published, or journalled by another replica."""

    record: TurnRecord
    reply: PartialReply


class BranchSnapshot(msgspec.Struct, frozen=True):
    """The store's state at one moment: a branch, and the reply in it that another replica writes."""

    branch: Branch
    elsewhere: RunningReply | None


async def read_branch(
    history: History, conversation: Conversation, *, limit: int, before: str | None
) -> BranchSnapshot:
    """Return the newest messages, or those before a message, read while no turn began or ended and no branch became active.

    Raises NotFound, StoreDown.
    """
    while True:
        version = conversation.known.version
        branch = await _branch(history, conversation, limit=limit, before=before)
        elsewhere = await _remote_reply(history, conversation) if branch.is_running else None
        await catch_up_to(history, conversation, branch.epoch, branch.seq)
        if conversation.known.version == version and _is_up_to_date(conversation, branch):
            return BranchSnapshot(branch, elsewhere)


def _is_up_to_date(conversation: Conversation, branch: Branch) -> bool:
    return conversation.live is not None or conversation.published.seq == branch.seq


async def _remote_reply(history: History, conversation: Conversation) -> RunningReply | None:
    if conversation.live is not None:
        return None
    meta = await history.load(conversation.keys)
    record = await history.turn(conversation.keys, meta.running) if meta and meta.running else None
    if record is None:
        return None
    events = await history.journal(conversation.keys, after_seq=record.accepted_seq)
    base = await history.base(conversation.keys, record)
    return RunningReply(record, partial_reply(events, record.turn_id, base))


async def _branch(history: History, conversation: Conversation, *, limit: int, before: str | None) -> Branch:
    leaf: str | None = None
    if before is not None:
        leaf = await history.parent(conversation.keys, before)
        if leaf is None:
            raise NotFound(f'`before` names no message of this conversation: "{before}".')
    branch = await history.branch(conversation.keys, leaf=leaf, limit=limit, most_bytes=MAX_PAGE_BYTES)
    if not branch.epoch:
        raise NotFound(f'There is no conversation "{conversation.conversation_id}".')
    if before is not None and not leaf:  # a root has nothing before it
        return msgspec.structs.replace(branch, messages=[], siblings=[], older=None, pending={})
    return branch


def page_of(
    conversation: Conversation,
    reading: BranchSnapshot,
    reader: Subscriber,
    *,
    limit: int,
    ref: str | None = None,
) -> PageWithStatus:
    """Return a page with the running reply in its place; `reader` follows the text from there."""
    branch, live = reading.branch, conversation.live
    messages, seq = _shown(branch), branch.seq
    if live is not None:
        seq = conversation.published.seq
        # otherwise its end was in the store when the branch was read
        if not live.waits and not _has_ended(branch, live.record):
            _put_reply(RunningReply(live.record, _local_reply(live)), messages, branch.pending)
    elif reading.elsewhere is not None and not _has_ended(branch, reading.elsewhere.record):
        _put_reply(reading.elsewhere, messages, branch.pending)
    first = max(_first_that_fits(messages), len(messages) - limit, 0)
    page = HistoryPage(
        conversation_id=conversation.conversation_id,
        epoch=branch.epoch,
        seq=seq,
        messages=messages[first:],
        has_more=branch.older is not None or first > 0,
        ref=ref,
    )
    if live is None or all(message.message_id != live.record.reply_id for message in page.messages):
        return PageWithStatus(page, None)
    live.followers.add(reader)
    return PageWithStatus(page, live.wait)


def _local_reply(live: Turn) -> PartialReply:
    calls = live.tool_round.calls.records
    if live.record.done is None:
        return PartialReply(live.published_text, live.published_reasoning, calls)
    return PartialReply(live.turn.text, live.turn.reasoning, calls)


def _shown(branch: Branch) -> list[ShownMessage]:
    return [_message(*pair) for pair in zip(branch.messages, branch.siblings, strict=True)]


def _message(message: MessageRecord, siblings: Siblings) -> ShownMessage:
    return ShownMessage(
        message_id=message.message_id,
        parent_id=message.parent_id,
        siblings=siblings.shown_ids,
        sibling_count=siblings.count,
        sibling_index=siblings.before,
        turn_id=message.turn_id,
        role=message.role,
        content=message.content,
        status=message.status,
        created_at=message.created_at,
        usage=message.usage,
        model=message.model,
        reasoning=message.reasoning or msgspec.UNSET,
        calls=tuple(call.shown() for call in message.calls) or msgspec.UNSET,
        interprets=message.languages or msgspec.UNSET,
        attachments=attachments_of(message.images) or msgspec.UNSET,
    )


def _put_reply(reply: RunningReply, messages: list[ShownMessage], pending: dict[str, Siblings]) -> None:
    """Show a published reply: one that runs, or has ended and is not saved yet. It follows its message, or extends a reply."""
    record, done, known = reply.record, reply.record.done, reply.reply
    if record.continues is not None:
        found = next((n for n, one in enumerate(messages) if one.message_id == record.reply_id), None)
        if found is None or (done is not None and record.leaves_reply_unchanged(done, known.calls)):
            return
        place, first_part = found, messages.pop(found)
        siblings = Siblings(first_part.siblings, first_part.sibling_count, first_part.sibling_index)
        created_at = first_part.created_at
    elif record.reply_id in pending:
        place = 1 + next(n for n, one in enumerate(messages) if one.message_id == record.message_id)
        if done is not None and done.removed:
            if messages[place - 1].turn_id == record.turn_id:
                del messages[place - 1]
            return
        siblings, created_at = pending[record.reply_id], now_ms()
    else:
        return
    message = reply_message(
        record,
        done,
        content=known.text,
        reasoning=known.reasoning,
        calls=known.calls,
        created_at=created_at,
    )
    messages.insert(place, _message(message, siblings))


def _has_ended(branch: Branch, record: TurnRecord) -> bool:
    """Return whether the end of a turn was in the store when a branch was read."""
    ended = (one.turn_id for one in branch.messages if one.role == "assistant")
    return record.turn_id in ended


def _first_that_fits(messages: list[ShownMessage]) -> int:
    """Return the index of a page's first message, within MAX_PAGE_BYTES; one message always fits."""
    left = MAX_PAGE_BYTES - _FRAME_BYTES
    for place in range(len(messages) - 1, -1, -1):
        left -= len(msgspec.json.encode(messages[place])) + 1
        if left < 0 and place < len(messages) - 1:
            return place + 1
    return 0
