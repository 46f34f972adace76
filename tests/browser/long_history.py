"""A long conversation that a peer sends in pages, the ways to scroll it, and what is to be seen of it meanwhile."""

from __future__ import annotations

from typing import Any

from playwright.async_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.fake_server import FakeServer, PageConnection

CONVERSATION = "old"
SCROLLER = "document.querySelector('#scroller')"
FRAMES = "await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));"
PARAGRAPH = "Some words that fill a line and a half of the column, so that it has to be broken somewhere. "


def reply_of(number: int) -> str:
    """A reply whose height nobody guesses: paragraphs, at times a list or a block of code."""
    parts = [f"Reply {number}.", PARAGRAPH * (number % 4)]
    if number % 5 == 0:
        parts.append("\n".join(f"- point {point}" for point in range(number % 7 + 1)))
    if number % 9 == 0:
        parts.append("```python\n" + "\n".join(f"x{line} = {line}" for line in range(number % 12)) + "\n```")
    return "\n\n".join(parts)


def history(exchanges: int) -> list[dict[str, Any]]:
    """Messages of so many exchanges, oldest first."""
    return [message for number in range(exchanges) for message in _exchange(number)]


def _exchange(number: int) -> list[dict[str, Any]]:
    common = {"turn_id": f"t{number}", "status": "complete", "created_at": number}
    requested = {"message_id": f"u{number}", "role": "user", "content": f"Question {number}"}
    reported = {"message_id": f"a{number}", "role": "assistant", "content": reply_of(number)}
    return [requested | common, reported | common]


async def open_long(chat: ChatPage, peer: FakeServer, exchanges: int) -> PageConnection:
    """The page, opened at the end of a long conversation."""
    peer.histories[CONVERSATION] = history(exchanges)
    await chat.page.goto(f"{peer.url}/#/{CONVERSATION}")
    line = await peer.conn()
    await expect(chat.questions.last).to_have_text(f"Question {exchanges - 1}")
    await settled(chat)
    return line


async def settled(chat: ChatPage) -> None:
    """Waits until what is in the document does not change any more."""
    script = f"""async () => {{
      const what = () => [...document.querySelectorAll("#messages > *")].map((one) => one.offsetHeight + one.innerText).join();
      for (let [before, now] = ["", what()]; before !== now; [before, now] = [now, what()]) {{ {FRAMES} }}
    }}"""
    await chat.page.evaluate(script)


async def scroll_by(chat: ChatPage, pixels: float) -> None:
    """Scrolls, and waits for what that brings into the document."""
    await chat.page.evaluate(f"async () => {{ {SCROLLER}.scrollTop += {pixels}; {FRAMES} }}")


async def scroll_to(chat: ChatPage, share: float) -> None:
    """Scrolls to a share of the height, as dragging the scrollbar does."""
    where = f"{SCROLLER}.scrollTop = {share} * {SCROLLER}.scrollHeight"
    await chat.page.evaluate(f"async () => {{ {where}; {FRAMES} }}")
    await settled(chat)


async def tops(chat: ChatPage) -> dict[str, float]:
    """Where each message in view begins, by its text, in px below the top of the view."""
    script = f"""() => {{
      const view = {SCROLLER}.getBoundingClientRect();
      const boxes = [...document.querySelectorAll(".message")].map((one) => [one.innerText, one.getBoundingClientRect()]);
      const seen = boxes.filter(([, box]) => box.bottom > view.top && box.top < view.bottom);
      return Object.fromEntries(seen.map(([text, box]) => [text, box.top - view.top]));
    }}"""
    return dict(await chat.page.evaluate(script))


def moved(before: dict[str, float], after: dict[str, float]) -> float:
    """By how much what is in view both times went down; asserts that something is, and that all of it went alike."""
    both = before.keys() & after.keys()
    assert both
    ways = [after[text] - before[text] for text in both]
    assert max(ways) - min(ways) <= 1
    return ways[0]


async def nodes(chat: ChatPage) -> int:
    """Elements in the document."""
    return int(await chat.page.evaluate("document.querySelectorAll('*').length"))


async def loaded_all(chat: ChatPage) -> None:
    """Scrolls up until there is nothing older."""
    older = chat.page.locator("#older")
    while not await older.is_hidden():
        await chat.page.evaluate(f"async () => {{ {SCROLLER}.scrollTop = 0; {FRAMES} }}")


async def turn_wheel(chat: ChatPage, pixels: int) -> None:
    """A trackpad: many wheel events of a few pixels."""
    await chat.page.mouse.move(300, 400)
    for _ in range(20):
        await chat.page.mouse.wheel(0, -pixels)
        await chat.page.evaluate(f"async () => {{ {FRAMES} }}")


async def drag(chat: ChatPage, pixels: int) -> None:
    """A finger that moves a few pixels at a time."""
    session = await chat.page.context.new_cdp_session(chat.page)
    for step in range(30):
        kind = "touchMove" if step else "touchStart"
        points = [{"x": 300, "y": 300 + step * pixels}]
        await session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        await chat.page.evaluate(f"async () => {{ {FRAMES} }}")
    await session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


async def press_up(chat: ChatPage, count: int) -> None:
    """The arrow key."""
    await chat.page.locator("#scroller").focus()
    for _ in range(count):
        await chat.page.keyboard.press("ArrowUp")
        await chat.page.evaluate(f"async () => {{ {FRAMES} }}")
