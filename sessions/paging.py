"""What a reader of a conversation's history is given: stored messages, and the running reply as far as it was published."""

from __future__ import annotations

import msgspec

from sessions.conversation import Conversation, LiveTurn, Subscriber
from sessions.errors import NotFound
from sessions.history import Branch, History, now_ms
from sessions.records import MessageRecord
from sessions.turn import TurnState

MAX_PAGE_BYTES = 256 * 1024
RUNNING = "running"


class HistoryPage(msgspec.Struct, frozen=True, kw_only=True):
    """Messages oldest first along the active branch; `seq` is of the last event that they hold."""

    epoch: str
    seq: int
    messages: list[MessageRecord]
    siblings: list[list[str]]
    has_more: bool


async def steady_branch(
    history: History, conversation: Conversation, *, limit: int, before: str | None
) -> Branch:
    """The newest messages, or those before a message; no turn began or ended while they were read.

    Raises NotFound, StoreDown.
    """
    while True:
        version = conversation.version
        branch = await _branch(history, conversation, limit=limit, before=before)
        if conversation.version == version:
            return branch


async def _branch(history: History, conversation: Conversation, *, limit: int, before: str | None) -> Branch:
    leaf: str | None = None
    if before is not None:
        message = await history.message(conversation.keys, before)
        if message is None:
            raise NotFound(f"before: no message {before!r} in this conversation.")
        leaf = message.parent_id
    branch = await history.branch(conversation.keys, leaf=leaf, limit=limit)
    if not branch.epoch:
        raise NotFound(f"No conversation {conversation.conversation_id!r}.")
    if before is not None and leaf is None:  # nothing comes before a root
        return msgspec.structs.replace(branch, messages=[], siblings=[], older=None)
    return branch


def page_of(conversation: Conversation, branch: Branch, reader: Subscriber, *, newest: bool) -> HistoryPage:
    """A page; on the newest one the running reply is the last message, and the reader follows it from there."""
    messages, siblings, seq = list(branch.messages), list(branch.siblings), branch.seq
    live = _running(conversation)
    if live is not None and newest:
        messages.append(_partial(live))
        siblings.append([live.record.reply_id])
        live.followers.add(reader)
    if live is not None:
        seq = conversation.published_seq
    first = _first_that_fits(messages)
    return HistoryPage(
        epoch=branch.epoch,
        seq=seq,
        messages=messages[first:],
        siblings=siblings[first:],
        has_more=branch.older is not None or first > 0,
    )


def _running(conversation: Conversation) -> LiveTurn | None:
    states = (TurnState.ACCEPTED, TurnState.STREAMING, TurnState.ENDING)
    return next(
        (live for live in conversation.turns if live.accepted.done() and live.turn.state in states), None
    )


def _partial(live: LiveTurn) -> MessageRecord:
    return MessageRecord(
        message_id=live.record.reply_id,
        parent_id=live.record.message_id,
        turn_id=live.record.turn_id,
        role="assistant",
        content=live.published_text,
        status=RUNNING,
        created_at=now_ms(),
    )


def _first_that_fits(messages: list[MessageRecord]) -> int:
    """Where a page of at most MAX_PAGE_BYTES of content begins; one message always fits."""
    size = 0
    for place in range(len(messages) - 1, -1, -1):
        size += len(messages[place].content.encode()) + 256
        if size > MAX_PAGE_BYTES and place < len(messages) - 1:
            return place + 1
    return 0
