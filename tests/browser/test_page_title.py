"""A reply that ends while nobody looks: a mark in the page's title."""

from __future__ import annotations

from playwright.async_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.fake_server import FakeServer
from tests.browser.server_actions import begun

HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
TITLE = "Hello? · Midstream"


async def test_a_reply_that_ends_unseen_marks_the_title_until_somebody_looks(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn, send = await begun(chat, peer, "one")
    await conn.finish(send, turn="t", seq=3, reason="stop", chars=3)
    await chat.ended()
    await chat.client(HIDE, True)
    await expect(chat.page).to_have_title(TITLE)  # that one ended before the reader's eyes
    await chat.type("Hello?")
    send = await conn.receive("send")
    await conn.accept(send, turn="u", seq=4)
    await conn.finish(send, turn="u", seq=5, reason="stop", chars=0)
    await expect(chat.page).to_have_title(f"● {TITLE}")
    await chat.client(HIDE, False)
    await expect(chat.page).to_have_title(TITLE)
