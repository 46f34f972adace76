"""What a model thinks aloud before its answer is folded away on the page; the history keeps it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.async_api import Locator, expect

from tests.browser.chat_page import ChatPage
from tests.browser.fake_server import FakeServer
from tests.browser.server_actions import begun, delta, send_history
from tests.browser.test_modules import run

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

REPLY = "<think>\nThe user wants a sum.\n</think>\n\nThe answer is **42**."


def fold(chat: ChatPage) -> Locator:
    """The line of the last reply that opens its thought."""
    return chat.replies.last.locator("summary")


async def split(chat: ChatPage, peer: FakeServer, text: str) -> Any:
    """What the page makes of a text: its thought, whether that has ended, its answer."""
    body = (
        "const { thought, ended, answer } = module.splitThought(argument); return [thought, ended, answer];"
    )
    return await run(chat, peer, "ui/replies/thoughts.js", body, text)


async def test_a_thought_is_folded_while_it_streams_and_opens_on_demand(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn, send = await begun(chat, peer)
    await delta(conn, send, "<thi", off=0, seq=2)
    await delta(conn, send, "nk>The user wants", off=4, seq=3)
    await expect(fold(chat)).to_have_text("Thinking")
    thought = chat.page.get_by_text("The user wants")
    await expect(thought).to_be_hidden()
    await fold(chat).press("Enter")
    await expect(thought).to_be_visible()
    await delta(conn, send, " a sum.</think>\n\nIt is 42.", off=21, seq=4)
    await chat.until_shown("It is 42.")
    await expect(chat.text).to_have_text("It is 42.")
    await expect(thought).to_have_text("The user wants a sum.")
    await expect(fold(chat)).to_have_text("Thought")
    whole = len("<think>The user wants a sum.</think>\n\nIt is 42.")
    await conn.finish(send, turn="t", seq=5, reason="stop", chars=whole)
    await chat.ended()
    await expect(chat.page.locator("#announcer")).to_have_text("Reply: It is 42.")


async def test_a_thought_is_folded_in_history_and_not_copied(chat: ChatPage, peer: FakeServer) -> None:
    await chat.page.goto(f"{peer.url}/#/old")
    conn = await peer.conn()
    await send_history(conn, "What is it?", REPLY, seq=3)
    await expect(fold(chat)).to_have_text("Thought")
    await expect(chat.text).to_have_text("The answer is 42.")
    await expect(chat.page.get_by_text("The user wants a sum.")).to_be_hidden()
    await chat.page.get_by_role("button", name="Copy the reply").click()
    await chat.copied("The answer is **42**.")


async def test_a_stop_in_the_middle_of_a_thought_counts_what_is_folded_as_seen(
    chat: ChatPage, peer: FakeServer
) -> None:
    """The history is untouched by the fold."""
    conn, send = await begun(chat, peer)
    await delta(conn, send, "<think>The user", off=0, seq=2)
    await expect(fold(chat)).to_have_text("Thinking")
    await chat.stop.click()
    assert (await conn.receive("cancel"))["seen_off"] == len("<think>The user")
    await conn.finish(send, turn="t", seq=3, reason="cancelled", chars=15)
    await expect(chat.badge()).to_have_text("Stopped")
    await expect(fold(chat)).to_contain_text("Thought")


SPLIT = [
    ("Use `<think>` tags.", None, "Use `<think>` tags."),
    ("<think>\n\n</think>\n\nHello!", None, "Hello!"),
    ("First this.\n</think>\n\nHello!", "First this.", "Hello!"),
    ("```\n<think>\n</think>\n```", None, "```\n<think>\n</think>\n```"),
    ("<think>a</think>b </think> c", "a", "b </think> c"),
    ("<thi", None, "<thi"),
]


async def test_a_thought_is_told_from_words_about_the_tag(chat: ChatPage, peer: FakeServer) -> None:
    for text, thought, answer in SPLIT:
        assert await split(chat, peer, text) == [thought, True, answer], text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(thought=st.text("ab \n", min_size=1).filter(str.strip), answer=st.text("cd *", max_size=8))
async def test_no_tag_is_shown_however_a_reply_grows(
    chat: ChatPage, peer: FakeServer, thought: str, answer: str
) -> None:
    text = f"<think>{thought}</think>\n{answer}"
    body = """
        const ends = Array.from(argument, (_, index) => index + 1);
        return ends.map((end) => module.splitThought(argument.slice(0, end), { growing: true }).answer);
    """
    answers = await run(chat, peer, "ui/replies/thoughts.js", body, text)
    assert not any("<think" in shown for shown in answers)
    assert (await split(chat, peer, text))[2] == answer.lstrip()
