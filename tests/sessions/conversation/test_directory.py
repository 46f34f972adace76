"""The list of an owner's conversations, and how one leaves it."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from sessions.errors import NotFound
from sessions.events import Accepted, Deleted
from sessions.records import Owner
from sessions.store.codec import now_ms
from sessions.store.index import MAX_LISTED, SLACK_MS
from tests.sessions.chat_driver import CONVERSATION_ID, Chat, eventually, running_turns_in_store
from tests.sessions.recorder import Recorder


async def content_of(store: Redis) -> list[bytes]:
    """Return the keys of conversations and their lists. The ledgers are numbers, which expire."""
    return [key for key in await store.keys("ms:*{*") if not key.startswith(b"ms:stored")]


async def test_the_newest_comes_first_with_the_head_of_its_first_message(chat: Chat) -> None:
    await chat.exchange("Hello?\n  And much more.", conversation_id="one")
    await chat.exchange("x" * 200, conversation_id="two")
    await chat.exchange("Hello?", conversation_id="three")
    await chat.exchange("Later.", conversation_id="one")
    row = await chat.sessions.rename(chat.owner, "three", "About trees")
    assert (row.title, row.messages) == ("About trees", 2)
    await chat.exchange("And now?", conversation_id="three")
    page = await chat.sessions.conversations(chat.owner, limit=2, before=None)
    assert [(row.conversation_id, row.title, row.messages) for row in page.conversations] == [
        ("three", "About trees", 4),
        ("one", "Hello? And much more.", 4),
    ]
    assert page.conversations[0].updated_at >= page.conversations[1].updated_at
    assert page.has_more
    page = await chat.sessions.conversations(chat.owner, limit=2, before="one")
    assert ([row.title for row in page.conversations], page.has_more) == (["x" * 80], False)
    with pytest.raises(NotFound):
        await chat.sessions.conversations(chat.owner, limit=2, before="nowhere")
    page = await chat.sessions.conversations(Owner("anonymous", "mallory"), limit=10, before=None)
    assert page.conversations == []


async def test_an_expired_one_leaves_the_list_and_a_name_does_not_bring_it_back(
    chat: Chat, store: Redis
) -> None:
    await chat.exchange("Hello?")
    await store.unlink(*chat.keys.pair())
    for name in (CONVERSATION_ID, "nobodys"):
        with pytest.raises(NotFound):
            await chat.sessions.rename(chat.owner, name, "About trees")
    for _ in range(2):
        page = await chat.sessions.conversations(chat.owner, limit=10, before=None)
        assert page.conversations == []
    assert await store.exists(chat.keys.conversation, "ms:conversations:{anonymous/alice}") == 0


async def test_expired_ones_leave_the_list_of_an_owner_who_never_looks(chat: Chat, store: Redis) -> None:
    listed = f"ms:conversations:{{{chat.owner}}}"
    now, kept = now_ms(), 3600 * 1000
    gone, last = now - kept - SLACK_MS - 10_000, now - kept - SLACK_MS + 60_000
    await store.zadd(listed, {"gone": gone, "last": last})
    await chat.exchange("Hello?")
    assert await store.zrange(listed, 0, -1) == [b"last", CONVERSATION_ID.encode()]


async def test_a_list_has_so_many_rows_and_the_oldest_leave_it(chat: Chat, store: Redis) -> None:
    listed = f"ms:conversations:{{{chat.owner}}}"
    now = now_ms()
    await store.zadd(listed, {f"c{number}": now - 1 - number for number in range(MAX_LISTED)})
    await chat.exchange("Hello?")
    assert await store.zcard(listed) == MAX_LISTED
    assert await store.zscore(listed, f"c{MAX_LISTED - 1}") is None
    assert await store.zrevrank(listed, CONVERSATION_ID) == 0


async def test_a_message_that_waits_is_refused_by_a_deletion(chat: Chat, store: Redis) -> None:
    """It does not bring the conversation back."""
    chat.engine.hold_cancels = True
    await chat.running("Hello?", "This")
    waiting = chat.begin_send("No, wait!", on_busy="interrupt")
    await eventually(lambda: len(chat.live_conversation.turns) == 2)
    deleting = asyncio.ensure_future(
        chat.sessions.delete(chat.owner, CONVERSATION_ID, ref=None, subscriber=chat.reader)
    )
    await eventually(lambda: chat.live_conversation.turns[-1].revoked)
    chat.engine.step()
    assert isinstance(await waiting, NotFound)
    await deleting
    assert len(chat.reader.of(Accepted)) == 1
    assert await content_of(store) == []
    assert await running_turns_in_store(store) == 0


async def test_a_deletion_goes_on_when_its_sender_leaves(chat: Chat, reader: Recorder, store: Redis) -> None:
    await chat.running("Hello?", "This")
    deletion = asyncio.ensure_future(
        chat.sessions.delete(chat.owner, CONVERSATION_ID, ref=None, subscriber=reader)
    )
    await eventually(lambda: chat.live_conversation.turns[-1].revoked)
    deletion.cancel()
    await reader.next(Deleted)
    assert await content_of(store) == []
