"""One conversation in each of the circumstances that people are in: a phone in the dark, the keyboard alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, expect

from engine.scripted import ScriptedEngine, words_of
from tests.app.in_process_service import InProcessService, serving
from tests.browser.chat_page import ChatPage
from tests.browser.conftest import Complaints

NUMBERS = words_of(" ".join(str(number) for number in range(1, 400)))
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
MOST_TABS = 60


@pytest_asyncio.fixture(loop_scope="session")
async def service(context: BrowserContext, tmp_path: Path) -> AsyncIterator[InProcessService]:
    """A service whose engine counts, calmly, and goes on where it was stopped. The pages go before it does."""
    engine = ScriptedEngine(context_tokens=8192, pace_s=0.05)
    for _ in range(2):
        engine.script(NUMBERS)
    async with serving(tmp_path, engine) as running:
        yield running
        for page in context.pages:
            await page.close()


async def tab_to(chat: ChatPage, name: str, *, back: bool = False) -> None:
    """Goes on with Tab until what has the focus is called so."""
    named = "document.activeElement.ariaLabel ?? document.activeElement.textContent.trim()"
    for _ in range(MOST_TABS):
        await chat.page.keyboard.press("Shift+Tab" if back else "Tab")
        if await chat.client(named) == name:
            return
    raise AssertionError(f"no Tab leads to “{name}”")


async def test_a_conversation_is_led_with_the_keyboard_alone(
    chat: ChatPage, service: InProcessService
) -> None:
    """Sent, stopped, continued, renamed, found again, and its settings opened and closed."""
    keyboard = chat.page.keyboard
    await chat.open(service.url)
    await keyboard.type("Count,")
    await keyboard.press("Shift+Enter")
    await keyboard.type("please.")
    await keyboard.press("Enter")
    await chat.until_shown("5 6")
    assert await chat.questions.inner_text() == "Count,\nplease."
    await keyboard.press("Tab")
    await expect(chat.stop).to_be_focused()
    await keyboard.press("Enter")
    await expect(chat.badge()).to_have_text("Stopped")
    await expect(chat.box).to_be_focused()
    stopped = await chat.last_reply()
    await tab_to(chat, "Continue", back=True)
    await keyboard.press("Enter")
    await expect(chat.badge()).to_have_count(0)
    await expect(chat.box).to_be_focused()
    await keyboard.press("Escape")
    await expect(chat.badge()).to_have_text("Stopped")
    assert (await chat.last_reply()).startswith(stopped.rstrip())
    await tab_to(chat, "More about this conversation", back=True)
    await keyboard.press("Enter")
    await tab_to(chat, "Rename")
    await keyboard.press("Enter")
    await keyboard.type("Numbers")
    await keyboard.press("Enter")
    await expect(chat.conversations).to_have_text(["Numbers"])
    await tab_to(chat, "Settings", back=True)
    await keyboard.press("Enter")
    await expect(chat.page.get_by_role("dialog")).to_be_visible()
    await keyboard.press("Escape")
    await expect(chat.page.get_by_role("dialog")).to_be_hidden()
    await tab_to(chat, "New conversation", back=True)
    await keyboard.press("Enter")
    await expect(chat.questions).to_have_count(0)
    await chat.page.get_by_label("Search your conversations").focus()
    await keyboard.type("count please")
    await expect(chat.page.locator("#hits a")).to_have_count(1)
    await keyboard.press("Tab")
    await keyboard.press("Enter")
    await expect(chat.questions).to_have_text(["Count, please."])
    await expect(chat.page.locator("#title")).to_have_text("Numbers")


async def test_a_conversation_is_led_with_a_finger_on_a_phone(
    chromium: Browser, service: InProcessService, complaints: Complaints
) -> None:
    context = await chromium.new_context(**PHONE, color_scheme="dark")  # type: ignore[arg-type]
    complaints.watch(context)
    chat = ChatPage(await context.new_page())
    await chat.open(service.url)
    await chat.box.tap()
    await chat.box.fill("Count, please.")
    await chat.page.get_by_role("button", name="Send", exact=True).tap()
    await chat.until_shown("5 6")
    await chat.stop.tap()
    await expect(chat.badge()).to_have_text("Stopped")
    await chat.page.get_by_role("button", name="Continue").tap()
    await expect(chat.badge()).to_have_count(0)
    await chat.stop.tap()
    await expect(chat.badge()).to_have_text("Stopped")
    sideways = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert await chat.client(sideways) == 0
    await chat.page.get_by_role("button", name="Show your conversations").tap()
    await chat.page.get_by_role("button", name="New conversation").tap()
    await expect(chat.questions).to_have_count(0)
    await context.close()
    assert complaints.unexpected() == []
