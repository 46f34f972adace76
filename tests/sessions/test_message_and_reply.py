"""A message, its reply, what stays of them, and what the engine is told of who asks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from redis.asyncio import Redis

from engine.errors import PromptRejected
from engine.messages import PLAIN, Message, ReplySpec
from engine.scripted import ScriptedEngine
from sessions.errors import BadParams, ContextOverflow
from sessions.events import Done, Reason
from sessions.turn.prompt import OPERATOR_SALT
from tests.sessions.chat_driver import CONVERSATION_ID, Chat, running_turns_in_store, serving
from tests.sessions.recorder import Recorder

pytestmark = pytest.mark.usefixtures("often")


class Counting(ScriptedEngine):
    """An engine whose tokenizer counts less than its scheduler, or whose template refuses whatever it is shown."""

    refuses = False

    async def count_tokens(
        self, messages: Sequence[Message], *, client: str = "", spec: ReplySpec = PLAIN
    ) -> int:
        if self.refuses:
            raise PromptRejected("unspeakable")
        return 1


async def test_an_engine_that_refuses_a_prompt_after_all_ends_the_turn_with_its_words(store: Redis) -> None:
    engine = Counting(by_hand=True, context_tokens=20)
    async with serving(store, engine, max_turns=1) as chat:
        await chat.running("word " * 30)
        engine.step()
        done = await chat.reader.next(Done)
    assert done.reason is Reason.ERROR
    assert done.error is not None
    assert "longer than the model's window" in done.error.message


async def test_every_key_of_a_conversation_expires(chat: Chat, store: Redis) -> None:
    await chat.exchange("Hello?")
    await chat.sessions.storage.ledger.settle()
    assert await running_turns_in_store(store) == 0
    keys = [key async for key in store.scan_iter() if key != b"ms:runners"]
    assert len(keys) == 5
    for key in keys:
        assert 0 < await store.pttl(key) <= 3_600_000 * 9 / 8


async def test_a_defect_is_told_to_its_sender_alone(chat: Chat) -> None:
    """What no one foresaw ends one request with a number that the log has."""
    await chat.exchange("Hello?")
    await chat.sessions.client.hset(chat.keys.conversation, "seq", "seven")
    refusal = await chat.begin_send("Hello again?")
    assert (refusal and refusal.code) == "internal"
    await chat.exchange("Hello elsewhere?", conversation_id="other")


async def test_messages_that_the_template_refuses_are_the_senders_fault(store: Redis) -> None:
    engine = Counting()
    engine.refuses = True
    async with serving(store, engine) as chat:
        with pytest.raises(BadParams, match="unspeakable"):
            await chat.send("Hello?")
    assert [key async for key in store.scan_iter("ms:{*")] == []


async def test_a_request_names_its_owner_and_its_conversation(chat: Chat) -> None:
    """So that nobody else's kept keys and values are matched, and its own are found again."""
    await chat.exchange("Hello?")
    await chat.exchange("Again?")
    await chat.exchange("Hello?", conversation_id="another room")
    owner = str(chat.owner)
    reported = [(one.cache_salt, one.client, one.conversation) for one in chat.engine.requests]
    assert reported == [(owner, owner, name) for name in (CONVERSATION_ID, CONVERSATION_ID, "another room")]


async def test_the_operators_system_prompt_is_used_where_nobody_names_one_and_shared_by_all(
    store: Redis, engine: ScriptedEngine
) -> None:
    """Under a salt of its own: guesses of it must not match what the same client said under it. It is kept with no conversation."""
    for number, system in enumerate(("Be brief.", "Be long.")):
        async with serving(store, engine, system_prompt=system) as chat:
            await chat.exchange("Hello?", client_msg_id=f"message-{number}")
            request = engine.requests[-1]
            assert request.messages[0] == Message("system", system)
            assert request.shares_system
            assert request.client == str(chat.owner)
            assert request.cache_salt == request.client + OPERATOR_SALT


@pytest.mark.parametrize("named", ["I am your poet.", "Be brief."])
async def test_a_client_that_names_a_system_prompt_gets_its_own_until_it_removes_it(
    named: str, store: Redis, engine: ScriptedEngine
) -> None:
    """Also where it is the operator's, word for word: whether it was guessed must not be told."""
    async with serving(store, engine, system_prompt="Be brief.") as chat:
        await chat.exchange("Hello?", system=named)
        await chat.exchange("And now?")
        await chat.exchange("And without it?", system="")
    own, kept, back = engine.requests
    assert [one.messages[0].content for one in (own, kept, back)] == [named, named, "Be brief."]
    assert [one.shares_system for one in (own, kept, back)] == [False, False, True]
    assert own.cache_salt == kept.cache_salt == str(chat.owner)


async def test_the_operators_system_prompt_counts_for_the_window(
    store: Redis, engine: ScriptedEngine
) -> None:
    async with serving(store, engine, system_prompt="word " * 200) as chat:
        with pytest.raises(ContextOverflow):
            await chat.send("Hello?")


MAX = 2**53


@pytest.mark.parametrize(
    ("acks", "acked"),
    [((), None), ((2, 1), 2), ((0,), 0), ((-1, 4, MAX), None)],
    ids=["none", "the furthest counts", "of the message alone", "of what was never told"],
)
async def test_the_tokens_up_to_the_furthest_ack_are_told(
    chat: Chat, acks: tuple[int, ...], acked: int | None
) -> None:
    accepted = await chat.running("Hello?", "This reply was")
    for place in acks:
        chat.sessions.ack(chat.owner, CONVERSATION_ID, accepted.seq + place)
    chat.sessions.ack(chat.owner, "nowhere", 1)
    usage = (await chat.finish(accepted.turn_id)).usage
    assert (usage.acked_tokens, usage.sent_tokens) == (acked, 9)
    chat.sessions.ack(chat.owner, CONVERSATION_ID, accepted.seq)  # nothing runs there any more
    assert chat.sessions.statistics().conversations == 1


async def test_no_more_is_acked_than_was_handed_to_a_transport(chat: Chat, reader: Recorder) -> None:
    accepted = await chat.running("Hello?", "This reply")
    reader.set_sent(accepted.turn_id, 4)
    chat.sessions.ack(chat.owner, CONVERSATION_ID, accepted.seq + 2)
    usage = (await chat.stop()).usage
    assert (usage.acked_tokens, usage.sent_tokens) == (1, 1)
