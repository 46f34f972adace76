"""What the engine is told of who asks."""

from __future__ import annotations

from tests.sessions.chat import ROOM, Chat


async def test_a_request_names_its_owner_and_its_conversation(chat: Chat) -> None:
    """So that nobody else's kept keys and values are matched, and its own are found again."""
    await chat.exchange("Hello?")
    await chat.exchange("Again?")
    owner = str(chat.owner)
    told = [(one.cache_salt, one.client, one.conversation) for one in chat.engine.requests]
    assert told == [(owner, owner, ROOM)] * 2


async def test_each_conversation_is_told_apart(chat: Chat) -> None:
    await chat.exchange("Hello?")
    await chat.exchange("Hello?", conversation_id="another room")
    assert [one.conversation for one in chat.engine.requests] == [ROOM, "another room"]


async def test_a_clients_system_prompt_is_shared_with_nobody(chat: Chat) -> None:
    """They are its own words: how much of them another one guessed must not be told by what was kept."""
    await chat.exchange("Hello?", system="You know my secret.")
    (request,) = chat.engine.requests
    assert request.messages[0].content == "You know my secret."
    assert not request.shares_system
