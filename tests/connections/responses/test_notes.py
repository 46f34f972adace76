"""What is kept of a request: the messages of its user as one, with the images where they stood."""

from __future__ import annotations

import time

from connections.responses.kept.notes import BETWEEN, Said, fitting
from connections.responses.kept.references import _same
from connections.responses.requests.fields import Creation
from engine.messages import Message

MANY = [Message("user", "x" * 2_000)] * 2_000


def test_messages_of_a_user_are_one() -> None:
    given = (
        Message("user", "One."),
        Message("system", "Be kind."),
        Message("user", ""),
        Message("user", "Two."),
    )
    assert fitting(Creation(model="m"), given, None, ()) == Said(f"One.{BETWEEN}Two.", "Be kind.")


def test_thousands_of_messages_are_joined_once() -> None:
    """Joined one by one, what was said would be copied two thousand times, while everybody waits."""
    begun = time.process_time()
    said = fitting(Creation(model="m"), MANY, None, ())
    assert isinstance(said, Said)
    assert len(said.content) == 2_000 * 2_002 - 2
    replies = [Message("assistant", one.content) for one in MANY]
    assert _same(replies, replies)
    assert time.process_time() - begun < 1.0
