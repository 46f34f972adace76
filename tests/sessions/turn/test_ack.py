"""Readers say how far they are; the end of the turn says how many tokens that was."""

from __future__ import annotations

from sessions.events import Done
from tests.sessions.chat_driver import CONVERSATION_ID, Chat
from tests.sessions.recorder import Recorder


async def end(chat: Chat) -> Done:
    chat.engine.step(20)
    return await chat.reader.next(Done)


async def test_without_an_ack_nothing_is_said(chat: Chat) -> None:
    await chat.running("Hello?", "This reply")
    assert (await end(chat)).usage.acked_tokens is None


async def test_the_tokens_up_to_the_furthest_ack_are_told(chat: Chat, reader: Recorder) -> None:
    accepted = await chat.running("Hello?", "This reply was")
    for seq in (accepted.seq + 2, accepted.seq + 1):
        chat.sessions.ack(chat.owner, CONVERSATION_ID, seq)
    usage = (await end(chat)).usage
    assert (usage.acked_tokens, usage.sent_tokens) == (2, 9)


async def test_an_ack_of_the_message_alone_is_of_no_token(chat: Chat) -> None:
    accepted = await chat.running("Hello?", "This")
    chat.sessions.ack(chat.owner, CONVERSATION_ID, accepted.seq)
    assert (await end(chat)).usage.acked_tokens == 0


async def test_what_was_never_told_cannot_be_acked(chat: Chat) -> None:
    accepted = await chat.running("Hello?", "This")
    for seq in (accepted.seq - 1, accepted.seq + 2, 2**53):
        chat.sessions.ack(chat.owner, CONVERSATION_ID, seq)
    assert (await end(chat)).usage.acked_tokens is None


async def test_no_more_is_acked_than_was_handed_to_a_transport(chat: Chat, reader: Recorder) -> None:
    accepted = await chat.running("Hello?", "This reply")
    reader.set_sent(accepted.turn_id, 4)
    chat.sessions.ack(chat.owner, CONVERSATION_ID, accepted.seq + 2)
    chat.cancel()
    usage = (await reader.next(Done)).usage
    assert (usage.acked_tokens, usage.sent_tokens) == (1, 1)


async def test_an_ack_where_nothing_runs_or_is_known_changes_nothing(chat: Chat) -> None:
    done = await chat.exchange("Hello?")
    chat.sessions.ack(chat.owner, CONVERSATION_ID, done.seq)
    chat.sessions.ack(chat.owner, "nowhere", 1)
    assert chat.sessions.statistics().conversations == 1
