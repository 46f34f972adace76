"""How a conversation can be read: by fingers, ears, from right to left, on paper, and in the system's own colours."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.async_api import BrowserContext, Locator, Page, expect

from tests.browser.chat_page import ChatPage
from tests.browser.fake_server import FakeServer
from tests.browser.server_actions import replied

PHONE = {"width": 360, "height": 740}
ARABIC = "مرحبا بك في هذه المحادثة الطويلة.\n\n- أول\n- ثان\n\n> اقتباس\n\n```python\nx = 1\n```"
MIN_TARGET = 44


async def box(part: Locator) -> dict[str, float]:
    """Where something is."""
    found = await part.bounding_box()
    assert found is not None
    return dict(found)


async def pseudo(part: Locator, which: str) -> dict[str, float]:
    """Where a line that is drawn beside an element is, from the element's own box."""
    script = """
        (part, which) => {
          const { left, right, top, bottom } = part.getBoundingClientRect();
          const style = getComputedStyle(part, which);
          const x = left + parseFloat(style.left);
          return { x, right, left, fromEnd: parseFloat(style.bottom), bottom, top };
        }
    """
    found: dict[str, float] = await part.evaluate(script, which)
    return found


async def test_a_reply_from_right_to_left_has_its_line_quotes_and_foot_at_the_right(
    chat: ChatPage, peer: FakeServer
) -> None:
    await replied(chat, peer, ARABIC)
    text = chat.replies.last.locator(".said")
    conn = await pseudo(text, "::before")
    assert conn["x"] > conn["right"]
    quote = await text.locator("blockquote").evaluate("(quote) => getComputedStyle(quote).borderRightWidth")
    assert quote == "3px"
    foot = await box(chat.replies.last.locator(".foot .copy"))
    assert foot["x"] > conn["left"] + (conn["right"] - conn["left"]) / 2
    assert await text.locator(".code").evaluate("(code) => getComputedStyle(code).direction") == "ltr"


async def test_each_block_has_the_direction_of_its_own_words(chat: ChatPage, peer: FakeServer) -> None:
    await replied(chat, peer, f"English first.\n\n{ARABIC}")
    conn = await pseudo(chat.replies.last.locator(".said"), "::before")
    assert conn["x"] < conn["left"]
    directions = await chat.replies.last.locator(".prose > *").evaluate_all(
        "(blocks) => blocks.map((block) => getComputedStyle(block).direction)"
    )
    assert directions == ["ltr", "rtl", "rtl", "rtl", "ltr"]


async def test_the_tick_of_a_stop_stands_at_the_end_of_the_text(chat: ChatPage, peer: FakeServer) -> None:
    """Whatever stands under it takes as many rows as it needs."""
    await chat.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    await replied(chat, peer, "Some words.", reason="cancelled")
    text = await box(chat.replies.last.locator(".said"))
    prose = await box(chat.replies.last.locator(".prose"))
    tick = await pseudo(chat.replies.last.locator(".said"), "::after")
    assert abs(text["y"] + text["height"] - prose["y"] - prose["height"]) < 2
    assert abs(tick["fromEnd"]) < 6


@pytest.mark.parametrize("reason", ["cancelled", "stop", "error"])
async def test_what_stands_under_a_reply_takes_two_rows_of_a_phone_at_most(
    chat: ChatPage, peer: FakeServer, reason: str
) -> None:
    await chat.page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    error = {"code": "engine_unavailable", "message": "The engine failed.", "retryable": True}
    await replied(chat, peer, "Some words.", reason=reason, **({"error": error} if reason == "error" else {}))
    middles = await chat.replies.last.locator(".foot > *").evaluate_all("""
        (parts) => parts.filter((part) => part.getBoundingClientRect().height > 0)
            .map((part) => { const { top, height } = part.getBoundingClientRect(); return Math.round(top + height / 2); })
    """)
    rows = {middle // 12 for middle in sorted(middles)}
    assert len(rows) <= 2, middles


async def test_an_answer_is_close_to_its_question_and_the_questions_tools_hide_nothing_of_it(
    chat: ChatPage, peer: FakeServer
) -> None:
    await replied(chat, peer, "An answer.")
    requested = await box(chat.questions.last)
    answered = await box(chat.replies.last.locator(".prose"))
    assert answered["y"] - requested["y"] - requested["height"] < 32
    await chat.questions.last.hover()
    edit = await box(chat.page.get_by_role("button", name="Edit this message"))
    assert edit["y"] + edit["height"] <= answered["y"] + 4


async def test_fingers_find_targets_of_44_pixels(
    chromium: Any, complaints: Any, chat: ChatPage, peer: FakeServer
) -> None:
    touched = await chromium.new_context(viewport=PHONE, has_touch=True, is_mobile=True)
    complaints.watch(touched)
    try:
        phone = ChatPage(await touched.new_page())
        await replied(phone, peer, "```python\nx = 1\n```", reason="cancelled")
        assert await too_small(phone.page) == []
        await phone.page.get_by_role("button", name="Show your conversations").click()
        await expect(phone.page.get_by_role("button", name="New conversation")).to_be_in_viewport(ratio=1)
        assert await too_small(phone.page) == []
    finally:
        await touched.close()


async def too_small(page: Page) -> list[str]:
    """The controls that can be seen and are narrower or lower than a finger."""
    found: list[str] = await page.evaluate(
        """
        (least) => [...document.querySelectorAll("button, summary, textarea, input, .conversations a")]
            .filter((part) => part.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && !part.closest("[inert]"))
            .map((part) => [part, part.getBoundingClientRect()])
            .filter(([, { width, height }]) => Math.min(width, height) < least - 0.5)
            .map(([part, { width, height }]) => `${part.ariaLabel ?? part.textContent.trim()}: ${width} x ${height}`)
        """,
        MIN_TARGET,
    )
    return found


async def test_a_reply_is_heard_without_the_marks_of_markdown(chat: ChatPage, peer: FakeServer) -> None:
    text = (
        "# Sorting\n\nUse **quick** `sort` or [this][1]:\n\n- one\n- $x^2$\n\n| a | b |\n|---|---|\n| 1 | *2* |\n\n"
        "```python\nx = 1\n```\n\n[1]: https://example.org/"
    )
    await replied(chat, peer, text)
    heard = "Reply: Sorting\nUse quick sort or this:\none\nx^2\na, b\n1, 2\nx = 1"
    await expect(chat.page.locator("#announcer")).to_have_text(re.compile(rf"^{re.escape(heard)}$"))


async def test_on_paper_is_the_whole_conversation_and_nothing_of_the_page(
    chat: ChatPage, peer: FakeServer
) -> None:
    await chat.page.emulate_media(color_scheme="dark")
    text = "See [the docs](https://example.org/docs).\n\n" + "A paragraph of some words.\n\n" * 60
    await replied(chat, peer, text)
    await chat.page.emulate_media(media="print", color_scheme="dark")
    for part in (chat.box, chat.page.locator(".sidebar"), chat.page.locator("#connection")):
        await expect(part).to_be_hidden()
    seen = await chat.page.evaluate("""
        () => ({
          ground: getComputedStyle(document.querySelector("#chat")).backgroundColor,
          ink: getComputedStyle(document.querySelector(".prose")).color,
          whole: document.documentElement.scrollHeight >= document.querySelector("#messages").scrollHeight,
          cut: getComputedStyle(document.querySelector("#scroller")).overflowY,
          address: getComputedStyle(document.querySelector(".prose a"), "::after").content,
        })
    """)
    assert seen["ground"] == "rgb(255, 255, 255)"
    assert seen["ink"] == "rgb(21, 33, 31)"
    assert (seen["whole"], seen["cut"]) == (True, "visible")
    assert "https://example.org/docs" in seen["address"] or "attr(href)" in seen["address"]


async def test_in_the_systems_own_colours_bubbles_and_lines_can_be_seen(
    chat: ChatPage, peer: FakeServer, context: BrowserContext
) -> None:
    await chat.page.emulate_media(forced_colors="active")
    await replied(chat, peer, "Some `code`.", reason="cancelled")
    seen = await chat.page.evaluate("""
        () => ({
          bubble: getComputedStyle(document.querySelector(".bubble")).borderTopWidth,
          code: getComputedStyle(document.querySelector(".prose code")).borderTopWidth,
          line: getComputedStyle(document.querySelector(".said"), "::before").backgroundColor,
          ground: getComputedStyle(document.querySelector("#chat")).backgroundColor,
        })
    """)
    assert (seen["bubble"], seen["code"]) == ("1px", "1px")
    assert seen["line"] != seen["ground"]
