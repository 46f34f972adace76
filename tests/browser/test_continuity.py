"""What the client makes of holes, cuts and repeats: the peer plays a server that has a bad day."""

from __future__ import annotations

import hashlib

import pytest
from playwright.async_api import expect

from tests.browser.acts import begin, delta, resume, tell_history, visit
from tests.browser.chat_page import ChatPage
from tests.browser.conftest import Complaints
from tests.browser.peer import Peer

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def test_a_reply_is_cut_where_the_server_cut_it_counted_in_code_points(
    chat: ChatPage, peer: Peer
) -> None:
    line = await visit(chat, peer)
    send = await begin(chat, line, "a🚂b", "🚃 gone")
    await line.finish(send, turn="t", seq=4, reason="cancelled", chars=4)
    await chat.ended()
    await expect(chat.text).to_have_text("a🚂b🚃")


async def test_stop_tells_how_much_was_on_the_screen(chat: ChatPage, peer: Peer) -> None:
    line = await visit(chat, peer)
    send = await begin(chat, line, "one 🚂 ", "two")
    await chat.stop.click()
    cancel = await line.hear("cancel")
    assert cancel["seen_off"] == len("one 🚂 two")
    assert cancel["conversation_id"] == send["conversation_id"]


async def test_nothing_more_is_shown_after_stop(chat: ChatPage, peer: Peer) -> None:
    line = await visit(chat, peer)
    send = await begin(chat, line, "seen")
    await chat.stop.click()
    cancel = await line.hear("cancel")
    await delta(line, send, " and late", off=4, seq=3)
    await line.say("cancelled", ref=cancel["ref"], turn_id="t", already=False)
    await expect(chat.replies.last).to_have_attribute("data-status", "stopping")
    assert await chat.last_reply() == "seen"
    await line.finish(send, turn="t", seq=4, reason="cancelled", chars=4)
    await expect(chat.badge()).to_have_text("Stopped")
    assert await chat.last_reply() == "seen"


async def test_a_message_that_interrupts_tells_how_much_was_on_the_screen(chat: ChatPage, peer: Peer) -> None:
    line = await visit(chat, peer)
    send = await begin(chat, line, "one 🚂 ", "two")
    await chat.type("Wait!")
    interrupts = await line.hear("send")
    seen = len("one 🚂 two")
    assert (interrupts["on_busy"], interrupts["seen_off"]) == ("interrupt", seen)
    assert interrupts["seen_turn_id"] == "t"
    await delta(line, send, " late", off=seen, seq=4)
    await line.finish(send, turn="t", seq=5, reason="cancelled", chars=seen)
    await expect(chat.replies.first.locator(".badge")).to_have_text("Stopped")
    assert await chat.replies.first.locator(".prose").inner_text() == "one 🚂 two"


async def test_a_refused_message_interrupts_nothing(chat: ChatPage, peer: Peer) -> None:
    line = await visit(chat, peer)
    send = await begin(chat, line, "seen")
    await chat.type("Wait!")
    interrupts = await line.hear("send")
    await delta(line, send, " and more", off=4, seq=3)
    refusal = {"code": "content_filtered", "message": "No.", "retryable": False}
    await line.say("error", ref=interrupts["client_msg_id"], **refusal)
    await expect(chat.replies.first.locator(".prose")).to_have_text("seen and more")


@pytest.mark.parametrize("unsent", [["Wait!"], ["Wait!", "Or rather"]], ids=len)
async def test_a_stop_takes_back_unsent_messages_and_keeps_what_was_seen_of_the_reply_before(
    unsent: list[str], chat: ChatPage, peer: Peer, complaints: Complaints
) -> None:
    complaints.expected = ["WebSocket connection to"]
    line = await visit(chat, peer)
    await begin(chat, line, "seen")
    peer.closed = True
    await line.drop()
    await expect(chat.connection).not_to_have_attribute("data-state", "connected")
    for text in unsent:
        await chat.type(text)
    await expect(chat.questions).to_have_count(1 + len(unsent))
    await expect(chat.replies.first.locator(".prose")).to_have_text("seen")
    await chat.stop.click()
    await expect(chat.replies.first.locator(".prose")).to_have_text("seen")
    peer.closed = False
    line = await peer.line()
    await resume(line, after=2, live="t")
    assert (await line.hear("cancel"))["seen_off"] == 4
    assert line.kept("send") == []


async def test_a_second_message_before_the_first_is_accepted_keeps_what_was_seen_of_the_reply(
    chat: ChatPage, peer: Peer
) -> None:
    line = await visit(chat, peer)
    await begin(chat, line, "seen")
    for text in ("Wait!", "Or rather"):
        await chat.type(text)
        send = await line.hear("send")
        assert (send["content"], send["seen_off"], send["seen_turn_id"]) == (text, 4, "t")
    await expect(chat.replies.first.locator(".prose")).to_have_text("seen")


async def test_a_stop_that_came_too_late_shows_the_whole_reply(chat: ChatPage, peer: Peer) -> None:
    line = await visit(chat, peer)
    send = await begin(chat, line, "seen")
    await chat.stop.click()
    await line.hear("cancel")
    await delta(line, send, " whole", off=4, seq=3)
    await line.finish(send, turn="t", seq=4, reason="stop", chars=10)
    await chat.ended()
    await expect(chat.text).to_have_text("seen whole")


async def test_a_stop_that_is_refused_lets_the_reply_go_on_and_may_be_pressed_again(
    chat: ChatPage, peer: Peer
) -> None:
    line = await visit(chat, peer)
    send = await begin(chat, line, "seen")
    await chat.stop.click()
    cancel = await line.hear("cancel")
    refusal = {"code": "store_unavailable", "message": "The store does not answer.", "retryable": True}
    await line.say("error", ref=cancel["ref"], **refusal)
    await delta(line, send, " whole", off=4, seq=3)
    await chat.until_shown("seen whole")
    await chat.stop.click()
    cancel = await line.hear("cancel")
    assert cancel["seen_off"] == len("seen whole")
    await line.finish(send, turn="t", seq=4, reason="cancelled", chars=10)
    await expect(chat.badge()).to_have_text("Stopped")


async def test_stop_before_the_first_word_shows_an_empty_stopped_reply(chat: ChatPage, peer: Peer) -> None:
    line = await visit(chat, peer)
    send = await begin(chat, line)
    await chat.stop.click()
    assert (await line.hear("cancel"))["seen_off"] == 0
    await line.finish(send, turn="t", seq=2, reason="cancelled", chars=0)
    await expect(chat.badge()).to_have_text("Stopped")


async def test_a_hole_in_the_events_is_filled_from_history(chat: ChatPage, peer: Peer) -> None:
    line = await visit(chat, peer)
    send = await begin(chat, line, "one ")
    await delta(line, send, "three", off=8, seq=4)
    await tell_history(line, "Hello?", "one two three", seq=4, status="running")
    await chat.until_shown("one two three")
    await delta(line, send, " four", off=13, seq=5)
    await line.finish(send, turn="t", seq=6, reason="stop", chars=18)
    await chat.ended()
    await expect(chat.text).to_have_text("one two three four")


async def test_an_end_that_keeps_more_than_was_received_is_filled_from_history(
    chat: ChatPage, peer: Peer
) -> None:
    line = await visit(chat, peer)
    send = await begin(chat, line, "one ")
    await line.finish(send, turn="t", seq=4, reason="stop", chars=7)
    await tell_history(line, "Hello?", "one two", seq=4)
    await expect(chat.replies.last.locator(".prose")).to_have_text("one two")


async def test_a_text_that_differs_from_what_is_kept_is_replaced_from_history(
    chat: ChatPage, peer: Peer
) -> None:
    line = await visit(chat, peer)
    send = await begin(chat, line, "wrong")
    other = hashlib.sha256(b"right").hexdigest()
    await line.finish(send, turn="t", seq=3, reason="stop", chars=5, text_sha256=other)
    await tell_history(line, "Hello?", "right", seq=3)
    await expect(chat.replies.last.locator(".prose")).to_have_text("right")


async def test_pieces_that_a_stop_withdrew_are_no_hole(chat: ChatPage, peer: Peer) -> None:
    line = await visit(chat, peer)
    send = await begin(chat, line, "one ")
    await chat.stop.click()
    await line.finish(send, turn="t", seq=9, first_seq=3, reason="cancelled", chars=4)
    await chat.ended()
    await chat.type("Next")
    assert (await line.hear("send"))["content"] == "Next"
    assert line.kept("history") == []


async def test_a_reply_that_ran_before_this_visit_is_shown_from_its_beginning(
    chat: ChatPage, peer: Peer
) -> None:
    await chat.page.goto(f"{peer.url}/#/shared")
    line = await peer.line()
    await tell_history(line, "Hello?", "one ", seq=3, status="running")
    await chat.until_shown("one")
    await expect(chat.stop).to_be_visible()
    send = {"conversation_id": "shared"}
    await delta(line, send, "two", off=4, seq=4)
    await line.finish(send, turn="t", seq=5, reason="stop", chars=7)
    await chat.ended()
    await chat.shows([("You", "Hello?"), ("Reply", "one two")])


async def test_merged_deltas_are_no_hole(chat: ChatPage, peer: Peer) -> None:
    line = await visit(chat, peer)
    send = await begin(chat, line, "one ")
    await delta(line, send, "two three", off=4, seq=5, first=3)
    await line.finish(send, turn="t", seq=6, reason="stop", chars=13)
    await chat.ended()
    await expect(chat.text).to_have_text("one two three")


async def test_the_wait_is_told_in_words(chat: ChatPage, peer: Peer) -> None:
    line = await visit(chat, peer)
    send = await begin(chat, line)
    where = {"conversation_id": send["conversation_id"], "turn_id": "t"}
    for facts, words in (
        ({"state": "queued", "queue_position": 3}, "Waiting, 2 before you"),
        ({"state": "queued", "queue_position": 1}, "Waiting, you are next"),
        ({"state": "prefill", "progress": 0.667}, "Reading, 66 %"),
        ({"state": "retrying"}, "Trying again"),
        ({"state": "fallback"}, "Trying elsewhere"),
    ):
        await line.say("status", **facts, **where)
        await expect(chat.replies.last.locator(".waiting")).to_have_text(words)
    await delta(line, send, "Here.", off=0, seq=2)
    await expect(chat.replies.last.locator(".waiting")).to_be_hidden()
