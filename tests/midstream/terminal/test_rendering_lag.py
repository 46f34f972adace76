"""A reply that comes faster than it is shown."""

from __future__ import annotations

import asyncio
import io
import os

import pytest

from midstream import Client, Reconnecting
from midstream.reply import Reply
from midstream.terminal import user_interface
from midstream.terminal.screen import LiveRows, MarkdownPage
from midstream.terminal.user_interface import CallPrompt, ReplyView

WORDS = [f"word{number} " for number in range(50)]


class RecordingScreen:
    """Where a reply is written that calls nobody."""

    def __init__(self) -> None:
        self.written = io.StringIO()

    def page(self, before: str) -> MarkdownPage:
        return MarkdownPage(LiveRows(self.written, lambda: os.terminal_size((1000, 24))), before)

    def note(self, line: str) -> None: ...
    def fail(self, line: str) -> None: ...
    def wait(self, line: str) -> None: ...
    async def answer(self, call_prompt: CallPrompt) -> str | None: ...


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


async def started_reply() -> tuple[RecordingScreen, Reply, ReplyView, asyncio.Task[None]]:
    """A reply that is being shown, and has more to come."""
    paper = RecordingScreen()
    client, reply = coming()
    shown = ReplyView(client, reply, paper)
    running = asyncio.create_task(shown.run())
    await turns(30)
    return paper, reply, shown, running


async def test_what_is_shown_is_all_that_was_read_before_it_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By that the server cuts it."""
    monkeypatch.setattr(user_interface, "FRAME_S", 1e9)
    paper, reply, shown, running = await started_reply()
    assert reply.has_more
    assert reply.text
    shown.hold()
    assert paper.written.getvalue().split() == reply.text.split()
    running.cancel()
    await asyncio.wait((running,))


async def test_text_that_waits_is_shown_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_interface, "FRAME_S", 1e9)
    paper, reply, _, running = await started_reply()
    assert paper.written.getvalue().split() in ([], WORDS[0].split())
    await turns(20 * len(WORDS))
    reply.take({"type": "done", "turn_id": "t", "reason": "stop", "chars": len("".join(WORDS))})
    await running
    assert paper.written.getvalue().split() == "".join(WORDS).split()


async def test_what_comes_while_it_is_being_stopped_is_not_shown_unless_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a pipe nothing can be taken back: what is written there is what the history has."""
    monkeypatch.setattr(user_interface, "FRAME_S", 0.0)
    paper, reply, shown, running = await started_reply()
    shown.hold()
    before = paper.written.getvalue()
    read = reply.text
    await turns(30)
    assert len(reply.text) > len(read)
    assert paper.written.getvalue() == before
    shown.resume()
    assert paper.written.getvalue().split() == reply.text.split()
    running.cancel()
    await asyncio.wait((running,))
