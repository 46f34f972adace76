"""What the client makes of holes, cuts and repeats: the peer plays a server that has a bad day."""

from __future__ import annotations

import hashlib

import pytest
from playwright.async_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.conftest import Complaints
from tests.browser.fake_server import FakeServer
from tests.browser.server_actions import begin, begun, delta, resume, send_history, visit

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def test_a_reply_is_cut_where_the_server_cut_it_counted_in_code_points(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn, send = await begun(chat, peer, "a🚂b", "🚃 gone")
    await conn.finish(send, turn="t", seq=4, reason="cancelled", chars=4)
    await chat.ended()
    await expect(chat.text).to_have_text("a🚂b🚃")


async def test_nothing_more_is_shown_after_stop(chat: ChatPage, peer: FakeServer) -> None:
    seen = "one 🚂 two"
    conn, send = await begun(chat, peer, "one 🚂 ", "two")
    await chat.stop.click()
    cancel = await conn.receive("cancel")
    assert (cancel["seen_off"], cancel["conversation_id"]) == (len(seen), send["conversation_id"])
    await delta(conn, send, " and late", off=len(seen), seq=4)
    await conn.send_frame("cancelled", ref=cancel["ref"], turn_id="t", already=False)
    await expect(chat.replies.last).to_have_attribute("data-status", "stopping")
    assert await chat.last_reply() == seen
    await conn.finish(send, turn="t", seq=5, reason="cancelled", chars=len(seen))
    await expect(chat.badge()).to_have_text("Stopped")
    assert await chat.last_reply() == seen


async def test_a_message_that_interrupts_tells_how_much_was_on_the_screen(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn, send = await begun(chat, peer, "one 🚂 ", "two")
    await chat.type("Wait!")
    interrupts = await conn.receive("send")
    seen = len("one 🚂 two")
    assert (interrupts["on_busy"], interrupts["seen_off"]) == ("interrupt", seen)
    assert interrupts["seen_turn_id"] == "t"
    await delta(conn, send, " late", off=seen, seq=4)
    await conn.finish(send, turn="t", seq=5, reason="cancelled", chars=seen)
    await expect(chat.replies.first.locator(".badge")).to_have_text("Stopped")
    assert await chat.replies.first.locator(".prose").inner_text() == "one 🚂 two"


async def test_a_refused_message_interrupts_nothing(chat: ChatPage, peer: FakeServer) -> None:
    conn, send = await begun(chat, peer, "seen")
    await chat.type("Wait!")
    interrupts = await conn.receive("send")
    await delta(conn, send, " and more", off=4, seq=3)
    await conn.refuse(interrupts, "content_filtered")
    await expect(chat.replies.first.locator(".prose")).to_have_text("seen and more")


@pytest.mark.parametrize("unsent", [["Wait!"], ["Wait!", "Or rather"]], ids=len)
async def test_a_stop_takes_back_unsent_messages_and_keeps_what_was_seen_of_the_reply_before(
    unsent: list[str], chat: ChatPage, peer: FakeServer, complaints: Complaints
) -> None:
    complaints.expected = ["WebSocket connection to"]
    conn = await visit(chat, peer)
    await begin(chat, conn, "seen")
    peer.closed = True
    await conn.drop()
    await expect(chat.connection).not_to_have_attribute("data-state", "connected")
    for text in unsent:
        await chat.type(text)
    await expect(chat.questions).to_have_count(1 + len(unsent))
    await expect(chat.replies.first.locator(".prose")).to_have_text("seen")
    await chat.stop.click()
    await expect(chat.replies.first.locator(".prose")).to_have_text("seen")
    peer.closed = False
    conn = await peer.conn()
    await resume(conn, after=2, live="t")
    assert (await conn.receive("cancel"))["seen_off"] == 4
    assert conn.kept("send") == []


async def test_a_second_message_before_the_first_is_accepted_keeps_what_was_seen_of_the_reply(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn = await visit(chat, peer)
    await begin(chat, conn, "seen")
    for text in ("Wait!", "Or rather"):
        await chat.type(text)
        send = await conn.receive("send")
        assert (send["content"], send["seen_off"], send["seen_turn_id"]) == (text, 4, "t")
    await expect(chat.replies.first.locator(".prose")).to_have_text("seen")


async def test_a_stop_that_came_too_late_shows_the_whole_reply(chat: ChatPage, peer: FakeServer) -> None:
    conn, send = await begun(chat, peer, "seen")
    await chat.stop.click()
    await conn.receive("cancel")
    await delta(conn, send, " whole", off=4, seq=3)
    await conn.finish(send, turn="t", seq=4, reason="stop", chars=10)
    await chat.ended()
    await expect(chat.text).to_have_text("seen whole")


async def test_a_stop_that_is_refused_lets_the_reply_go_on_and_may_be_pressed_again(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn, send = await begun(chat, peer, "seen")
    await chat.stop.click()
    cancel = await conn.receive("cancel")
    await conn.refuse(cancel, "store_unavailable", retryable=True)
    await delta(conn, send, " whole", off=4, seq=3)
    await chat.until_shown("seen whole")
    await chat.stop.click()
    cancel = await conn.receive("cancel")
    assert cancel["seen_off"] == len("seen whole")
    await conn.finish(send, turn="t", seq=4, reason="cancelled", chars=10)
    await expect(chat.badge()).to_have_text("Stopped")


async def test_stop_before_the_first_word_shows_an_empty_stopped_reply(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn, send = await begun(chat, peer)
    await chat.stop.click()
    assert (await conn.receive("cancel"))["seen_off"] == 0
    await conn.finish(send, turn="t", seq=2, reason="cancelled", chars=0)
    await expect(chat.badge()).to_have_text("Stopped")


async def test_a_hole_in_the_events_is_filled_from_history(chat: ChatPage, peer: FakeServer) -> None:
    conn, send = await begun(chat, peer, "one ")
    await delta(conn, send, "three", off=8, seq=4)
    await send_history(conn, "Hello?", "one two three", seq=4, status="running")
    await chat.until_shown("one two three")
    await delta(conn, send, " four", off=13, seq=5)
    await conn.finish(send, turn="t", seq=6, reason="stop", chars=18)
    await chat.ended()
    await expect(chat.text).to_have_text("one two three four")


async def test_an_end_that_keeps_more_than_was_received_is_filled_from_history(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn, send = await begun(chat, peer, "one ")
    await conn.finish(send, turn="t", seq=4, reason="stop", chars=7)
    await send_history(conn, "Hello?", "one two", seq=4)
    await expect(chat.replies.last.locator(".prose")).to_have_text("one two")


async def test_a_text_that_differs_from_what_is_kept_is_replaced_from_history(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn, send = await begun(chat, peer, "wrong")
    other = hashlib.sha256(b"right").hexdigest()
    await conn.finish(send, turn="t", seq=3, reason="stop", chars=5, text_sha256=other)
    await send_history(conn, "Hello?", "right", seq=3)
    await expect(chat.replies.last.locator(".prose")).to_have_text("right")


async def test_pieces_that_a_stop_withdrew_are_no_hole(chat: ChatPage, peer: FakeServer) -> None:
    conn, send = await begun(chat, peer, "one ")
    await chat.stop.click()
    await conn.finish(send, turn="t", seq=9, first_seq=3, reason="cancelled", chars=4)
    await chat.ended()
    await chat.type("Next")
    assert (await conn.receive("send"))["content"] == "Next"
    assert conn.kept("history") == []


async def test_the_wait_is_told_in_words(chat: ChatPage, peer: FakeServer) -> None:
    conn, send = await begun(chat, peer)
    where = {"conversation_id": send["conversation_id"], "turn_id": "t"}
    for facts, words in (
        ({"state": "queued", "queue_position": 3}, "2 ahead of you"),
        ({"state": "queued", "queue_position": 1}, "Waiting, you are next"),
        ({"state": "prefill", "progress": 0.667}, "Reading, 66 %"),
        ({"state": "retrying"}, "Trying again"),
        ({"state": "fallback"}, "Trying elsewhere"),
    ):
        await conn.send_frame("status", **facts, **where)
        await expect(chat.replies.last.locator(".waiting")).to_have_text(words)
    await delta(conn, send, "Here.", off=0, seq=2)
    await expect(chat.replies.last.locator(".waiting")).to_be_hidden()
