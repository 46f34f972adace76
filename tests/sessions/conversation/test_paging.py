"""Pages of what was said, along the active branch; what is being said is on the newest."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from redis.asyncio import Redis

from engine.scripted import ScriptedEngine
from sessions.conversation.history_page import MAX_PAGE_BYTES
from sessions.errors import BadParams, NotFound
from sessions.events import Delta, Done
from tests.sessions.chat_driver import Chat, eventually
from tests.sessions.recorder import Recorder


async def test_pages_go_back_to_the_beginning(chat: Chat) -> None:
    """The running reply is one of the newest page's messages, and of no older one's."""
    for number in range(3):
        done = await chat.exchange(f"{number}?", f"{number}.")
    newest = await chat.history(limit=4)
    assert [message.content for message in newest.messages] == ["1?", "1.", "2?", "2."]
    assert (newest.has_more, newest.seq, newest.messages[-1].usage) == (True, done.seq, done.usage)
    older = await chat.history(limit=4, before=newest.messages[0].message_id)
    assert [message.content for message in older.messages] == ["0?", "0."]
    assert not older.has_more
    nothing = await chat.history(before=older.messages[0].message_id)
    assert (nothing.messages, nothing.has_more) == ([], False)
    with pytest.raises(NotFound):
        await chat.history(before="msg_x")
    accepted = await chat.running("3?", "This")
    page = await chat.history(limit=1)
    assert ([message.content for message in page.messages], page.has_more) == (["This"], True)
    page = await chat.history(before=accepted.message_id)
    assert [message.content for message in page.messages] == ["0?", "0.", "1?", "1.", "2?", "2."]


async def test_a_page_has_a_bound_in_bytes(chat: Chat, store: Redis) -> None:
    """However much of the text JSON has to escape; one message always fits. No more is read than fits."""
    for letter in ("a", "b", "a", '"', "\n", "\u00e9"):
        size = len(letter.encode())
        await chat.exchange(letter * (50_000 // size), letter * (70_000 // size))
    before = await _store_output_bytes(store)
    page = await chat.history(limit=100)
    assert await _store_output_bytes(store) - before < 1.5 * MAX_PAGE_BYTES
    assert len(msgspec.json.encode(page)) <= MAX_PAGE_BYTES
    assert page.has_more
    older = await chat.history(before=page.messages[0].message_id)
    assert older.messages[-1].message_id == page.messages[0].parent_id
    await chat.exchange("Write a lot.", "a" * (MAX_PAGE_BYTES + 1))
    page = await chat.history()
    assert (len(page.messages), page.has_more) == (1, True)


async def _store_output_bytes(store: Redis) -> int:
    return int((await store.info("stats"))["total_net_output_bytes"])


async def test_pages_read_at_any_moment_of_an_end_have_the_whole_reply_or_go_on(chat: Chat) -> None:
    """Whatever is written to the store meanwhile, a page and the events behind its `seq` make one whole."""
    for turns in range(30):
        await chat.running(f"Hello {turns}?", "This reply", max_new_tokens=3)
        chat.engine.step()
        for _ in range(turns):
            await (chat.sessions.client.ping() if turns % 3 == 0 else asyncio.sleep(0))
        late = Recorder()
        page = await chat.history(late)
        await eventually(lambda: chat.sessions.statistics().turns == 0)
        shown = page.messages[-1].content + "".join(delta.text for delta in late.of(Delta))
        assert (shown, page.messages[-1].role) == ("This reply was", "assistant")
        assert all(delta.first_seq > page.seq for delta in late.of(Delta))
        assert page.messages[-1].status == "complete" or late.of(Done)
        chat.sessions.disconnect(late)


async def test_a_branch_begins_where_its_parent_says(chat: Chat, engine: ScriptedEngine) -> None:
    """Which must be an answer of this conversation, or none: then a new root stands beside the old one."""
    await chat.exchange("Hello?", "Hello.")
    await chat.exchange("One?", "One.")
    page = await chat.history()
    accepted = await chat.running("Two?", "This", parent_id=page.messages[1].message_id)
    assert accepted.parent_id == page.messages[1].message_id
    assert [message.content for message in engine.requests[-1].messages] == ["Hello?", "Hello.", "Two?"]
    branch = await chat.history()
    assert branch.messages[2].siblings == [page.messages[2].message_id, accepted.message_id]
    await chat.stop()
    await chat.exchange("Anew!", "Anew.", parent_id=None)
    root = await chat.history()
    assert [message.content for message in root.messages] == ["Anew!", "Anew."]
    assert len(root.messages[0].siblings) == 2
    assert len(engine.requests[-1].messages) == 1
    for parent_id, refusal in ((page.messages[0].message_id, BadParams), ("msg_x", NotFound)):
        with pytest.raises(refusal):
            await chat.send("And now?", parent_id=parent_id)
