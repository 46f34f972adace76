"""What an eviction or a hand took of a conversation, or spoiled: it goes on, nobody else notices, nothing is tried for ever."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from sessions.errors import StoreFault
from sessions.events import Done, Reason
from sessions.records import digest
from tests.sessions.chat_driver import Chat, running_turns_in_store
from tests.sessions.recorder import Recorder


async def test_a_conversation_whose_hash_is_gone_begins_anew(chat: Chat, store: Redis) -> None:
    """The journal that is left has higher seqs than the new one; it is no longer anybody's."""
    await chat.exchange("Hello?", "Hello.")
    await store.delete(chat.keys.conversation)
    chat.leave()
    reader = Recorder()
    await chat.exchange("And now?", "Now.", reader=reader)
    assert await chat.messages() == [("user", "And now?"), ("assistant", "Now.")]
    assert next(seq for seq, _ in await store.xrange(chat.keys.journal)) == b"1-0"


async def test_a_journal_that_is_gone_in_the_midst_of_a_reply_costs_nothing_of_it(
    chat: Chat, reader: Recorder, store: Redis
) -> None:
    await chat.running("Hello?", "This reply")
    await store.delete(chat.keys.journal)
    chat.engine.step(20)
    assert (await reader.next(Done)).saved
    await chat.wait_idle()
    assert (await chat.messages())[-1] == ("assistant", chat.engine._reply)


async def test_replies_whose_journals_are_spoiled_end_as_internal_and_free_their_places(
    chat: Chat, reader: Recorder, store: Redis
) -> None:
    """Several at once; each keeps what was told, and its conversation goes on. A bystander's reply is none of theirs."""
    chat.engine.script("word " * 150)
    await chat.running("Hello?", "word", conversation_id="bystander")
    spoiled = [f"spoiled-{number}" for number in range(3)]
    for name in spoiled:
        chat.engine.script("word " * 100)
        await chat.running("Hello?", "word", conversation_id=name)
    for name in spoiled:
        journal = f"{chat.keys.journal}".replace("room", name)
        await store.delete(journal)
        await store.set(journal, "no stream")
    while len(reader.of(Done)) < len(spoiled):
        await chat.step()
        await store.ping()  # the store says no before the next word
    ends = {done.conversation_id: done for done in reader.of(Done)}
    assert set(ends) == set(spoiled)
    for done in ends.values():
        assert (done.reason, done.saved) == (Reason.ERROR, True)
        assert (done.error and done.error.code) == "internal"
        assert digest(reader.text(done.turn_id)) == done.text_sha256
    chat.engine.step(150)
    assert (await reader.next(Done, count=4)).reason is Reason.STOP
    await chat.wait_idle()
    assert await running_turns_in_store(store) == 0
    for name in spoiled:
        await chat.exchange("And now?", "Now.", conversation_id=name)


async def test_an_end_that_can_not_be_kept_is_told_as_internal_and_given_up(chat: Chat, store: Redis) -> None:
    """The conversation itself is spoiled: its turn frees its place, and nobody tries it again."""
    accepted = await chat.running("Hello?", "This")
    await store.delete(chat.keys.conversation)
    await store.set(chat.keys.conversation, "no hash")
    while not chat.reader.of(Done):
        chat.engine.step()
        await store.ping()
    done = chat.reader.of(Done)[0]
    assert (done.turn_id, done.reason, done.saved) == (accepted.turn_id, Reason.ERROR, False)
    assert (done.error and done.error.code) == "internal"
    await chat.wait_idle()
    assert await running_turns_in_store(store) == 0
    with pytest.raises(StoreFault) as refused:
        await chat.send("And now?")
    assert (refused.value.code, refused.value.retryable) == ("internal", False)
    await chat.exchange("Hello?", "Hello.", conversation_id="bystander")


async def test_a_dead_replicas_turn_that_can_not_be_closed_keeps_no_other_from_it(
    chat: Chat, other: Chat, store: Redis
) -> None:
    await chat.running("Hello?", "This", conversation_id="spoiled")
    await chat.running("Hello?", "This", conversation_id="another")
    spoiled = chat.keys.conversation.replace("room", "spoiled")
    await store.delete(spoiled)
    await store.set(spoiled, "no hash")
    await chat.lose_lease()
    await other.reap()
    assert await running_turns_in_store(store) == 1
    for _ in range(2):
        await other.reap()
    assert await running_turns_in_store(store) == 0
    chat.engine.step(20)
