"""What a visitor does on the first day, on one device and on several: the page on a real server with the demo model."""

from __future__ import annotations

from playwright.async_api import BrowserContext, expect

from tests.browser.chat_page import ChatPage
from tests.browser.conftest import Complaints
from tests.browser.fake_server import FakeServer
from tests.browser.server_actions import delta, send_history, send_list, visit
from tests.server_process import ServerProcess

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


async def test_a_reply_goes_on_while_another_conversation_is_read_and_another_tab_sees_all_of_it(
    chat: ChatPage, context: BrowserContext, server: ServerProcess
) -> None:
    await chat.open(server.url)
    await count_until(chat, 5)
    await chat.page.get_by_role("button", name="New conversation").click()
    await expect(chat.page.get_by_label("A reply is running")).to_be_visible()
    await chat.conversations.first.click()
    await chat.until_shown("15,")
    with server.engine_held():  # it would be done before the other tab is there
        other = ChatPage(await context.new_page())
        await other.open(chat.page.url)
        await other.until_shown("1, 2, 3, 4, 5,")
        await other.page.keyboard.press("Escape")
    await other.ended()
    await chat.ended()
    await expect(chat.badge()).to_have_text("Stopped")
    await other.shows(await chat.seen())


async def test_a_script_in_a_message_is_only_words_and_the_policy_stops_what_would_get_past_the_sanitizer(
    chat: ChatPage, server: ServerProcess, complaints: Complaints
) -> None:
    await chat.open(server.url)
    attack = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    await chat.ask(attack)
    await expect(chat.questions.first).to_have_text(attack)
    await chat.page.reload()
    await expect(chat.questions.first).to_have_text(attack)
    title = await chat.page.title()
    assert "owned'" in title
    assert title != "owned"
    assert complaints.unexpected() == []
    complaints.expected = ["Content Security Policy"]
    await chat.page.evaluate("""
        const script = document.createElement("script");
        script.textContent = "document.title = 'owned'";
        document.body.append(script);
        document.body.insertAdjacentHTML("beforeend", `<img src="data:," onerror="document.title = 'owned'">`);
    """)
    await expect(chat.page.locator("body > img")).to_be_attached()
    assert await chat.page.title() == title


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
    await count_until(chat, 5)
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


LOOK = "document.dispatchEvent(new Event('visibilitychange'))"
A_LONG_BEAT = 600_000


async def test_what_another_device_began_is_listed_once_the_page_is_looked_at_and_can_be_followed(
    chat: ChatPage, peer: FakeServer
) -> None:
    """With the reply that runs there, whatever this browser keeps of its own."""
    conn = await visit(chat, peer)
    await send_list(conn, "Mine")
    await expect(chat.conversations).to_have_text(["Mine"])
    await chat.client(LOOK)
    await send_list(conn, "Theirs", "Mine")
    await expect(chat.conversations).to_have_text(["Theirs", "Mine"])
    await chat.conversations.first.click()
    await send_history(conn, "Hello?", "one ", seq=3, status="running")
    await chat.until_shown("one")
    await delta(conn, {"conversation_id": "theirs"}, "two", off=4, seq=4)
    await chat.until_shown("one two")
    await expect(chat.stop).to_be_visible()


async def test_a_dead_connection_is_noticed_when_somebody_looks_at_the_page(
    chat: ChatPage, peer: FakeServer, complaints: Complaints
) -> None:
    """Long before the next heartbeat: no client shows "Connected" that is not."""
    complaints.expected = ["WebSocket connection to"]
    await chat.page.clock.install()
    await visit(chat, peer, heartbeat_ms=A_LONG_BEAT)
    peer.closed = True
    await chat.client(LOOK)
    await chat.page.clock.fast_forward(5_000)
    await expect(chat.connection).not_to_have_attribute("data-state", "connected")
