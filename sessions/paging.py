"""What a reader of a conversation's history is given: stored messages, and the running reply as far as it was published."""

from __future__ import annotations

import msgspec

from sessions.conversation import Conversation, LiveTurn, Subscriber
from sessions.errors import NotFound
from sessions.events import Status
from sessions.history import Branch, History, now_ms
from sessions.records import MessageRecord, status_of

MAX_PAGE_BYTES = 256 * 1024
RUNNING = "running"
_FRAME_BYTES = 2048  # what a frame has around its messages: ids of at most 128 code points
_FIELD_BYTES = 16  # a field's name, where a tuple has none


class HistoryPage(msgspec.Struct, frozen=True, kw_only=True):
    """Messages oldest first along the active branch; `seq` is of the last event that they hold.

    `wait`: where the reply stands that is last in them and has no text so far, if that was told.
    """

    epoch: str
    seq: int
    messages: list[MessageRecord]
    siblings: list[list[str]]
    has_more: bool
    wait: Status | None = None


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


def page_of(
    conversation: Conversation, branch: Branch, reader: Subscriber, *, limit: int, newest: bool
) -> HistoryPage:
    """A page; on the newest one the running reply is the last message, and the reader follows it from there."""
    messages, siblings, seq = list(branch.messages), list(branch.siblings), branch.seq
    live = next((live for live in conversation.turns if live.turn.accepted_at is not None), None)
    wait: Status | None = None
    if live is not None:
        seq = conversation.published_seq
        if newest and _waits_for_its_reply(live, messages):
            _add_reply(live, messages, siblings)
            live.followers.add(reader)
            wait = live.wait
    first = max(_first_that_fits(messages, siblings), len(messages) - limit)
    return HistoryPage(
        epoch=branch.epoch,
        seq=seq,
        messages=messages[first:],
        siblings=siblings[first:],
        has_more=branch.older is not None or first > 0,
        wait=wait,
    )


def _waits_for_its_reply(live: LiveTurn, messages: list[MessageRecord]) -> bool:
    """Whether the store had no end of the turn when it was read: a write of it may have come in since."""
    return bool(messages) and messages[-1].message_id == live.record.message_id


def _add_reply(live: LiveTurn, messages: list[MessageRecord], siblings: list[list[str]]) -> None:
    """The reply as connections know it: running, or ended and not saved so far."""
    done = live.record.done
    if done is not None and done.removed:
        del messages[-1], siblings[-1]
        return
    messages.append(
        MessageRecord(
            message_id=live.record.reply_id,
            parent_id=live.record.message_id,
            turn_id=live.record.turn_id,
            role="assistant",
            content=live.published_text if done is None else live.turn.text,
            status=RUNNING if done is None else status_of(done.reason),
            created_at=now_ms(),
            usage=None if done is None else done.usage,
        )
    )
    siblings.append([live.record.reply_id])


def _first_that_fits(messages: list[MessageRecord], siblings: list[list[str]]) -> int:
    """Where a page of at most MAX_PAGE_BYTES begins; one message always fits."""
    left = MAX_PAGE_BYTES - _FRAME_BYTES
    for place in range(len(messages) - 1, -1, -1):
        left -= len(msgspec.json.encode((messages[place], siblings[place]))) + _FIELD_BYTES
        if left < 0 and place < len(messages) - 1:
            return place + 1
    return 0
