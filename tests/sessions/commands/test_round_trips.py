"""How often the store is asked before a message is accepted: each time is a turn of the event loop, behind all others' work."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from sessions.store.client import load_scripts
from tests.sessions.chat_driver import Chat
from tests.sessions.store_round_trips import RoundTrips


async def test_a_message_asks_the_store_four_times_up_to_its_first_text(
    chat: Chat, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the facts and a turn of the same id, to list the turn and the conversation, to accept it, and to write the text."""
    await load_scripts(store)
    trips = RoundTrips(monkeypatch)
    accepted = await chat.running("Hello?", "This")
    assert trips.about(chat.owner, accepted.turn_id) == 4
