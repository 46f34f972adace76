"""Continue, the twin of Stop; and what the settings change: on a real server."""

from __future__ import annotations

import re

from playwright.async_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.fake_server import FakeServer
from tests.browser.server_actions import begin, resume, visit
from tests.server_process import ServerProcess

COUNT = "Count from 1 to 300."
FENCED = "~~~~~\n[b]\n~~~~\nx\n~~~~"
"""A text that looks like an attachment within one."""


async def test_a_stopped_reply_goes_on_where_it_stands(chat: ChatPage, server: ServerProcess) -> None:
    await chat.open(server.url)
    await chat.read_at(60)
    await chat.type(COUNT)
    await chat.until_shown("5,")
    await chat.stop.click()
    await expect(chat.badge()).to_have_text("Stopped")
    stopped = await chat.last_reply()
    await chat.page.get_by_role("button", name="Continue").click()
    await chat.until_shown(f" {max(map(int, re.findall(r'[0-9]+', stopped))) + 8},")
    await chat.page.keyboard.press("Escape")
    await expect(chat.badge()).to_have_text("Stopped")
    longer = await chat.last_reply()
    assert longer.startswith(stopped.rstrip())
    assert len(longer) > len(stopped)
    await expect(chat.replies).to_have_count(1)
    await chat.page.reload()
    await expect(chat.replies.last.locator(".prose")).to_have_text(longer)
    await expect(chat.page.get_by_role("button", name="Continue")).to_be_visible()
    await chat.ask("What is 7 plus 8?")  # neither a whole reply nor one with successors can go on
    await expect(chat.page.get_by_role("button", name="Continue")).to_have_count(0)


async def test_the_longest_reply_is_what_the_settings_say(chat: ChatPage, server: ServerProcess) -> None:
    await chat.open(server.url)
    await chat.page.get_by_role("button", name="Settings", exact=True).click()
    await chat.page.get_by_label("Maximum reply length (tokens)").fill("9")
    await chat.page.get_by_role("button", name="Save").click()
    await chat.ask(COUNT)
    await expect(chat.badge()).to_have_text("Length limit reached")
    await chat.reload()
    await chat.page.get_by_role("button", name="Settings", exact=True).click()
    await expect(chat.page.get_by_label("Maximum reply length (tokens)")).to_have_value("9")
    await chat.page.get_by_role("button", name="Reset to defaults").click()
    await chat.page.get_by_role("button", name="Save").click()
    await chat.ask("What is 7 plus 8?")
    await expect(chat.badge()).to_have_count(0)


async def test_a_text_comes_at_the_pace_that_was_chosen(chat: ChatPage, server: ServerProcess) -> None:
    """And a stop keeps what had come, though the model has long written all of it."""
    await chat.open(server.url)
    await chat.page.get_by_role("button", name="Settings", exact=True).click()
    await chat.page.get_by_label("Text speed").select_option(label="Slow")
    await chat.page.get_by_role("button", name="Save").click()
    await chat.type(COUNT)
    await chat.until_shown("2,")
    await chat.stop.click()
    await expect(chat.badge()).to_have_text("Stopped")
    assert len(await chat.last_reply()) < 60
    await expect(chat.replies.last.locator(".figures")).to_contain_text("tokens")


async def test_a_text_goes_with_a_message_and_stays_with_it(chat: ChatPage, server: ServerProcess) -> None:
    await chat.open(server.url)
    await chat.page.locator("#attach-files").set_input_files(
        [
            {"name": "notes.txt", "mimeType": "text/plain", "buffer": FENCED.encode()},
            {"name": "picture.png", "mimeType": "image/png", "buffer": b"\x89PNG\0\xff"},
        ]
    )
    await expect(chat.page.locator("#attachments li")).to_have_text(["notes.txt"])
    await expect(chat.page.locator("#notices")).to_contain_text("“picture.png” can't be attached")
    await chat.ask("What is 7 plus 8?")
    await expect(chat.page.locator("#attachments")).to_be_hidden()
    for _ in range(2):
        await expect(chat.questions).to_have_text(["What is 7 plus 8?"])
        await chat.page.locator(".attachment summary").click()
        await expect(chat.page.locator(".attachment pre")).to_have_text(FENCED)
        await chat.page.reload()
    assert "notes.txt" in await chat.page.locator(".attachment summary").inner_text()
    await chat.page.locator(".message.user").first.hover()
    await chat.page.get_by_role("button", name="Edit this message").click()
    await expect(chat.page.get_by_label("Your message, edited")).to_have_value("What is 7 plus 8?")
    await chat.page.keyboard.press("Escape")
    await chat.edit("What is 2 plus 3?")
    await expect(chat.questions).to_have_text(["What is 2 plus 3?"])
    await expect(chat.page.locator(".attachment")).to_have_count(1)


async def test_esc_that_closes_the_menu_stops_no_reply(chat: ChatPage, server: ServerProcess) -> None:
    await chat.open(server.url)
    await chat.read_at(20)
    await chat.type(COUNT)
    await chat.until_shown("2,")
    await chat.page.get_by_role("button", name="More about this conversation").click()
    await expect(chat.page.locator("#menu")).to_be_visible()
    await chat.page.keyboard.press("Escape")
    await expect(chat.page.locator("#menu")).to_be_hidden()
    await chat.until_shown("5,")
    await chat.page.keyboard.press("Escape")
    await expect(chat.badge()).to_have_text("Stopped")


async def test_a_long_text_that_is_pasted_is_attached(chat: ChatPage, server: ServerProcess) -> None:
    await chat.open(server.url)
    await chat.client("(text) => navigator.clipboard.writeText(text)", "word " * 1000)
    await chat.box.focus()
    await chat.page.keyboard.press("ControlOrMeta+v")
    await expect(chat.page.locator("#attachments li")).to_have_text(["pasted text"])
    await expect(chat.box).to_have_value("")
    await chat.page.get_by_role("button", name="Remove “pasted text”").click()
    await expect(chat.page.locator("#attachments")).to_be_hidden()


TWO_MODELS = [
    {"name": "scripted", "context_tokens": 4096, "features": ["continue"]},
    {"name": "other", "context_tokens": 4096, "features": []},
]


async def test_what_can_go_on_follows_the_model_that_is_chosen_and_what_the_service_says(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn = await visit(chat, peer, models=TWO_MODELS)
    send = await begin(chat, conn, "one")
    await conn.finish(send, turn="t", seq=3, reason="cancelled", chars=3)
    onward = chat.page.get_by_role("button", name="Continue", exact=True)
    await expect(onward).to_be_visible()
    for model, count in (("other", 0), ("scripted", 1)):
        await chat.page.get_by_role("button", name="Settings", exact=True).click()
        await chat.page.get_by_label("Model", exact=True).select_option(model)
        await chat.page.get_by_role("button", name="Save").click()
        await expect(onward).to_have_count(count)
    await conn.drop()
    conn = await peer.conn(models=[TWO_MODELS[0] | {"features": []}])
    await resume(conn, after=3)
    await chat.connected()
    await expect(onward).to_have_count(0)


async def test_tools_are_offered_to_the_model_that_is_asked(chat: ChatPage, peer: FakeServer) -> None:
    """Not to one that stood in for it; for another reply, to the one that was asked for the first."""
    models = [TWO_MODELS[0] | {"features": ["tools"]}, TWO_MODELS[1]]
    conn = await visit(
        chat, peer, models=models, tools=[{"name": "pay", "description": "", "approval": "none"}]
    )
    send = await begin(chat, conn, "one")
    end = {"reason": "stop", "chars": 3, "model": "other"}
    await conn.finish(send, turn="t", seq=3, requested_model="scripted", **end)
    await expect(chat.page.get_by_role("button", name="Stop", exact=True)).to_be_hidden()
    await chat.type("Again?")
    send = await conn.receive("send")
    assert [tool["name"] for tool in send["tools"]] == ["pay"]
    await conn.accept(send, turn="t2", seq=4)
    await conn.finish(send, turn="t2", seq=5, **end | {"chars": 0})
    await chat.replies.first.get_by_role("button", name="Regenerate this reply").click()
    assert "tools" in await conn.receive("regenerate")
