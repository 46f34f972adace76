"""What the engine is told of who asks."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from engine.messages import Message
from engine.scripted import ScriptedEngine
from sessions.errors import ContextOverflow
from sessions.turn.prompt import OPERATOR_SALT
from tests.sessions.chat_driver import CONVERSATION_ID, Chat, serving


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
