"""Reading and writing on the page: with the keyboard alone, on a phone, in the dark, while a reply grows."""

from __future__ import annotations

from playwright.async_api import Page, expect

from tests.browser.chat_page import ChatPage
from tests.browser.fake_server import FakeServer
from tests.browser.server_actions import exchange, replied, visit

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


async def test_a_suggestion_is_sent_when_chosen_and_enter_in_an_input_method_only_chooses_a_word(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn = await visit(chat, peer)
    await chat.box.fill("ni hao")
    composing = "{ key: 'Enter', isComposing: true, bubbles: true, cancelable: true }"
    press = f"dispatchEvent(new KeyboardEvent('keydown', {composing}))"
    await chat.page.evaluate(f"document.querySelector('#message').{press}")
    await expect(chat.box).to_have_value("ni hao")
    await chat.page.get_by_role("button", name="Count from 1 to 300.").click()
    assert (await conn.receive("send"))["content"] == "Count from 1 to 300."
    await expect(chat.page.get_by_role("heading", name="Say something")).to_be_hidden()
    await chat.type("你好")
    assert (await conn.receive("send"))["content"] == "你好"


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


async def test_the_theme_is_the_systems_until_one_is_chosen_and_can_be_given_back(
    chat: ChatPage, peer: FakeServer
) -> None:
    """What is around the page takes its colour."""

    async def background() -> str:
        colour = "getComputedStyle(document.documentElement).backgroundColor"
        around = "[...document.querySelectorAll('meta[name=theme-color]')]"
        await chat.page.wait_for_function(f"() => {around}.every(({{ content }}) => content === {colour})")
        return str(await chat.client("getComputedStyle(document.querySelector('#chat')).backgroundColor"))

    await chat.page.emulate_media(color_scheme="light")
    await visit(chat, peer)
    light = await background()
    await chat.page.emulate_media(color_scheme="dark")
    dark = await background()
    assert light != dark
    await chat.page.get_by_role("button", name="Switch to the light theme").click()
    assert await background() == light
    await chat.page.reload()
    assert await background() == light
    await chat.page.get_by_role("button", name="Switch to the dark theme").click()
    assert await background() == dark
    for chosen, shown in (("dark", dark), ("light", light), ("", dark)):
        await chat.page.get_by_role("button", name="Settings", exact=True).click()
        await chat.page.get_by_label("Theme", exact=True).select_option(chosen)
        await chat.page.get_by_role("button", name="Save").click()
        assert await background() == shown
    assert await chat.client("localStorage.getItem('midstream.theme')") is None


async def test_a_reply_is_copied_as_the_model_wrote_it(chat: ChatPage, peer: FakeServer) -> None:
    """Even if the browser keeps its clipboard from the page."""
    await replied(chat, peer, "**Here:**\n\n```python\nx = 1\n```", text="Code?")
    copy = chat.page.get_by_role("button", name="Copy the reply")
    await copy.click()
    await chat.copied("**Here:**\n\n```python\nx = 1\n```")
    await expect(chat.page.get_by_role("button", name="Copied")).to_be_visible()
    await chat.page.get_by_role("button", name="Copy the code").click()
    await chat.copied("x = 1")
    await chat.page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    await copy.click()
    await chat.box.press("Control+V")
    await expect(chat.box).to_have_value("**Here:**\n\n```python\nx = 1\n```")


async def test_a_visitor_who_forbids_storage_can_chat(chat: ChatPage, peer: FakeServer) -> None:
    denied = "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('', 'SecurityError'); } })"
    await chat.page.add_init_script(denied)
    await replied(chat, peer, "Hello!")
    await expect(chat.text).to_have_text("Hello!")
