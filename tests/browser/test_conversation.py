"""The page on a real server with the demo model: what a visitor does on the first day."""

from __future__ import annotations

import pytest
from playwright.async_api import BrowserContext, expect

from tests.browser.chat_page import ChatPage
from tests.browser.conftest import Complaints
from tests.server_process import ServerProcess

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

COUNT = "Count from 1 to 300."


async def count_until(chat: ChatPage, number: int) -> None:
    """Asks for a long count and waits until it has come to a number."""
    await chat.read_at(60)
    await chat.type(COUNT)
    await chat.until_shown(f"{number},")


async def test_a_name_outlives_a_stopped_reply_and_history_is_what_was_seen(
    chat: ChatPage, context: BrowserContext, server: ServerProcess
) -> None:
    """A later visit finds it all, without its address."""
    await chat.open(server.url)
    assert "Ada" in await chat.ask("My name is Ada.")
    await chat.ask("How are you?")
    await count_until(chat, 12)
    await chat.stop.click()
    await expect(chat.badge()).to_have_text("Stopped")
    assert "300" not in await chat.last_reply()
    assert "Ada" in await chat.ask("What is my name?")
    seen = await chat.seen()
    await chat.page.close()
    later = ChatPage(await context.new_page())
    await later.open(server.url)
    await later.shows(seen)
    await expect(later.replies.nth(2).locator(".badge")).to_have_text("Stopped")


async def test_conversations_are_listed_switched_and_deleted(chat: ChatPage, server: ServerProcess) -> None:
    await chat.open(server.url)
    await chat.ask("My name is Ada.")
    await chat.page.get_by_role("button", name="New conversation").click()
    await expect(chat.replies).to_have_count(0)
    await chat.ask("What is 7 plus 8?")
    await expect(chat.conversations).to_have_text(["What is 7 plus 8?", "My name is Ada."])
    await chat.conversations.last.click()
    await expect(chat.questions).to_have_text(["My name is Ada."])
    await chat.page.get_by_role("button", name="Delete “My name is Ada.”").click()
    await chat.page.get_by_role("button", name="Cancel", exact=True).click()
    await expect(chat.conversations).to_have_count(2)
    await chat.page.get_by_role("button", name="Delete “My name is Ada.”").click()
    await chat.page.get_by_role("button", name="Delete", exact=True).click()
    await expect(chat.conversations).to_have_text(["What is 7 plus 8?"])
    await expect(chat.page.get_by_role("heading", name="Say something")).to_be_visible()


async def test_a_conversation_that_streams_goes_on_while_another_is_read(
    chat: ChatPage, server: ServerProcess
) -> None:
    await chat.open(server.url)
    await count_until(chat, 5)
    await chat.page.get_by_role("button", name="New conversation").click()
    await expect(chat.page.get_by_label("A reply is running")).to_be_visible()
    await chat.conversations.first.click()
    await chat.until_shown("15,")
    await chat.page.keyboard.press("Escape")
    await chat.ended()


async def test_another_tab_that_comes_in_the_middle_of_a_reply_sees_all_of_it(
    chat: ChatPage, context: BrowserContext, server: ServerProcess
) -> None:
    await chat.open(server.url)
    await count_until(chat, 5)
    with server.engine_held():  # it would be done before the other tab is there
        other = ChatPage(await context.new_page())
        await other.open(chat.page.url)
        await other.until_shown("1, 2, 3, 4, 5,")
        await other.page.keyboard.press("Escape")
    await other.ended()
    await chat.ended()
    await expect(chat.badge()).to_have_text("Stopped")
    await other.shows(await chat.seen())


async def test_a_script_in_a_message_is_only_words(chat: ChatPage, server: ServerProcess) -> None:
    await chat.open(server.url)
    attack = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    await chat.ask(attack)
    await expect(chat.questions.first).to_have_text(attack)
    await chat.page.reload()
    await expect(chat.questions.first).to_have_text(attack)
    assert "owned'" in await chat.page.title()
    assert await chat.page.title() != "owned"


async def test_the_policy_of_the_server_stops_what_would_get_past_the_sanitizer(
    chat: ChatPage, server: ServerProcess, complaints: Complaints
) -> None:
    complaints.expected = ["Content Security Policy"]
    await chat.open(server.url)
    await chat.page.evaluate("""
        const script = document.createElement("script");
        script.textContent = "document.title = 'owned'";
        document.body.append(script);
        document.body.insertAdjacentHTML("beforeend", `<img src="data:," onerror="document.title = 'owned'">`);
    """)
    await expect(chat.page.locator("body > img")).to_be_attached()
    assert await chat.page.title() == "Midstream"
