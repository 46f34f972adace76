"""Edits, replies made anew, and the way between what they stand beside: on a real server, in one window and in two."""

from __future__ import annotations

import pytest
from playwright.async_api import BrowserContext, expect

from tests.browser.chat_page import ChatPage
from tests.server_process import ServerProcess

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

COUNT = "Count from 1 to 300."


async def edit_first(chat: ChatPage, text: str) -> None:
    """Says the first message otherwise, and waits until that is shown: from then on its reply is under way."""
    await chat.edit(text)
    await expect(chat.questions.first).to_have_text(text)


async def test_an_edit_begins_a_branch_and_the_arrows_lead_back(
    chat: ChatPage, server: ServerProcess
) -> None:
    await chat.open(server.url)
    await chat.ask("My name is Ada.")
    await chat.ask("What is my name?")
    old = await chat.seen()
    await chat.page.get_by_role("button", name="Edit this message").first.click()
    await chat.page.get_by_label("Your message, edited").fill("Something else")
    await chat.page.keyboard.press("Escape")
    await expect(chat.page.get_by_role("button", name="Edit this message").first).to_be_focused()
    await chat.shows(old)
    await edit_first(chat, "My name is Bo.")
    await expect(chat.questions).to_have_text(["My name is Bo."])
    await expect(chat.box).to_be_focused()
    await chat.ended()
    await expect(chat.page.get_by_label("Version 2 of 2")).to_be_visible()
    assert "Bo" in await chat.ask("What is my name?")
    new = await chat.seen()
    await chat.page.get_by_role("button", name="Previous version").click()
    await expect(chat.page.get_by_label("Version 1 of 2")).to_be_visible()
    await chat.shows(old)
    await expect(chat.page.get_by_role("button", name="Next version")).to_be_focused()
    await chat.page.keyboard.press("Enter")
    await expect(chat.page.get_by_label("Version 2 of 2")).to_be_visible()
    await chat.shows(new)


async def test_a_reply_is_made_anew_beside_the_old_one(chat: ChatPage, server: ServerProcess) -> None:
    await chat.open(server.url)
    await chat.read_at(60)
    await chat.type(COUNT)
    await chat.until_shown("5,")
    await chat.stop.click()
    await expect(chat.badge()).to_have_text("Stopped")
    stopped = await chat.last_reply()
    await chat.page.get_by_role("button", name="Regenerate this reply").click()
    await chat.until_shown("15,")
    await chat.page.keyboard.press("Escape")
    await expect(chat.page.get_by_label("Version 2 of 2")).to_be_visible()
    await expect(chat.page.locator(".message")).to_have_count(2)
    await chat.page.get_by_role("button", name="Previous version").click()
    await expect(chat.replies.last.locator(".prose")).to_have_text(stopped)


async def test_two_windows_of_one_conversation_stay_in_step(
    chat: ChatPage, context: BrowserContext, server: ServerProcess
) -> None:
    await chat.open(server.url)
    await chat.ask("My name is Ada.")
    other = ChatPage(await context.new_page())
    await other.open(chat.page.url)
    await expect(other.questions).to_have_text(["My name is Ada."])
    await edit_first(chat, "My name is Bo.")
    await expect(other.questions).to_have_text(["My name is Bo."])
    for window in (chat, other):
        await window.ended()
        await expect(window.page.get_by_label("Version 2 of 2")).to_be_visible()
    await other.shows(await chat.seen())
    await other.page.get_by_role("button", name="Previous version").click()
    for window in (chat, other):
        await expect(window.questions).to_have_text(["My name is Ada."])
    await chat.shows(await other.seen())
    await chat.page.reload()
    await expect(chat.questions).to_have_text(["My name is Ada."])
    assert "Ada" in await chat.ask("What is my name?")
