"""The chat page in words: what a user does on it, and what is to be seen."""

from __future__ import annotations

from typing import Any

from playwright.async_api import Locator, Page, expect

UNDER_WAY = ".reply[aria-busy=true]"
CONNECTED = "#connection[data-state=connected]"
PACE = """
    async (pace) => {
      const { conversationAt } = await import("/static/ui/conversations/address.js");
      const chosen = [[conversationAt(location.hash), { pace }]];
      localStorage.setItem("midstream.conversation-settings", JSON.stringify(chosen));
    }
"""

SEEN = """
    (messages) => messages.map((one) => [
      one.querySelector("h2").innerText,
      one.querySelector(".bubble, .prose").innerText,
    ])
"""


class ChatPage:
    """One visit to the page."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.box = page.get_by_label("Your message")
        self.stop = page.get_by_role("button", name="Stop", exact=True)
        self.replies = page.locator(".reply")
        self.text = self.replies.last.locator(".prose")
        self.questions = page.locator(".user .bubble")
        self.connection = page.locator("#connection")
        self.conversations = page.get_by_role("navigation").get_by_role("link")

    async def open(self, url: str) -> None:
        """Loads the page and waits for its connection."""
        await self.page.goto(url)
        await self.connected()

    async def reload(self) -> None:
        """Loads the page again, and waits for its connection."""
        await self.page.reload()
        await self.connected()

    async def connected(self) -> None:
        """Waits for the connection; the page itself waits up to 20 s between its attempts."""
        await expect(self.page.locator(CONNECTED)).to_be_attached(timeout=60_000)

    async def read_at(self, chars_per_s: int) -> None:
        """Has replies of this conversation told so fast, however fast the machine is: there is time to do something."""
        await self.page.evaluate(PACE, chars_per_s)

    async def type(self, text: str) -> None:
        """Writes a message and presses Enter."""
        await self.box.fill(text)
        await self.box.press("Enter")

    async def start_new_chat(self) -> None:
        """Shows an empty conversation."""
        await self.page.get_by_role("button", name="New conversation").click()
        await expect(self.replies).to_have_count(0)

    async def ask(self, text: str) -> str:
        """Sends a message and gives the whole reply, once it has ended."""
        before = await self.replies.count()
        await self.type(text)
        await expect(self.replies).to_have_count(before + 1)
        await self.ended()
        return await self.last_reply()

    async def edit(self, text: str) -> None:
        """Replaces the first message."""
        await self.page.locator(".message.user").first.hover()
        await self.page.get_by_role("button", name="Edit this message").first.click()
        box = self.page.get_by_label("Your message, edited")
        await box.fill(text)
        await box.press("Enter")

    async def ended(self) -> None:
        """Waits until no reply is under way."""
        await expect(self.page.locator(UNDER_WAY)).to_have_count(0, timeout=60_000)

    async def until_shown(self, text: str) -> None:
        """Waits until the last reply has come as far as this text."""
        await expect(self.text).to_contain_text(text, timeout=60_000)

    async def last_reply(self) -> str:
        """The text of the last reply, as it is to be seen."""
        return await self.text.inner_text()

    async def seen(self) -> list[tuple[str, str]]:
        """Every message as it is to be seen at this moment: who wrote it, and its text."""
        return [(who, text) for who, text in await self.page.locator(".message").evaluate_all(SEEN)]

    async def shows(self, messages: list[tuple[str, str]]) -> None:
        """Waits until these messages are to be seen, and no others; what the page was told is drawn a moment later."""
        texts = self.page.locator(".message").locator(".bubble, .prose")
        await expect(texts).to_have_text([text for _, text in messages], use_inner_text=True)
        assert await self.seen() == messages

    async def copied(self, text: str) -> None:
        """Waits until the clipboard holds a text."""
        held = "async (text) => (await navigator.clipboard.readText()) === text"
        await self.page.wait_for_function(held, arg=text)

    def badge(self) -> Locator:
        """The word on how the last reply ended, where it did not end well."""
        return self.replies.last.locator(".badge")

    async def client(self, script: str, argument: Any = None) -> Any:
        """Runs JavaScript on the page."""
        return await self.page.evaluate(script, argument)
