"""Edits and other replies stand beside what was said; any of them can be made active again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from redis.asyncio import Redis

from engine.messages import PLAIN, Message, ReplySpec
from sessions.commands.branches import MAX_CHILDREN
from sessions.conversation.history_page import HistoryPage
from sessions.errors import BadParams, Busy, Conflict, NotFound
from sessions.events import Accepted, Done, Reason, Removed, Status
from sessions.turn.message_request import Append, Edit, Regenerate
from tests.sessions.chat_driver import CONVERSATION_ID, Chat, eventually
from tests.sessions.recorder import Recorder, continuous


async def ids(chat: Chat) -> list[str]:
    """The messages of the active branch, oldest first."""
    await chat.wait_idle()
    return [message.message_id for message in (await chat.history()).messages]


async def history_texts(chat: Chat) -> list[str]:
    await chat.wait_idle()
    return await chat.texts()


async def count(chat: Chat) -> int:
    page = await chat.sessions.conversations(chat.owner, limit=1, before=None)
    return page.conversations[0].messages


async def regenerate(chat: Chat, reply_id: str, reply: str) -> Done:
    return await chat.exchange("", reply, place=Regenerate(reply_id))


async def test_an_edit_and_another_reply_stand_beside_the_old_ones(chat: Chat) -> None:
    """For another reply no message of the user's is written; the prompt ends with the one that is answered again."""
    first = await chat.exchange("Hello?", "Hello.")
    await chat.exchange("One?", "One.")
    _, answer, one, old = await ids(chat)
    await chat.history(second := Recorder())
    await regenerate(chat, old, "Uno.")
    accepted = chat.reader.of(Accepted)[-1]
    assert (accepted.message_id, accepted.parent_id, accepted.content) == (one, answer, None)
    assert second.of(Accepted)[-1].content == "One?"  # others are told which message is answered again
    assert chat.prompt() == ["Hello?", "Hello.", "One?"]
    assert await history_texts(chat) == ["Hello?", "Hello.", "One?", "Uno."]
    new = (await chat.history()).messages[-1]
    assert (new.siblings, new.parent_id) == ([old, new.message_id], one)
    await chat.exchange("Two?", "Two.", place=Edit(one))
    assert await history_texts(chat) == ["Hello?", "Hello.", "Two?", "Two."]
    assert chat.reader.of(Accepted)[-1].parent_id == answer
    two = (await chat.history()).messages[2]
    assert two.siblings == [one, two.message_id]
    assert chat.prompt() == ["Hello?", "Hello.", "Two?"]
    assert await count(chat) == 7
    await regenerate(chat, first.message_id, "Hi.")  # further up
    await chat.exchange("And now?", "Now.")
    assert await history_texts(chat) == ["Hello?", "Hi.", "And now?", "Now."]
    assert chat.prompt() == ["Hello?", "Hi.", "And now?"]
    page = await chat.history(leaf=one)  # down to its newest reply
    assert [message.content for message in page.messages] == ["Hello?", "Hello.", "One?", "Uno."]
    await chat.exchange("Go on.", "On.")
    assert await history_texts(chat) == ["Hello?", "Hello.", "One?", "Uno.", "Go on.", "On."]
    assert continuous(chat.reader.events)


async def test_another_last_reply_is_refused_once_something_follows(chat: Chat) -> None:
    first = await chat.exchange("Hello?", "Hello.")
    await chat.exchange("And now?", "Now.")
    with pytest.raises(Conflict, match="read it again"):
        await chat.exchange("", "Hi.", place=Regenerate(first.message_id, is_last=True))
    assert await history_texts(chat) == ["Hello?", "Hello.", "And now?", "Now."]


async def test_a_running_reply_is_shown_with_its_siblings(chat: Chat) -> None:
    done = await chat.exchange("Hello?", "Hello.")
    await chat.running("", "This", place=Regenerate(done.message_id))
    page = await chat.history()
    question, reply = page.messages
    assert (reply.content, reply.status, reply.parent_id) == ("This", "running", question.message_id)
    assert reply.siblings == [done.message_id, reply.message_id]
    older = await chat.history(before=reply.message_id)
    assert [message.message_id for message in older.messages] == [question.message_id]


async def test_another_reply_that_is_stopped_is_kept_and_one_that_is_rolled_back_goes_alone(
    chat: Chat, reader: Recorder
) -> None:
    await chat.exchange("Hello?", "Hello.")
    done = await chat.exchange("One?", "One.")
    await chat.running("", "This", place=Regenerate(done.message_id))
    assert (await chat.stop(rollback=True)).removed
    assert await history_texts(chat) == ["Hello?", "Hello.", "One?", "One."]
    assert (await chat.history()).messages[-1].siblings == [done.message_id]
    assert await count(chat) == 4
    question = (await ids(chat))[0]
    await chat.running("Hi?", "This", place=Edit(question))
    await chat.stop(rollback=True)
    assert await history_texts(chat) == ["Hello?", "Hello.", "One?", "One."]
    await chat.running("", "This", place=Regenerate(done.message_id))
    assert (await chat.stop()).reason is Reason.CANCELLED
    assert await history_texts(chat) == ["Hello?", "Hello.", "One?", "This"]


async def test_an_ended_reply_is_taken_back_alone_and_the_message_with_the_last_one(chat: Chat) -> None:
    first = await chat.exchange("Hello?", "Hello.")
    second = await regenerate(chat, first.message_id, "Hi.")
    third = await regenerate(chat, first.message_id, "Hey.")
    for done, left in ((third, ["Hello?", "Hi."]), (first, ["Hello?", "Hi."]), (second, [])):
        await chat.take_back(done.turn_id)
        assert await history_texts(chat) == left
    assert await count(chat) == 0
    assert len(chat.reader.of(Removed)) == 3


async def test_a_reply_that_was_followed_stays_and_its_sibling_may_go(chat: Chat) -> None:
    first = await chat.exchange("Hello?", "Hello.")
    second = await regenerate(chat, first.message_id, "Hi.")
    await chat.exchange("And now?", "Now.")
    with pytest.raises(Conflict):
        await chat.take_back(second.turn_id)
    await chat.take_back(first.turn_id)
    assert await history_texts(chat) == ["Hello?", "Hi.", "And now?", "Now."]


@pytest.mark.parametrize("mode", ["regenerate", "edit"])
async def test_an_interrupt_can_be_an_edit_or_another_reply(mode: str, chat: Chat) -> None:
    """Also of the message whose reply is being written."""
    accepted = await chat.running("Hello?", "This")
    running_id = chat.live_conversation.turns[0].record.reply_id
    place = Regenerate(running_id) if mode == "regenerate" else Edit(accepted.message_id)
    content = "" if mode == "regenerate" else "Hi?"
    with pytest.raises(Busy):
        await chat.send(content, place=place)
    chat.engine.script("Well.")
    await chat.running(content, "Well.", place=place, on_busy="interrupt")
    chat.engine.step()
    assert await history_texts(chat) == ["Hello?" if mode == "regenerate" else "Hi?", "Well."]


async def test_the_same_request_makes_one_turn_and_another_one_under_its_id_is_a_conflict(chat: Chat) -> None:
    first = await chat.exchange("Hello?", "Hello.")
    question, _ = await ids(chat)
    done = await chat.exchange("", "Hi.", place=Regenerate(first.message_id), client_msg_id="again")
    again = await chat.send("", place=Regenerate(first.message_id), client_msg_id="again")
    assert (again.duplicate, again.turn_id, again.message_id) == (True, done.turn_id, question)
    for content, place in (
        ("", Regenerate(done.message_id)),
        ("", Edit(question)),
        ("", Append()),
    ):
        with pytest.raises(Conflict):
            await chat.send(content, place=place, client_msg_id="again")


async def test_a_place_must_be_a_message_of_the_right_kind(chat: Chat) -> None:
    with pytest.raises(NotFound):
        await chat.history(leaf="msg_x")
    await chat.exchange("Hello?", "Hello.")
    question, answer = await ids(chat)
    for place in (Regenerate(question), Edit(answer)):
        with pytest.raises(BadParams):
            await chat.send("x", place=place)
    for place in (Regenerate("msg_x"), Edit("msg_x")):
        with pytest.raises(NotFound):
            await chat.send("x", place=place)
    with pytest.raises(NotFound):
        await chat.history(leaf="msg_x")
    assert await history_texts(chat) == ["Hello?", "Hello."]


async def test_others_who_are_attached_are_told_of_another_branch_once(chat: Chat, reader: Recorder) -> None:
    second = Recorder()
    first = await chat.exchange("Hello?", "Hello.")
    await regenerate(chat, first.message_id, "Hi.")
    await chat.history(second)
    for _ in range(2):  # the second time, nothing changes
        await chat.history(leaf=first.message_id)
    (page,) = second.of(HistoryPage)
    assert ([message.content for message in page.messages], page.ref) == (["Hello?", "Hello."], None)
    assert page.seq == (await chat.history()).seq
    assert not reader.of(HistoryPage)
    await chat.sessions.brancher.publish(chat.live_conversation)
    assert len(reader.of(HistoryPage)) == 1


async def test_whoever_is_told_of_another_branch_learns_what_a_new_reply_waits_for(chat: Chat) -> None:
    """Another replica made it active, and a message came right behind."""
    await chat.running("Hello?")
    live = chat.live_conversation.turns[0]
    chat.live_conversation.publish_status(
        live,
        Status(
            conversation_id=CONVERSATION_ID, turn_id=live.record.turn_id, state="queued", queue_position=1
        ),
    )
    await chat.sessions.brancher.publish(chat.live_conversation)
    assert [type(event) for event in chat.reader.events[-2:]] == [HistoryPage, Status]


async def test_no_other_branch_becomes_active_under_a_running_reply(chat: Chat, store: Redis) -> None:
    """Be it written here or on another replica; one that is just ending is waited for."""
    chat.engine.hold_cancels = True
    done = await chat.exchange("Hello?", "Hello.")
    await chat.running("One?", "This")
    with pytest.raises(Busy):
        await chat.history(leaf=done.message_id)
    chat.cancel()
    pending = asyncio.ensure_future(chat.history(leaf=done.message_id))
    chat.engine.step()
    assert (await pending).messages[-1].content == "This"
    await chat.wait_idle()
    await store.hset(chat.keys.conversation, "running", "a turn elsewhere")
    with pytest.raises(Busy):
        await chat.history(leaf=done.message_id)
    await store.hset(chat.keys.conversation, "running", "")


async def test_a_message_that_comes_with_another_branch_goes_behind_that(chat: Chat, store: Redis) -> None:
    """Another replica made it active after this one had looked."""
    first = await chat.exchange("Hello?", "Hello.")
    await regenerate(chat, first.message_id, "Hi.")
    counting = asyncio.Event()
    count_tokens = chat.engine.count_tokens

    async def slowly(messages: Sequence[Message], *, client: str = "", spec: ReplySpec = PLAIN) -> int:
        if not counting.is_set():
            await store.hset(chat.keys.conversation, "leaf", first.message_id)
            counting.set()
        return await count_tokens(messages, client=client, spec=spec)

    chat.engine.count_tokens = slowly  # type: ignore[method-assign]
    accepted = await chat.running("And now?")
    assert accepted.parent_id == first.message_id
    chat.cancel()
    await eventually(lambda: chat.sessions.statistics().turns == 0)


async def test_a_message_has_so_many_versions_and_no_more(chat: Chat, store: Redis) -> None:
    """Each write looks at all of them."""
    await chat.exchange("Hello?", "Hello.")
    first, reply = await ids(chat)
    for parent in ("", first):
        names = await store.hget(chat.keys.conversation, f"children:{parent}")
        crowd = " ".join([names.decode(), *(f"x{number}" for number in range(MAX_CHILDREN - 1))])
        await store.hset(chat.keys.conversation, f"children:{parent}", crowd)
    for place in (Edit(first), Regenerate(reply), Append(None)):
        with pytest.raises(Conflict):
            await chat.send("" if isinstance(place, Regenerate) else "Hi?", place=place)
