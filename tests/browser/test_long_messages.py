"""A message that is too long for the service stays in its box, and the page says so before it is sent."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.fake_server import LIMITS, FakeServer
from tests.browser.server_actions import replied, visit

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

LIMIT = LIMITS["max_content_chars"]
COUNTED = re.compile(r" of 32,768 characters$")


async def test_a_message_that_is_too_long_stays_in_its_box_with_a_word_beside_it(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn = await visit(chat, peer)
    text = "x" * (LIMIT + 1)
    await chat.type(text)
    await expect(chat.page.get_by_role("status").filter(has_text="Too long to be sent.")).to_be_visible()
    await expect(chat.box).to_have_value(text)
    await expect(chat.box).to_have_attribute("aria-invalid", "true")
    await expect(chat.box).to_have_accessible_description(
        re.compile("Too long to be sent. 32,769 of 32,768 characters")
    )
    await expect(chat.questions).to_have_count(0)
    await chat.type(text[1:])
    assert (await conn.receive("send"))["content"] == text[1:]
    await expect(chat.page.get_by_text(COUNTED)).to_be_hidden()


async def test_the_count_is_told_near_the_limit_alone_and_in_code_points(
    chat: ChatPage, peer: FakeServer
) -> None:
    """As the service counts: an emoji is one, blanks around a message are left out."""
    conn = await visit(chat, peer)
    await chat.box.fill("x" * (LIMIT * 9 // 10 - 1))
    await expect(chat.page.get_by_text(COUNTED)).to_be_hidden()
    trains = "🚂" * 100
    await chat.box.fill("  " + "x" * (LIMIT - 100) + trains + "  \n")
    await expect(chat.page.get_by_text("32,768 of 32,768 characters")).to_be_visible()
    await expect(chat.box).not_to_have_attribute("aria-invalid", "true")
    await chat.box.press("Enter")
    assert len((await conn.receive("send"))["content"]) == LIMIT


async def test_a_message_whose_frame_would_be_too_large_stays_in_its_box(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn = await visit(chat, peer)
    await chat.type("您" * 25_000)
    await expect(chat.page.get_by_text("74 of 62 KB")).to_be_visible()
    await expect(chat.questions).to_have_count(0)
    await chat.type("您" * 20_000)
    assert len((await conn.receive("send"))["content"]) == 20_000


async def test_an_edit_that_is_too_long_stays_in_its_box(chat: ChatPage, peer: FakeServer) -> None:
    conn, _ = await replied(chat, peer, "one")
    await chat.page.get_by_role("button", name="Edit this message").click()
    box = chat.page.get_by_label("Your message, edited")
    await box.fill("x" * (LIMIT + 1))
    await box.press("Enter")
    await expect(chat.page.get_by_role("status").filter(has_text="Too long to be sent.")).to_be_visible()
    await box.fill("Goodbye?")
    await box.press("Enter")
    assert (await conn.receive("edit"))["content"] == "Goodbye?"
