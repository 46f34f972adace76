"""Readers say how far they are; the end of the turn says how many tokens that was."""

from __future__ import annotations

import pytest

from tests.sessions.chat_driver import CONVERSATION_ID, Chat
from tests.sessions.recorder import Recorder

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
