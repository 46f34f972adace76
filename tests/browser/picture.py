"""Takes the picture that opens the README: `python -m tests.browser.picture URL FILE`, at a running service."""

from __future__ import annotations

import asyncio
import shutil
import sys

from playwright.async_api import ViewportSize, async_playwright, expect

from tests.browser.chat_page import ChatPage
from tests.browser.conftest import OPTIONS

SIZE = ViewportSize(width=1200, height=800)
EARLIER = ("What is 7 plus 8?", "Tell me a story about a lighthouse.")


async def take(url: str, file: str) -> None:
    """Chats as a visitor would, with a count stopped in the middle, and keeps what is to be seen."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=OPTIONS)
        page = await browser.new_page(viewport=SIZE, device_scale_factor=2, color_scheme="light")
        chat = ChatPage(page)
        await chat.open(url)
        for question in EARLIER:
            await chat.ask(question)
            await page.get_by_role("button", name="New conversation").press("Enter")
        await chat.ask("My name is Ada.")
        await chat.type("Count from 1 to 300.")
        await chat.until_shown("87,")
        await page.keyboard.press("Escape")
        await expect(chat.badge()).to_have_text("Stopped")
        await chat.ask("What is my name?")
        await page.mouse.move(SIZE["width"] - 1, 1)
        await page.screenshot(path=file)
        await browser.close()


if __name__ == "__main__":
    asyncio.run(take(*sys.argv[1:]))
