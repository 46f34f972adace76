"""How often the store is asked before a message is accepted: each time is a turn of the event loop, behind all others' work."""

from __future__ import annotations

from typing import Any

import pytest
from redis.asyncio import Redis

from sessions.store.client import load_scripts
from tests.sessions.chat_driver import Chat
from tests.sessions.store_round_trips import RoundTrips


async def test_whether_a_message_came_before_is_asked_with_the_facts(
    chat: Chat, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[tuple[Any, ...]] = []
    execute = store.execute_command

    def noted(*command: Any, **options: Any) -> Any:
        if any(str(part).startswith("sent:") for part in command):
            requested.append(command)
        return execute(*command, **options)

    monkeypatch.setattr(store, "execute_command", noted)
    await chat.running("Hello?", "This")
    assert [command[0] for command in requested] == ["HMGET"]
    assert "epoch" in requested[0]


async def test_a_message_asks_the_store_four_times_up_to_its_first_text(
    chat: Chat, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the facts, to list the turn and the conversation, to accept it, and to write the text."""
    await load_scripts(store)
    trips = RoundTrips(monkeypatch)
    accepted = await chat.running("Hello?", "This")
    assert trips.about(chat.owner, accepted.turn_id) == 4
