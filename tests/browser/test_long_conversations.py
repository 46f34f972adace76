"""Conversations of any length: what is in the document, what stays where it is, and what is never lost on the way."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from playwright.async_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.fake_server import FakeServer, PageConnection
from tests.browser.long_history import (
    CONVERSATION,
    FRAMES,
    SCROLLER,
    drag,
    loaded_all,
    moved,
    nodes,
    open_long,
    press_up,
    scroll_by,
    scroll_to,
    settled,
    tops,
    turn_wheel,
)
from tests.browser.server_actions import delta, send_list
from tests.browser.test_modules import run

MOST_NODES = 3_000
LATEST = "Latest"


async def send_message(chat: ChatPage, conn: PageConnection, text: str) -> dict[str, Any]:
    """A message behind the history, accepted as turn `t`."""
    await chat.type(text)
    send = await conn.receive("send")
    await conn.accept(send, turn="t", seq=9_001, parent_id=None)
    return send


async def test_only_what_is_near_the_view_is_in_the_document(chat: ChatPage, peer: FakeServer) -> None:
    """And after a leap to anywhere messages are there, and no empty space."""
    conn = await open_long(chat, peer, 700)
    await loaded_all(chat)
    for share in (0.9, 0.1, 0.6, 0.35, 0):
        await scroll_to(chat, share)
        seen = await tops(chat)
        assert min(seen.values()) <= 60
        assert len(seen) >= 2
        numbers = [int(number) for text in seen for number in re.findall(r"(?:Question|Reply) (\d+)", text)]
        assert abs(numbers[0] / 700 - share) < 0.12
        assert await nodes(chat) < MOST_NODES
    await scroll_to(chat, 1)
    assert await tops(chat)
    send = await send_message(chat, conn, "And now?")
    for seq in range(12):
        await delta(conn, send, "More of it.\n\n", off=13 * seq, seq=9_002 + seq)
    await chat.until_shown("More of it.")
    assert await nodes(chat) < MOST_NODES


AT_END = f"""() => {{
  const {{ scrollHeight, scrollTop, clientHeight }} = {SCROLLER};
  return scrollHeight - scrollTop - clientHeight < 1;
}}"""


@pytest.mark.parametrize(
    ("scroll", "amount", "least"),
    [(turn_wheel, 2, 38), (turn_wheel, 20, 380), (drag, 5, 100), (press_up, 5, 150)],
)
async def test_a_gentle_scroll_up_leaves_the_end_and_a_scroll_down_finds_it_again(
    chat: ChatPage,
    peer: FakeServer,
    scroll: Callable[[ChatPage, int], Awaitable[None]],
    amount: int,
    least: int,
) -> None:
    """While a reply is written."""
    conn = await open_long(chat, peer, 30)
    send = await send_message(chat, conn, "And now?")
    await delta(conn, send, "aaa " * 400, off=0, seq=9_002)
    await chat.until_shown("aaa")
    await settled(chat)
    start = await chat.page.evaluate(f"{SCROLLER}.scrollTop")
    await scroll(chat, amount)
    await chat.page.wait_for_function(f"() => {start} - {SCROLLER}.scrollTop >= {least}")
    await expect(chat.page.get_by_role("button", name=LATEST)).to_be_visible()
    await turn_wheel(chat, -100)
    await expect(chat.page.get_by_role("button", name=LATEST)).to_be_hidden()


async def test_a_view_that_grows_at_the_end_stays_there(chat: ChatPage, peer: FakeServer) -> None:
    conn = await open_long(chat, peer, 30)
    await chat.box.fill("\n".join("And now?" for _ in range(6)))
    await settled(chat)
    await chat.box.press("Enter")
    send = await conn.receive("send")
    await conn.accept(send, turn="t", seq=9_001, parent_id=None)
    await delta(conn, send, "aaa " * 400, off=0, seq=9_002)
    await chat.until_shown("aaa")
    await chat.page.set_viewport_size({"width": 1280, "height": 1_000})
    await settled(chat)
    await delta(conn, send, "bbb " * 400, off=1_600, seq=9_003)
    await chat.until_shown("bbb")
    await chat.page.wait_for_function(AT_END)
    await expect(chat.page.get_by_role("button", name=LATEST)).to_be_hidden()


async def test_all_of_it_is_there_while_it_is_printed(chat: ChatPage, peer: FakeServer) -> None:
    await open_long(chat, peer, 100)
    await loaded_all(chat)
    articles = chat.page.locator("#messages article")
    near = await articles.count()
    await chat.client("window.dispatchEvent(new Event('beforeprint'))")
    await expect(articles).to_have_count(200)
    await chat.client("window.dispatchEvent(new Event('afterprint'))")
    await settled(chat)
    assert near < 100
    assert await articles.count() < 150


async def test_older_messages_come_as_the_reader_scrolls_up_and_move_nothing(
    chat: ChatPage, peer: FakeServer
) -> None:
    """The title is the first message, or what the list says; never the first message that is here."""
    conn = await open_long(chat, peer, 200)
    title = chat.page.locator("#title")
    await expect(title).to_have_text("Conversation")
    await expect(chat.replies.last).to_have_attribute("aria-setsize", "-1")
    first = chat.questions.get_by_text("Question 175", exact=True)
    await scroll_by(chat, -100_000)
    await expect(first).to_be_in_viewport()
    before = await tops(chat)
    await expect(chat.page.get_by_text("Loading earlier messages")).to_be_hidden()
    await settled(chat)
    assert abs(moved(before, await tops(chat))) <= 1
    await loaded_all(chat)
    await scroll_to(chat, 0)
    await expect(chat.questions.first).to_have_text("Question 0")
    await expect(chat.questions.first.locator("xpath=..")).to_have_attribute("aria-posinset", "1")
    await expect(chat.questions.first.locator("xpath=..")).to_have_attribute("aria-setsize", "400")
    await expect(title).to_have_text("Question 0")
    await send_list(conn, "A long talk", conversation_id=CONVERSATION)
    await expect(title).to_have_text("A long talk")


async def test_what_is_read_moves_only_as_it_is_scrolled(chat: ChatPage, peer: FakeServer) -> None:
    """Of what comes into the document above it nobody knew the height before."""
    await open_long(chat, peer, 100)
    for _ in range(60):
        before = await tops(chat)
        await scroll_by(chat, -150)
        assert abs(moved(before, await tops(chat)) - 150) <= 1


@pytest.mark.parametrize("exchanges", [1, 60])
async def test_a_reply_that_grows_above_the_view_moves_nothing(
    chat: ChatPage, peer: FakeServer, exchanges: int
) -> None:
    """Neither where a space above it can take that up, nor where the view has to be moved."""
    conn = await open_long(chat, peer, exchanges)
    send = await send_message(chat, conn, "Tell me.")
    await delta(conn, send, "Once ", off=0, seq=9_002)
    await chat.until_shown("Once")
    theirs = {"conversation_id": CONVERSATION, "client_msg_id": "theirs"}
    long = "\n".join(f"Line {number}" for number in range(120))
    await conn.accept(theirs, turn="u", seq=9_003, content=long, parent_id="t-reply")
    await expect(chat.questions.last).to_contain_text("Line 119")
    await scroll_by(chat, -600)
    before = await tops(chat)
    await delta(conn, send, "upon a time.\n\n" * 30, off=5, seq=9_004)
    grown = chat.page.locator(".reply", has_text="upon a time.")
    await expect(grown).to_be_attached()
    await settled(chat)
    assert await grown.evaluate("(one) => one.offsetHeight") > 600
    assert abs(moved(before, await tops(chat))) <= 1


async def test_a_reply_outside_of_the_view_goes_on_and_stop_counts_all_of_it(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn = await open_long(chat, peer, 200)
    send = await send_message(chat, conn, "Tell me.")
    await delta(conn, send, "Once ", off=0, seq=9_002)
    await chat.until_shown("Once")
    await scroll_to(chat, 0.3)
    await expect(chat.page.get_by_text("Once")).to_have_count(0)
    await delta(conn, send, "upon a time.", off=5, seq=9_003)
    await conn.send_frame("limits", name="requests", remaining=0, reset_s=1)  # told behind it, and seen
    await expect(chat.page.locator(".notice")).to_be_visible()
    await chat.page.evaluate(f"async () => {{ {FRAMES} }}")
    await chat.stop.click()
    assert (await conn.receive("cancel"))["seen_off"] == len("Once upon a time.")
    await chat.page.get_by_role("button", name=LATEST).click()
    await expect(chat.replies.last.locator(".prose")).to_have_text("Once upon a time.")


async def test_what_a_reader_does_with_a_message_outlives_a_scroll(chat: ChatPage, peer: FakeServer) -> None:
    """The focus, a selection, a box that a message is edited in, and a part that was opened."""
    await open_long(chat, peer, 200)
    peer.histories[CONVERSATION][-1]["reasoning"] = "Let me think."
    await chat.page.reload()
    await peer.conn()
    await chat.replies.last.get_by_role("button", name="Regenerate this reply").focus()
    await scroll_to(chat, 0.2)
    await expect(chat.replies.last).to_contain_text("Reply 199")
    assert await chat.page.evaluate("document.activeElement.classList.contains('again')")
    await chat.page.keyboard.press("Shift+Tab")
    await expect(chat.replies.last.get_by_role("button", name="Copy the reply")).to_be_focused()
    await scroll_to(chat, 1)
    thought = chat.page.locator(".thought:not([hidden])")
    await thought.locator("summary").click()
    await chat.questions.last.hover()
    await chat.page.locator(".user").last.get_by_role("button", name="Edit this message").click()
    await chat.page.get_by_label("Your message, edited").fill("Question 199, said otherwise")
    await chat.page.locator("#message").focus()
    await scroll_to(chat, 0.2)
    await expect(thought).to_have_count(0)
    await expect(chat.page.get_by_label("Your message, edited")).to_have_count(0)
    await scroll_to(chat, 1)
    await expect(chat.page.get_by_label("Your message, edited")).to_have_value("Question 199, said otherwise")
    await expect(chat.page.get_by_text("Let me think.")).to_be_visible()
    select = """() => {
      const [from, to] = [...document.querySelectorAll(".bubble")].slice(-3, -1);
      document.getSelection().setBaseAndExtent(from.firstChild, 0, to.firstChild, to.firstChild.length);
    }"""
    await chat.page.evaluate(select)
    selected = await chat.page.evaluate("document.getSelection().toString()")
    assert "Question 197" in selected
    assert "Reply 197" in selected
    await scroll_by(chat, -6_000)
    await settled(chat)
    assert await chat.page.evaluate("document.getSelection().toString()") == selected


async def test_the_first_and_the_last_key_go_to_the_first_and_the_last_message(
    chat: ChatPage, peer: FakeServer
) -> None:
    await open_long(chat, peer, 150)
    await loaded_all(chat)
    await chat.page.locator("#scroller").focus()
    await chat.page.keyboard.press("End")
    await expect(chat.questions.get_by_text("Question 149", exact=True)).to_be_in_viewport()
    await chat.page.keyboard.press("Home")
    await expect(chat.questions.get_by_text("Question 0", exact=True)).to_be_in_viewport()
    await settled(chat)  # what comes into the document holds up the next key's scroll
    assert await chat.page.evaluate(f"{SCROLLER}.scrollTop") == 0
    await chat.page.keyboard.press("PageDown")
    await expect(chat.questions.get_by_text("Question 0", exact=True)).not_to_be_in_viewport()
    await chat.page.keyboard.press("End")
    await expect(chat.replies.last).to_contain_text("Reply 149")


async def test_a_page_of_older_messages_that_is_refused_is_asked_for_by_hand(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn = await open_long(chat, peer, 100)
    await conn.receive("history")
    kept = peer.histories.pop(CONVERSATION)
    await scroll_by(chat, -100_000)
    requested = await conn.receive("history")
    await conn.refuse(requested, "store_unavailable", retryable=True)
    button = chat.page.get_by_role("button", name="Show earlier messages")
    await expect(button).to_be_visible()
    await scroll_by(chat, 40)
    await scroll_by(chat, -40)
    assert conn.kept("history") == []
    peer.histories[CONVERSATION] = kept
    await button.click()
    await expect(chat.page.locator("#older")).to_be_hidden()
    await scroll_to(chat, 0)
    await expect(chat.questions.first).to_have_text("Question 0")


GROW = """
    const { Reply, ReplyState } = await import("/static/client/reply.js");
    const message = (number, role) => ({ message_id: `${role}${number}`, role, turn_id: `t${number}`, content: "", status: "complete" });
    const messages = Array.from({ length: argument }, (_, number) => [message(number, "user"), message(number, "assistant")]).flat();
    const reply = Object.assign(new Reply("c"), { clientMsgId: "x", content: "new", state: ReplyState.STREAMING });
    const transcriptOf = () => {
      const transcript = new module.Transcript("c");
      transcript.refresh({ messages, has_more: false, epoch: "e", seq: 1 });
      transcript.take(reply);
      return transcript;
    };
    const transcript = transcriptOf();
    const before = transcript.items();
    const items = [...before];
    reply.append({ off: 0, text: "grown", tokens: 1 }, 0);
    const after = transcript.items();
    const remade = after.filter((item, index) => item !== items[index]).length;
    const grown = JSON.stringify(after) === JSON.stringify(transcriptOf().items());
    reply.finish({ chars: 5, reason: "stop", message_id: "r" });
    return { same: before === after, remade, grown, moved: transcript.items() !== after };
"""


async def test_while_a_reply_grows_its_item_alone_is_made_again(chat: ChatPage, peer: FakeServer) -> None:
    found = await run(chat, peer, "ui/transcript/transcript.js", GROW, 500)
    assert found == {"same": True, "remade": 1, "grown": True, "moved": True}


async def test_a_found_message_is_shown_in_the_middle_of_the_view_however_far_back_it_is(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn = await open_long(chat, peer, 300)
    await chat.page.get_by_label("Search your conversations").fill("twenty")
    hit = {"conversation_id": CONVERSATION, "title": "A long talk", "messages": 600, "updated_at": 1}
    place = {"message_id": "u20", "role": "user", "snippet": "Question 20", "off": 0, "len": 8}
    await conn.answer(await conn.receive("search"), "found", hits=[hit | place])
    await chat.page.locator("#hits a").click()
    found = chat.page.locator("article.found")
    await expect(found).to_be_focused()
    await expect(found).to_contain_text("Question 20")
    middles = """(found) => [found, document.querySelector("#scroller")].map((part) => {
      const { top, height } = part.getBoundingClientRect();
      return top + height / 2;
    })"""
    middle, of_view = await found.evaluate(middles)
    assert abs(middle - of_view) <= 60  # a button above it leaves meanwhile
    assert await nodes(chat) < MOST_NODES
