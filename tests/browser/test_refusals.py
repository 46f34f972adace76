"""What is shown of what was refused or failed; and of a message that is too long, before it is sent."""

from __future__ import annotations

from playwright.async_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.fake_server import LIMITS, FakeServer
from tests.browser.server_actions import begun, replied, visit


async def test_a_refused_message_says_why_and_can_be_sent_again(chat: ChatPage, peer: FakeServer) -> None:
    conn = await visit(chat, peer)
    await chat.type("Hello?")
    send = await conn.receive("send")
    error = {"code": "overloaded", "message": "64 turns run.", "retryable": True, "retry_after_ms": 3000}
    await conn.send_frame("error", ref=send["client_msg_id"], **error)
    words = "The service is busy. Try again in 3 seconds."
    await expect(chat.page.get_by_text(words)).to_be_visible()
    await expect(chat.page.get_by_text("64 turns run. (overloaded)")).to_be_hidden()
    await chat.page.get_by_text("Details").click()
    await expect(chat.page.get_by_text("64 turns run. (overloaded)")).to_be_visible()
    await chat.page.get_by_role("button", name="Send again").click()
    again = await conn.receive("send")
    assert again["content"] == "Hello?"
    assert again["client_msg_id"] != send["client_msg_id"]
    await expect(chat.questions).to_have_count(1)


async def test_what_would_be_refused_again_is_changed_before_it_is_sent_again(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn = await visit(chat, peer)
    await chat.type("Hello?")
    for code in ("content_too_long", "context_overflow", "filtered", "bad_params"):
        send = await conn.receive("send")
        await conn.refuse(send, code)
        await chat.page.get_by_role("button", name="Change it").click()
        await expect(chat.page.get_by_role("button", name="Send again")).to_have_count(0)
        box = chat.page.get_by_label("Your message, edited")
        await expect(box).to_have_value(send["content"])
        await box.fill(f"Not {code}?")
        await box.press("Enter")
        await expect(chat.questions).to_have_text([f"Not {code}?"])


async def test_a_message_above_the_frame_limit_is_refused_before_it_costs_the_connection(
    chat: ChatPage, peer: FakeServer
) -> None:
    """The box does not know the limits before there is a connection."""
    await chat.page.goto(peer.url)
    stranger = await peer.stranger()
    await chat.type("您" * 30_000)
    await stranger.welcome()
    await expect(chat.page.get_by_text("This message is too long.")).to_be_visible()
    await expect(chat.connection).to_have_attribute("data-state", "connected")


async def test_a_rolled_back_exchange_leaves_the_page(chat: ChatPage, peer: FakeServer) -> None:
    conn, send = await begun(chat, peer, "never said")
    await conn.finish(send, turn="t", seq=3, reason="cancelled", chars=0, removed=True)
    await expect(chat.page.locator(".message")).to_have_count(0)


async def test_a_failed_reply_says_what_failed(chat: ChatPage, peer: FakeServer) -> None:
    conn, send = await begun(chat, peer, "half")
    error = {"code": "internal", "message": "Something broke, see 4711."}
    await conn.finish(send, turn="t", seq=3, reason="error", chars=4, error=error)
    await expect(chat.replies.last).to_contain_text("Something went wrong in the service.")
    await expect(chat.page.get_by_text("Something broke, see 4711. (internal)")).to_be_hidden()
    await chat.page.get_by_text("Details").press("Enter")
    await expect(chat.page.get_by_text("Something broke, see 4711. (internal)")).to_be_visible()


async def test_an_edit_that_is_refused_leaves_what_was_there_and_can_be_sent_again(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn, _ = await replied(chat, peer, "one")
    await chat.edit("Goodbye?")
    for _ in range(2):
        edit = await conn.receive("edit")
        assert (edit["message_id"], edit["content"]) == ("t-user", "Goodbye?")
        await conn.refuse(edit, "overloaded", retryable=True)
        await expect(chat.questions).to_have_text(["Hello?", "Goodbye?"])
        await chat.page.get_by_role("button", name="Send again").click()
    await conn.receive("edit")


async def test_a_reply_that_can_not_be_made_anew_is_told(chat: ChatPage, peer: FakeServer) -> None:
    conn, _ = await replied(chat, peer, "one")
    await chat.page.get_by_role("button", name="Regenerate this reply").click()
    requested = await conn.receive("regenerate")
    assert requested["message_id"] == "t-reply"
    await conn.refuse(requested, "overloaded", retryable=True)
    await expect(chat.page.get_by_role("alert").get_by_text("The service is busy")).to_be_visible()
    await expect(chat.replies.locator(".prose")).to_have_text(["one"])
    await expect(chat.questions).to_have_text(["Hello?"])


LIMIT = LIMITS["max_content_chars"]


async def test_a_message_that_is_too_long_stays_in_its_box(chat: ChatPage, peer: FakeServer) -> None:
    """It is counted as the service counts: an emoji is one, and blanks around a message are left out."""
    conn = await visit(chat, peer)
    refusal = chat.page.get_by_role("alert").get_by_text("This message is too long.")
    for text in ("x" * (LIMIT + 1), "您" * 25_000):  # the frame of the second would be too large
        await chat.type(text)
        await expect(refusal).to_be_visible()
        await expect(chat.box).to_have_value(text)
        await chat.page.get_by_role("button", name="Close this notice").click()
        await expect(refusal).to_be_hidden()
    await expect(chat.questions).to_have_count(0)
    await chat.type("  " + "x" * (LIMIT - 100) + "🚂" * 100 + "  \n")
    assert len((await conn.receive("send"))["content"]) == LIMIT
    await chat.type("您" * 20_000)
    assert len((await conn.receive("send"))["content"]) == 20_000
