"""Tables in replies: words stay whole, and what is wider than the column is scrolled to."""

from __future__ import annotations

import pytest
from playwright.async_api import Locator, expect

from tests.browser.chat_page import ChatPage
from tests.browser.fake_server import FakeServer
from tests.browser.server_actions import replied

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

HEADS = ("Algorithm", "Average", "Worst case", "Memory", "Stability", "Invented", "Comparisons")
CELLS = ("Mergesort", "O(n log n)", "O(n log n)", "O(n)", "stable", "John von Neumann", "n log n")
TABLE = f"|{'|'.join(HEADS)}|\n|{'---|' * len(HEADS)}\n|{'|'.join(CELLS)}|"
BROKEN = """
    (table) => {
      const walker = document.createTreeWalker(table, NodeFilter.SHOW_TEXT);
      const broken = [];
      for (let node = walker.nextNode(); node !== null; node = walker.nextNode()) {
        for (const { 0: word, index } of node.data.matchAll(/[\\p{L}\\p{N}]+/gu)) {
          const range = document.createRange();
          range.setStart(node, index);
          range.setEnd(node, index + word.length);
          if (new Set([...range.getClientRects()].map(({ top }) => top)).size > 1) broken.push(word);
        }
      }
      return broken;
    }
"""


async def table(chat: ChatPage, peer: FakeServer) -> Locator:
    """What holds the table of a reply."""
    await replied(chat, peer, TABLE)
    return chat.replies.last.locator(".table")


@pytest.mark.parametrize("width", [390, 1280])
async def test_a_table_breaks_no_word(chat: ChatPage, peer: FakeServer, width: int) -> None:
    await chat.page.set_viewport_size({"width": width, "height": 800})
    assert await (await table(chat, peer)).evaluate(BROKEN) == []


async def test_a_table_that_is_too_wide_takes_the_focus_and_scrolls(chat: ChatPage, peer: FakeServer) -> None:
    await chat.page.set_viewport_size({"width": 390, "height": 800})
    frame = await table(chat, peer)
    await frame.focus()
    await expect(frame).to_be_focused()
    assert await frame.evaluate("(frame) => { frame.scrollLeft = 1e6; return frame.scrollLeft > 0; }")


async def test_tables_are_no_landmarks(chat: ChatPage, peer: FakeServer) -> None:
    """Landmarks need names of their own; a reply may have ten tables."""
    await table(chat, peer)
    await expect(chat.page.get_by_role("region", name="Table")).to_have_count(0)
    await expect(chat.page.get_by_role("group", name="Table")).to_be_visible()
