"""Pages of a conversation's history: stored messages, and the running reply as far as it was published."""

from __future__ import annotations

from typing import Literal

import msgspec

from sessions.conversation.catch_up import PartialReply, catch_up_to, partial_reply
from sessions.conversation.conversation import Conversation
from sessions.errors import NotFound
from sessions.events import Attachment, Event, Languages, ShownCall, Status, Usage, attachments_of
from sessions.records import MessageRecord, TurnRecord, status_of
from sessions.store.history.codec import now_ms
from sessions.store.history.history import Branch, History, Siblings
from sessions.turn.turn import Subscriber, Turn

MAX_PAGE_BYTES = 256 * 1024
RUNNING = "running"
_FRAME_BYTES = 2048  # the rest of a frame beside its messages: ids of at most 128 code points


class ShownMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a page. `status`: complete, running, or the reason its turn ended; `created_at`: Unix milliseconds.

    `siblings`: the messages with the same parent, in the order in which they came, itself too; of many the nearest.
    `sibling_count`: their number; `sibling_index`: the number of earlier ones. `model`: the model that wrote a
    reply. `reasoning`, `calls`: of a reply, if it has them; `attachments`: of a user's message.
    `interprets`: the message is a source, and its replies are translations.
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
    """Messages oldest first along the active branch; `seq` is of the last event that they include. Not journalled.

    It has no `ref` if nobody asked for it: another branch became active.
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
    """Return a page with the running reply in its place; its reader follows the text from there."""
    branch, live = reading.branch, conversation.live
    messages, seq = _shown(branch), branch.seq
    if live is not None:
        seq = conversation.published.seq
        # otherwise its end was in the store when that was read
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
        interprets=message.interprets or msgspec.UNSET,
        attachments=attachments_of(message.images) or msgspec.UNSET,
    )


def _put_reply(reply: RunningReply, messages: list[ShownMessage], pending: dict[str, Siblings]) -> None:
    """Put the reply as published behind its message: running, or ended and not saved yet."""
    record, done = reply.record, reply.record.done
    if record.continues is not None:
        _extend_reply(reply, messages)
        return
    if record.reply_id not in pending:
        return
    place = next(place for place, one in enumerate(messages) if one.message_id == record.message_id)
    if done is not None and done.removed:
        if messages[place].turn_id == record.turn_id:
            del messages[place]
        return
    message = MessageRecord(
        message_id=record.reply_id,
        parent_id=record.message_id,
        turn_id=record.turn_id,
        role="assistant",
        content=reply.reply.text,
        status=RUNNING if done is None else status_of(done.reason),
        created_at=now_ms(),
        usage=None if done is None else done.usage,
        model=record.writer,
        reasoning=reply.reply.reasoning,
        calls=reply.reply.calls,
    )
    messages.insert(place + 1, _message(message, pending[record.reply_id]))


def _extend_reply(reply: RunningReply, messages: list[ShownMessage]) -> None:
    """Do the same for a continued reply, which has its place and its first part."""
    record, done = reply.record, reply.record.done
    place = next((n for n, one in enumerate(messages) if one.message_id == record.reply_id), None)
    if place is None or (done is not None and record.leaves_reply_unchanged(done, reply.reply.calls)):
        return
    messages[place] = msgspec.structs.replace(
        messages[place],
        turn_id=record.turn_id,
        content=reply.reply.text,
        status=RUNNING if done is None else status_of(done.reason),
        usage=None if done is None else done.usage,
        model=record.writer,
        reasoning=reply.reply.reasoning or msgspec.UNSET,
        calls=tuple(call.shown() for call in reply.reply.calls) or msgspec.UNSET,
    )


def _has_ended(branch: Branch, record: TurnRecord) -> bool:
    """Return whether the end of a turn was in the store when a branch was read."""
    ended = (one.turn_id for one in branch.messages if one.role == "assistant")
    return record.turn_id in ended


def _first_that_fits(messages: list[ShownMessage]) -> int:
    """Return the first message of a page of at most MAX_PAGE_BYTES; one message always fits."""
    left = MAX_PAGE_BYTES - _FRAME_BYTES
    for place in range(len(messages) - 1, -1, -1):
        left -= len(msgspec.json.encode(messages[place])) + 1
        if left < 0 and place < len(messages) - 1:
            return place + 1
    return 0
