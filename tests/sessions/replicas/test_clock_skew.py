"""Replicas whose clocks differ: what one says to another counts by the store's clock alone."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextvars import ContextVar

import pytest
from redis.asyncio import Redis

from sessions.events import Accepted, Deleted
from sessions.replicas.rpc import DeleteRequest, RpcRequest, encode_message
from sessions.service import Sessions
from sessions.store.client import POST, run_script
from sessions.turn.turn import Cancel, Cancelled
from tests.sessions.chat_driver import CONVERSATION_ID, Chat, eventually, serving

OFF: ContextVar[float] = ContextVar("OFF", default=0.0)
"""How far the clock is off for all tasks of one replica, in seconds."""


@pytest.fixture(autouse=True)
def clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wall clocks that differ by task."""
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + OFF.get())
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(OFF.get() * 1e9))


@pytest.fixture(params=[-30.0, 30.0], ids=["behind", "ahead"])
async def skewed(request: pytest.FixtureRequest, sessions: Sessions, store: Redis) -> AsyncIterator[Chat]:
    """The same owner on a second replica, whose clock is off; the test's own requests to it are so too."""
    OFF.set(request.param)
    async with serving(store, alone=False) as second:
        yield second
        second.leave()
        await eventually(lambda: second.sessions.statistics().conversations == 0)
    OFF.set(0.0)


async def test_messages_cancels_and_deletions_reach_the_turn(chat: Chat, skewed: Chat) -> None:
    await chat.running("Hello?", "This")
    chat.engine.script("Now.")
    assert await skewed.begin_send("And now?", on_busy="interrupt", client_msg_id="two") is None
    accepted = await skewed.reader.next(Accepted)
    assert accepted.client_msg_id == "two"
    met = await skewed.sessions.cancel_elsewhere(skewed.owner, Cancel(conversation_id=CONVERSATION_ID))
    assert met == Cancelled(accepted.turn_id, already=False)
    await chat.running("Hello again?", "This")
    await skewed.sessions.delete(chat.owner, CONVERSATION_ID, ref="gone", subscriber=skewed.reader)
    await chat.reader.next(Deleted)


async def test_its_own_turns_are_left_alone_and_take_orders(chat: Chat, skewed: Chat) -> None:
    await skewed.running("Hello?", "This")
    assert await chat.reap() == 0
    offset = OFF.get()
    OFF.set(0.0)
    met = await chat.sessions.cancel_elsewhere(chat.owner, Cancel(conversation_id=CONVERSATION_ID))
    OFF.set(offset)
    assert not met.already


async def test_the_newest_conversation_is_the_first_of_the_list(chat: Chat, skewed: Chat) -> None:
    offset = OFF.get()
    for number, (one, off) in enumerate([(chat, 0.0), (skewed, offset), (chat, 0.0), (skewed, offset)]):
        OFF.set(off)
        await one.exchange("Hi!", "Hi.", conversation_id=f"room-{number}")
    page = await chat.sessions.conversations(chat.owner, limit=10, before=None)
    assert [row.conversation_id for row in page.conversations] == ["room-3", "room-2", "room-1", "room-0"]


@pytest.mark.parametrize(("late_ms", "conversations"), [(0, 0), (20_000, 1)])
async def test_an_order_that_nobody_waits_for_any_more_is_left_undone(
    chat: Chat, store: Redis, late_ms: int, conversations: int
) -> None:
    await chat.exchange("Hello?")
    box = f"ms:mail:{chat.sessions.storage.ownership.replica}"
    order = RpcRequest(
        number="1", sender="nobody", owner=chat.owner, conversation_id=CONVERSATION_ID, ask=DeleteRequest()
    )
    await run_script(store, POST, ["elsewhere"], ["nobody", encode_message(order), 1000])
    posted = (await store.lrange("elsewhere", 0, -1))[0]
    head, _, rest = posted.partition(b",")
    at_ms = int(head.removeprefix(b'{"at_ms":'))
    await store.rpush(box, b'{"at_ms":%d,%s' % (at_ms - late_ms, rest))
    chat.sessions.rpc.wake()
    while await store.llen(box) or await store.llen("ms:mail:nobody") != 1 - conversations:
        pass
    page = await chat.sessions.conversations(chat.owner, limit=10, before=None)
    assert len(page.conversations) == conversations
