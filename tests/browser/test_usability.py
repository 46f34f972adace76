"""Reading and writing on the page: with the keyboard alone, on a phone, in the dark, while a reply grows."""

from __future__ import annotations

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.browser.chat_page import ChatPage
from tests.browser.fake_server import FakeServer
from tests.browser.server_actions import exchange, replied, visit

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

PHONE = {"width": 360, "height": 740}
WIDE = "| a | b | c | d | e | f | g | h |\n|" + "---|" * 8 + "\n" + "|" + "a long cell |" * 8
LONG_REPLY = f"{'word ' * 200}\n\n```python\n{'x' * 300}\n```\n\n{WIDE}\n\n{'unbroken' * 60}"


async def sideways(page: Page) -> int:
    """How many pixels the page can be scrolled to the side."""
    script = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    return int(await page.evaluate(script))


async def test_the_first_tab_stop_skips_to_the_message_box(chat: ChatPage, peer: FakeServer) -> None:
    await visit(chat, peer)
    address = chat.page.url
    await chat.page.get_by_role("button", name="New conversation").focus()
    await chat.page.keyboard.press("Shift+Tab")
    await expect(chat.page.get_by_role("link", name="Skip to the message box")).to_be_focused()
    assert await chat.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    await chat.page.keyboard.press("Enter")
    await expect(chat.box).to_be_focused()
    assert chat.page.url == address


async def test_enter_in_an_input_method_chooses_a_word_and_sends_nothing(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn = await visit(chat, peer)
    await chat.box.fill("ni hao")
    press = (
        "new KeyboardEvent('keydown', { key: 'Enter', isComposing: true, bubbles: true, cancelable: true })"
    )
    await chat.page.evaluate(f"document.querySelector('#message').dispatchEvent({press})")
    await expect(chat.box).to_have_value("ni hao")
    await chat.type("你好")
    assert (await conn.receive("send"))["content"] == "你好"


async def test_a_suggestion_is_sent_when_chosen(chat: ChatPage, peer: FakeServer) -> None:
    conn = await visit(chat, peer)
    await chat.page.get_by_role("button", name="Count from 1 to 300.").click()
    assert (await conn.receive("send"))["content"] == "Count from 1 to 300."
    await expect(chat.page.get_by_role("heading", name="Say something")).to_be_hidden()


async def test_nothing_makes_a_narrow_page_scroll_sideways(chat: ChatPage, peer: FakeServer) -> None:
    conn = await visit(chat, peer)
    scroller = "document.querySelector('#scroller')"
    for message in (False, True):
        if message:
            await exchange(chat, conn, LONG_REPLY, text="wide" * 100)
        for width in (320, 360, 390, 768):
            await chat.page.set_viewport_size({"width": width, "height": 740})
            assert await sideways(chat.page) == 0, width
            assert await chat.page.evaluate(f"{scroller}.scrollWidth <= {scroller}.clientWidth"), width
            await expect(chat.page.get_by_role("button", name="Send", exact=True)).to_be_in_viewport(ratio=1)


async def test_the_list_is_a_drawer_on_a_phone(chat: ChatPage, peer: FakeServer) -> None:
    await visit(chat, peer)
    await chat.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    anew = chat.page.get_by_role("button", name="New conversation")
    await expect(anew).to_be_hidden()
    await chat.page.get_by_role("button", name="Show your conversations").click()
    await expect(anew).to_be_in_viewport(ratio=1)
    await expect(chat.page.get_by_role("button", name="Close the list of conversations")).to_be_focused()
    await chat.page.keyboard.press("Escape")
    await expect(anew).to_be_hidden()
    await expect(chat.page.get_by_role("button", name="Show your conversations")).to_be_focused()


async def test_the_theme_is_the_systems_until_one_is_chosen(
    chat: ChatPage, peer: FakeServer, context: BrowserContext
) -> None:
    async def background(page: Page) -> str:
        return str(await page.evaluate("getComputedStyle(document.querySelector('#chat')).backgroundColor"))

    await chat.page.emulate_media(color_scheme="light")
    await visit(chat, peer)
    light = await background(chat.page)
    await chat.page.emulate_media(color_scheme="dark")
    dark = await background(chat.page)
    assert light != dark
    await chat.page.get_by_role("button", name="Switch to the light theme").click()
    assert await background(chat.page) == light
    await chat.page.reload()
    assert await background(chat.page) == light
    await chat.page.get_by_role("button", name="Switch to the dark theme").click()
    assert await background(chat.page) == dark


async def test_a_reply_is_copied_as_the_model_wrote_it(chat: ChatPage, peer: FakeServer) -> None:
    await replied(chat, peer, "**Here:**\n\n```python\nx = 1\n```", text="Code?")
    await chat.page.get_by_role("button", name="Copy the reply").click()
    await chat.copied("**Here:**\n\n```python\nx = 1\n```")
    await expect(chat.page.get_by_role("button", name="Copied")).to_be_visible()
    await chat.page.get_by_role("button", name="Copy the code").click()
    await chat.copied("x = 1")


async def test_copying_works_where_the_browser_keeps_its_clipboard_from_the_page(
    chat: ChatPage, peer: FakeServer
) -> None:
    await replied(chat, peer, "Hello!")
    await chat.page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    await chat.page.get_by_role("button", name="Copy the reply").click()
    await chat.box.press("Control+V")
    await expect(chat.box).to_have_value("Hello!")


async def test_a_visitor_who_forbids_storage_can_chat(chat: ChatPage, peer: FakeServer) -> None:
    denied = "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('', 'SecurityError'); } })"
    await chat.page.add_init_script(denied)
    await replied(chat, peer, "Hello!")
    await expect(chat.text).to_have_text("Hello!")
