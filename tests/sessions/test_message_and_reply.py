"""A message, its reply, and what stays of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from redis.asyncio import Redis

from engine.errors import PromptRejected
from engine.messages import PLAIN, Message, ReplySpec
from engine.scripted import ScriptedEngine
from sessions import replica
from sessions.errors import BadParams
from sessions.events import Done, Reason
from sessions.records import Owner
from tests.sessions.chat_driver import Chat, running_turns_in_store, serving


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a connection that leaves leaves behind is looked for often."""
    monkeypatch.setattr(replica, "RENEW_S", 0.02)


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


async def test_every_key_of_a_conversation_expires(chat: Chat, store: Redis, owner: Owner) -> None:
    await chat.exchange("Hello?")
    await chat.sessions.parts.storage.ledger.settle()
    assert await running_turns_in_store(store) == 0
    keys = [key async for key in store.scan_iter() if key != b"ms:runners"]
    assert len(keys) == 6
    for key in keys:
        assert 0 < await store.pttl(key) <= 3_600_000 * 9 / 8


async def test_a_defect_is_told_to_its_sender_alone(chat: Chat, engine: ScriptedEngine) -> None:
    """What no one foresaw ends one request with a number that the log has."""
    await chat.exchange("Hello?")
    await chat.sessions.parts.client.hset(chat.keys.conversation, "seq", "seven")
    refusal = await chat.begin_send("Hello again?")
    assert refusal is not None
    assert refusal.code == "internal"
    await chat.exchange("Hello elsewhere?", conversation_id="other")


async def test_messages_that_the_template_refuses_are_the_senders_fault(store: Redis) -> None:
    engine = Counting()
    engine.refuses = True
    async with serving(store, engine) as chat:
        with pytest.raises(BadParams, match="unspeakable"):
            await chat.send("Hello?")
    assert [key async for key in store.scan_iter("ms:{*")] == []
