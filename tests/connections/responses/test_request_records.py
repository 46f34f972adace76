"""What is kept of a request: the messages of its user as one, with the images where they stood."""

from __future__ import annotations

from connections.api.responses.creator import storable_input
from connections.api.responses.parser import Creation
from connections.api.responses.store import UserInput, _same_conversation
from engine.messages import Message

MANY = [Message("user", "x" * 2_000)] * 2_000


def test_thousands_of_messages_are_joined_to_one() -> None:
    stored = storable_input(Creation(model="m"), MANY, "", ())
    assert isinstance(stored, UserInput)
    assert len(stored.content) == 2_000 * 2_002 - 2
    replies = [Message("assistant", one.content) for one in MANY]
    assert _same_conversation(replies, replies)
