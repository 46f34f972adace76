"""A reply that comes faster than it is shown."""

from __future__ import annotations

import asyncio

import pytest

from midstream import Client, Reconnecting
from midstream.reply import Reply
from midstream.terminal.user_interface import ReplyView, UserInterface

WORDS = [f"word{number} " for number in range(50)]


class Output(UserInterface):
    """Where a reply is written, without an input."""

    def __init__(self) -> None:
        """Read nothing."""


def coming() -> tuple[Client, Reply]:
    """A reply all of whose words are there."""
    client = Client(lambda _: None, Reconnecting())
    reply = Reply(client, {"turn_id": "t", "conversation_id": "c"}, sent=None)
    for at, word in enumerate(WORDS):
        off = len("".join(WORDS[:at]))
        reply.take({"type": "delta", "turn_id": "t", "off": off, "text": word, "seq": at})
    return client, reply


async def turns(count: int) -> None:
    """So many turns of the event loop. A piece of text takes some."""
    for _ in range(count):
        await asyncio.sleep(0)


async def started_reply(frame_s: float) -> tuple[Reply, ReplyView, asyncio.Task[None]]:
    """A reply that is being shown, and has more to come."""
    client, reply = coming()
    shown = ReplyView(client, reply, Output(), frame_s=frame_s)
    running = asyncio.create_task(shown.run())
    await turns(30)
    return reply, shown, running


async def test_what_is_shown_is_all_that_was_read_before_it_is_stopped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By that the server cuts it."""
    reply, shown, running = await started_reply(1e9)
    assert reply.has_more
    assert reply.text
    shown.hold()
    assert capsys.readouterr().out.split() == reply.text.split()
    running.cancel()
    await asyncio.wait((running,))


async def test_text_that_waits_is_shown_in_one_piece(capsys: pytest.CaptureFixture[str]) -> None:
    reply, _, running = await started_reply(1e9)
    first = capsys.readouterr().out
    assert first.split() in ([], WORDS[0].split())
    await turns(20 * len(WORDS))
    reply.take({"type": "done", "turn_id": "t", "reason": "stop", "chars": len("".join(WORDS))})
    await running
    assert (first + capsys.readouterr().out).split() == "".join(WORDS).split()


async def test_what_comes_while_it_is_being_stopped_is_not_shown_unless_it_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In a pipe nothing can be taken back: what is written there is what the history has."""
    reply, shown, running = await started_reply(0.0)
    shown.hold()
    before = capsys.readouterr().out
    read = reply.text
    await turns(30)
    assert len(reply.text) > len(read)
    assert capsys.readouterr().out == ""
    shown.resume()
    assert (before + capsys.readouterr().out).split() == reply.text.split()
    running.cancel()
    await asyncio.wait((running,))
