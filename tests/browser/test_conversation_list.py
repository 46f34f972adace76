"""Conversations on the page: looked for, renamed, exported, shared; on a real server."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.async_api import BrowserContext, expect

from engine.scripted import ScriptedEngine
from tests.app.in_process_service import serving as in_process
from tests.browser.chat_page import ChatPage
from tests.browser.conftest import Complaints
from tests.browser.long_history import drag, settled, turn_wheel
from tests.browser.page_states import PHONE
from tests.server_process import ServerProcess


async def choose(chat: ChatPage, action: str) -> None:
    """Chooses from the menu of the conversation."""
    await chat.page.get_by_role("button", name="More about this conversation").click()
    await chat.page.get_by_role("button", name=action, exact=True).click()


async def test_what_was_said_is_found_and_shown_where_it_stands(
    chat: ChatPage, server: ServerProcess
) -> None:
    await chat.open(server.url)
    await chat.ask("My name is Ada.")
    await chat.ask("What is 7 plus 8?")
    await chat.start_new_chat()
    await chat.ask("What is Midstream?")
    await chat.page.get_by_label("Search your conversations").fill("rhinoceros")
    await expect(chat.page.locator("#found-told")).to_have_text("Nothing found.")
    await chat.page.get_by_label("Search your conversations").fill("ADA name")
    hit = chat.page.locator("#hits a")
    await expect(hit).to_have_count(1)
    await expect(hit.locator("mark")).to_have_count(1)
    await expect(chat.page.locator("#found-told")).to_have_text("1 conversation")
    await hit.click()
    await expect(chat.questions).to_have_text(["My name is Ada.", "What is 7 plus 8?"])
    await expect(chat.page.locator("article.found")).to_be_focused()
    await chat.page.get_by_label("Search your conversations").press("Escape")
    await expect(chat.conversations).to_have_count(2)


async def test_a_message_of_another_branch_is_offered_and_not_made_active_by_looking(
    chat: ChatPage, server: ServerProcess
) -> None:
    await chat.open(server.url)
    await chat.ask("My name is Ada.")
    await chat.edit("My name is Bo.")
    await expect(chat.questions).to_have_text(["My name is Bo."])
    await chat.ended()
    await chat.page.get_by_label("Search your conversations").fill("is Ada")
    await chat.page.locator("#hits a").first.click()
    offer = chat.page.get_by_role("button", name="Open it")
    await expect(offer).to_be_visible()
    await expect(chat.questions).to_have_text(["My name is Bo."])
    await chat.page.reload()  # looking has changed nothing
    await expect(chat.questions).to_have_text(["My name is Bo."])
    await chat.page.get_by_label("Search your conversations").fill("is Ada")
    await chat.page.locator("#hits a").first.click()
    await offer.click()
    await expect(chat.questions).to_have_text(["My name is Ada."])
    await expect(offer).to_be_hidden()


async def test_a_conversation_is_renamed_in_the_list_and_in_the_bar(
    chat: ChatPage, server: ServerProcess
) -> None:
    await chat.open(server.url)
    await chat.ask("My name is Ada.")
    await chat.conversations.first.hover()
    await chat.page.get_by_role("button", name="Rename “My name is Ada.”").click()
    await chat.page.get_by_label("Title").fill("About Ada")
    await chat.page.get_by_label("Title").press("Enter")
    await expect(chat.conversations).to_have_text(["About Ada"])
    await expect(chat.page.locator("#title")).to_have_text("About Ada")
    await expect(chat.conversations.first).to_be_focused()
    await choose(chat, "Rename")
    await expect(chat.page.get_by_label("Title")).to_be_focused()
    await chat.page.get_by_label("Title").fill("Thought better of")
    await chat.page.get_by_label("Title").press("Escape")
    await expect(chat.page.locator("#title")).to_have_text("About Ada")
    await chat.page.reload()
    await expect(chat.conversations).to_have_text(["About Ada"])


async def test_a_conversation_is_exported(chat: ChatPage, server: ServerProcess, tmp_path: Path) -> None:
    await chat.open(server.url)
    reply = await chat.ask("What is 7 plus 8?")
    async with chat.page.expect_download() as saving:
        await choose(chat, "Export as Markdown")
    saved = await saving.value
    await saved.save_as(tmp_path / saved.suggested_filename)
    text = (tmp_path / "What is 7 plus 8.md").read_text()
    assert text == f"# What is 7 plus 8?\n\n## You\n\nWhat is 7 plus 8?\n\n## Reply\n\n{reply}\n"
    async with chat.page.expect_download() as saving:
        await choose(chat, "Export as JSON")
    saved = await saving.value
    await saved.save_as(tmp_path / "told.json")
    reported = json.loads((tmp_path / "told.json").read_text())
    assert [message["content"] for message in reported["messages"]] == ["What is 7 plus 8?", reply]


async def test_a_shared_conversation_is_read_without_a_key_until_it_is_taken_back(
    chat: ChatPage, server: ServerProcess, context: BrowserContext, complaints: Complaints
) -> None:
    complaints.expected.append("404")  # the link that was taken back
    await chat.open(server.url)
    reply = await chat.ask("What is 7 plus 8?")
    await choose(chat, "Share")
    link = await chat.page.get_by_role("textbox", name="Link").input_value()
    reader = ChatPage(await context.new_page())
    await reader.page.goto(link)
    await expect(reader.replies.locator(".prose")).to_have_text(reply)
    await expect(reader.page.locator("#title")).to_have_text("What is 7 plus 8?")
    await expect(reader.page.get_by_role("button", name="Regenerate this reply")).to_have_count(0)
    await chat.page.get_by_role("button", name="Stop sharing").click()
    await expect(chat.page.locator("#share")).to_be_hidden()
    await chat.ask("My name is Ada.")
    await reader.page.reload()
    await expect(reader.page.locator("#told")).to_have_text(
        "This conversation does not exist, or is no longer shared."
    )


async def test_a_long_shared_conversation_is_scrolled_by_wheel_and_finger(
    chat: ChatPage, tmp_path: Path
) -> None:
    async with in_process(tmp_path, ScriptedEngine(reply="A paragraph.\n\n" * 60)) as service:
        async with service.socket({"client_id": "ann"}) as socket:
            await socket.send(type="send", client_msg_id="m", conversation_id="c", content="Tell me.")
            await socket.until("done")
            await socket.send(type="share", conversation_id="c")
            share = (await socket.next("shared"))["share_id"]
        await chat.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
        await chat.page.goto(f"{service.url}/s/{share}")
        await expect(chat.text).to_contain_text("A paragraph.")
        await settled(chat)
        place = "document.querySelector('.message').getBoundingClientRect().top"
        start = await chat.page.evaluate(place)
        await turn_wheel(chat, -20)
        await chat.page.wait_for_function(f"() => {place} <= {start} - 390")
        await drag(chat, 10)
        await chat.page.wait_for_function(f"() => {place} >= {start} - 300")
        await expect(chat.page.locator(".bar")).to_be_in_viewport(ratio=1)
        await chat.page.close()
