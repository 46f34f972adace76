"""What the engine is told of who asks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from redis.asyncio import Redis

from engine.messages import Message
from engine.scripted import ScriptedEngine
from sessions.errors import ContextOverflow
from sessions.turn.prompt import OPERATOR_SALT
from tests.sessions.chat_driver import CONVERSATION_ID, Chat, serving

Served = Callable[[str], AbstractAsyncContextManager[Chat]]


@pytest.fixture
def served(store: Redis, engine: ScriptedEngine) -> Served:
    """A replica whose operator says what the system prompt is."""

    @asynccontextmanager
    async def serve(system_prompt: str) -> AsyncIterator[Chat]:
        async with serving(store, engine, system_prompt=system_prompt) as chat:
            yield chat
            chat.sessions.disconnect(chat.reader)

    return serve


async def test_a_request_names_its_owner_and_its_conversation(chat: Chat) -> None:
    """So that nobody else's kept keys and values are matched, and its own are found again."""
    await chat.exchange("Hello?")
    await chat.exchange("Again?")
    owner = str(chat.owner)
    reported = [(one.cache_salt, one.client, one.conversation) for one in chat.engine.requests]
    assert reported == [(owner, owner, CONVERSATION_ID)] * 2


async def test_each_conversation_is_told_apart(chat: Chat) -> None:
    await chat.exchange("Hello?")
    await chat.exchange("Hello?", conversation_id="another room")
    assert [one.conversation for one in chat.engine.requests] == [CONVERSATION_ID, "another room"]


async def test_a_clients_system_prompt_is_shared_with_nobody(chat: Chat) -> None:
    """They are its own words: how much of them another one guessed must not be told by what was kept."""
    await chat.exchange("Hello?", system="You know my secret.")
    (request,) = chat.engine.requests
    assert request.messages[0].content == "You know my secret."
    assert not request.shares_system


async def test_the_operators_system_prompt_is_used_where_nobody_names_one_and_shared_by_all(
    served: Served,
) -> None:
    """Under a salt of its own: guesses of it must not match what the same client said under it."""
    async with served("Be brief.") as chat:
        await chat.exchange("Hello?")
        await chat.exchange("Again?")
        for request in chat.engine.requests:
            assert request.messages[0] == Message("system", "Be brief.")
            assert request.shares_system
            assert request.client == str(chat.owner)
            assert request.cache_salt == request.client + OPERATOR_SALT


@pytest.mark.parametrize("named", ["I am your poet.", "Be brief."])
async def test_a_client_that_names_a_system_prompt_gets_its_own_until_it_removes_it(
    named: str, served: Served
) -> None:
    """Also where it is the operator's, word for word: whether it was guessed must not be told."""
    async with served("Be brief.") as chat:
        await chat.exchange("Hello?", system=named)
        await chat.exchange("And now?")
        await chat.exchange("And without it?", system="")
        own, kept, back = chat.engine.requests
    assert [one.messages[0].content for one in (own, kept, back)] == [named, named, "Be brief."]
    assert [one.shares_system for one in (own, kept, back)] == [False, False, True]
    assert own.cache_salt == kept.cache_salt == str(chat.owner)


async def test_another_operators_prompt_holds_from_the_next_turn_on(
    served: Served,
) -> None:
    """What the operator says is kept with no conversation."""
    for number, system in enumerate(("Be brief.", "Be long.")):
        async with served(system) as chat:
            await chat.exchange("Hello?", client_msg_id=f"message-{number}")
            assert chat.engine.requests[-1].messages[0].content == system


async def test_the_operators_system_prompt_counts_for_the_window(
    served: Served,
) -> None:
    async with served("word " * 200) as chat:
        with pytest.raises(ContextOverflow):
            await chat.send("Hello?")
