"""Tables in replies: words stay whole, and what is wider than the column is scrolled to."""

from __future__ import annotations

from itertools import count

import pytest
from playwright.async_api import Locator, expect

from tests.browser.chat_page import ChatPage
from tests.browser.fake_server import FakeServer
from tests.browser.server_actions import begun, delta, replied

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

FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""Until what was seen of a size has led to something."""


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


LEFTS = """
    (table) => {
      table.scrollIntoView();
      return [...table.rows].map((row) => [...row.cells].map((cell) => Math.round(cell.getBoundingClientRect().left)));
    }
"""
"""Where each cell of a table begins, once it is looked at: what is out of sight may not be laid out."""


async def long_table(chat: ChatPage, peer: FakeServer, rows: int) -> Locator:
    """What holds a table that came in pieces."""
    conn, send = await begun(chat, peer)
    text = "| name | n |\n|---|---|\n" + "".join(f"| row {n} of many | {n} |\n" for n in range(rows))
    seqs = count(2)
    for off in range(0, len(text), 400):
        await delta(conn, send, text[off : off + 400], off=off, seq=next(seqs))
    await conn.finish(send, turn="t", seq=next(seqs), reason="stop", chars=len(text))
    await chat.ended()
    frame = chat.replies.last.locator(".table")
    await expect(frame.locator("tbody tr")).to_have_count(rows)
    return frame


async def test_a_long_table_goes_on_in_another_with_the_same_head_and_the_same_columns(
    chat: ChatPage, peer: FakeServer
) -> None:
    """Each row that comes has its whole table laid out: a table of 1,500 rows took 15 ms a row."""
    frame = await long_table(chat, peer, 250)
    assert await frame.locator("th").all_text_contents() == ["name", "n"] * 3
    assert await frame.locator("tbody td:last-child").all_text_contents() == [str(n) for n in range(250)]
    for width in (1280, 390):
        await chat.page.set_viewport_size({"width": width, "height": 800})
        await chat.page.wait_for_function("(width) => innerWidth === width", arg=width)
        await chat.page.evaluate(FRAMES)
        lefts = []
        for table in await frame.locator("table").all():
            await table.evaluate(LEFTS)
            await chat.page.evaluate(FRAMES)
            lefts.append(await table.evaluate(LEFTS))
        assert [len(table) for table in lefts] == [101, 101, 51]
        assert len({tuple(row) for table in lefts for row in table}) == 1
