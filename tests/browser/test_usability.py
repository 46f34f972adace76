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


async def from_end(page: Page) -> int:
    """How many pixels of the conversation are below the view."""
    script = "(({ scrollHeight, scrollTop, clientHeight }) => scrollHeight - scrollTop - clientHeight)"
    return int(await page.evaluate(f"Math.round({script}(document.querySelector('#scroller')))"))


async def focused(page: Page) -> str:
    """What has the focus: its label, else its text."""
    script = "document.activeElement.ariaLabel ?? document.activeElement.id"
    return str(await page.evaluate(script)) or str(await page.evaluate("document.activeElement.innerText"))


async def test_all_of_it_works_with_the_keyboard_alone(chat: ChatPage, peer: FakeServer) -> None:
    conn = await visit(chat, peer)
    keyboard = chat.page.keyboard
    await expect(chat.box).to_be_focused()
    await keyboard.type("two")
    await keyboard.press("Shift+Enter")
    await keyboard.type("lines")
    await keyboard.press("Enter")
    send = await conn.receive("send")
    assert send["content"] == "two\nlines"
    await conn.accept(send, turn="t", seq=1)
    await expect(chat.stop).to_be_visible()
    await keyboard.press("Tab")
    assert await focused(chat.page) == "stop"
    await keyboard.press("Enter")
    await conn.receive("cancel")
    await expect(chat.box).to_be_focused()


async def test_the_first_tab_stop_skips_to_the_message_box(chat: ChatPage, peer: FakeServer) -> None:
    await visit(chat, peer)
    address = chat.page.url
    await chat.page.get_by_role("button", name="New conversation").focus()
    await chat.page.keyboard.press("Shift+Tab")
    await expect(chat.page.get_by_role("link", name="Skip to the message box")).to_be_focused()
    await chat.page.keyboard.press("Enter")
    await expect(chat.box).to_be_focused()
    assert chat.page.url == address


async def test_what_has_the_focus_is_seen(chat: ChatPage, peer: FakeServer) -> None:
    await visit(chat, peer)
    await chat.page.get_by_role("button", name="New conversation").focus()
    await chat.page.keyboard.press("Tab")
    outline = await chat.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


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


@pytest.mark.parametrize("width", [320, 360, 390, 768])
async def test_nothing_makes_a_narrow_page_scroll_sideways(
    chat: ChatPage, peer: FakeServer, width: int
) -> None:
    await chat.page.set_viewport_size({"width": width, "height": 740})
    conn = await visit(chat, peer)
    assert await sideways(chat.page) == 0
    await exchange(chat, conn, LONG_REPLY, text="wide" * 100)
    assert await sideways(chat.page) == 0
    scroller = "document.querySelector('#scroller')"
    assert await chat.page.evaluate(f"{scroller}.scrollWidth <= {scroller}.clientWidth")
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


async def test_the_end_stays_in_view_until_the_reader_scrolls_up(chat: ChatPage, peer: FakeServer) -> None:
    conn = await visit(chat, peer)
    await chat.type("Tell me.")
    send = await conn.receive("send")
    await conn.accept(send, turn="t", seq=1)
    where = {"conversation_id": send["conversation_id"], "turn_id": "t", "tokens": 1}
    paragraph = "word " * 60 + "\n\n"

    async def grow(seq: int, mark: str) -> None:
        text = f"{mark} {paragraph * 6}"
        await conn.send_frame("delta", text=text, off=(seq - 2) * len(text), seq=seq, first_seq=seq, **where)
        await chat.until_shown(mark)

    await grow(2, "aaa")
    await grow(3, "bbb")
    assert await from_end(chat.page) <= 1
    await chat.page.mouse.move(700, 400)
    await chat.page.mouse.wheel(0, -300)
    latest = chat.page.get_by_role("button", name="Latest")
    await expect(latest).to_be_visible()
    await grow(4, "ccc")
    assert await from_end(chat.page) > 300
    await latest.click()
    await grow(5, "ddd")
    assert await from_end(chat.page) <= 1
    await expect(latest).to_be_hidden()


async def test_earlier_messages_come_when_the_reader_scrolls_there_and_move_nothing(
    chat: ChatPage, peer: FakeServer
) -> None:
    await chat.page.goto(f"{peer.url}/#/old")
    conn = await peer.conn()

    async def answer(first: int, *, more: bool) -> dict[str, object]:
        requested = await conn.receive("history")
        messages = [
            {
                "message_id": f"m{number}",
                "turn_id": f"t{number}",
                "role": "user",
                "content": f"Message {number}",
            }
            | {"status": "complete", "created_at": number}
            for number in range(first, first + 20)
        ]
        page = {"epoch": "e", "seq": 99, "messages": messages, "has_more": more}
        await conn.send_frame("history", ref=requested["ref"], conversation_id="old", **page)
        return requested

    await answer(21, more=True)
    await expect(chat.questions).to_have_count(20)
    await chat.page.locator("#scroller").evaluate("(scroller) => scroller.scrollTo(0, 0)")
    first = chat.questions.get_by_text("Message 21", exact=True)
    await expect(first).to_be_in_viewport()
    assert (await answer(1, more=False))["before"] == "m21"
    await expect(chat.questions).to_have_count(40)
    await expect(first).to_be_in_viewport()
    await expect(chat.page.locator("#older")).to_be_hidden()


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


async def test_a_reply_is_announced_once_and_whole(chat: ChatPage, peer: FakeServer) -> None:
    await replied(chat, peer, "Good morning!")
    await expect(chat.page.locator("#announcer")).to_have_text("Reply: Good morning!")
    await expect(chat.page.locator("#connection-text")).to_have_attribute("role", "status")


async def test_a_visitor_who_forbids_storage_can_chat(chat: ChatPage, peer: FakeServer) -> None:
    denied = "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('', 'SecurityError'); } })"
    await chat.page.add_init_script(denied)
    await replied(chat, peer, "Hello!")
    await expect(chat.text).to_have_text("Hello!")
