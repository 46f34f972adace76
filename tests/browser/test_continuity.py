"""What the client makes of losses, repeats and refusals: the peer plays a server that has a bad day."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest
from playwright.async_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.conftest import Complaints
from tests.browser.peer import Line, Peer

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def visit(chat: ChatPage, peer: Peer, **ready: Any) -> Line:
    """The page, opened, and its connection."""
    await chat.page.goto(peer.url)
    line = await peer.line(**ready)
    await chat.connected()
    return line


async def begin(chat: ChatPage, line: Line, *pieces: str, text: str = "Hello?") -> dict[str, Any]:
    """A message, accepted as turn `t` with number 1, and pieces of its reply from number 2 on."""
    await chat.type(text)
    send = await line.hear("send")
    await line.accept(send, turn="t", seq=1)
    off = 0
    for seq, piece in enumerate(pieces, start=2):
        await delta(line, send, piece, off=off, seq=seq)
        off += len(piece)
    if pieces:
        await chat.until_shown(pieces[-1].strip())
    return send


async def delta(
    line: Line, send: dict[str, Any], text: str, *, off: int, seq: int, first: int | None = None
) -> None:
    """One piece of the reply."""
    where = {"conversation_id": send["conversation_id"], "turn_id": "t"}
    await line.say("delta", text=text, off=off, seq=seq, first_seq=first or seq, tokens=1, **where)


async def tell_history(line: Line, *contents: str, seq: int, status: str = "complete") -> None:
    """Answers a request for history with an exchange of turn `t`."""
    asked = await line.hear("history")
    parts = zip(("user", "assistant"), contents, strict=False)
    messages = [
        {
            "message_id": f"t-{role}",
            "turn_id": "t",
            "role": role,
            "content": content,
            "status": status,
            "created_at": 1,
        }
        for role, content in parts
    ]
    page = {"epoch": "e", "seq": seq, "messages": messages, "has_more": False}
    await line.say("history", ref=asked["ref"], conversation_id=asked["conversation_id"], **page)


async def test_a_reply_is_cut_where_the_server_cut_it_counted_in_code_points(
    chat: ChatPage, peer: Peer
) -> None:
    line = await visit(chat, peer)
    send = await begin(chat, line, "a🚂b", "🚃 gone")
    await line.finish(send, turn="t", seq=4, reason="cancelled", chars=4)
    await chat.ended()
    assert await chat.last_reply() == "a🚂b🚃"


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


async def test_a_stop_that_came_too_late_shows_the_whole_reply(chat: ChatPage, peer: Peer) -> None:
    line = await visit(chat, peer)
    send = await begin(chat, line, "seen")
    await chat.stop.click()
    await line.hear("cancel")
    await delta(line, send, " whole", off=4, seq=3)
    await line.finish(send, turn="t", seq=4, reason="stop", chars=10)
    await chat.ended()
    assert await chat.last_reply() == "seen whole"


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
    assert await chat.last_reply() == "one two three four"


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
    await line.finish(send, turn="t", seq=9, reason="cancelled", chars=4)
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
    assert await chat.seen() == [("You", "Hello?"), ("Reply", "one two")]


async def test_merged_deltas_are_no_hole(chat: ChatPage, peer: Peer) -> None:
    line = await visit(chat, peer)
    send = await begin(chat, line, "one ")
    await delta(line, send, "two three", off=4, seq=5, first=3)
    await line.finish(send, turn="t", seq=6, reason="stop", chars=13)
    await chat.ended()
    assert await chat.last_reply() == "one two three"


async def test_a_message_whose_end_was_lost_is_sent_again_under_its_id(chat: ChatPage, peer: Peer) -> None:
    line = await visit(chat, peer)
    send = await begin(chat, line, "one ", "two ")
    await line.drop()
    line = await peer.line()
    assert line.hello["client_id"] == "given-by-the-peer"
    await tell_history(line, "Hello?", seq=3)
    again = await line.hear("send")
    assert (again["client_msg_id"], again["content"]) == (send["client_msg_id"], "Hello?")
    await line.accept(again, turn="t", seq=1, duplicate=True)
    await delta(line, again, "one two three", off=0, seq=4, first=2)
    await line.finish(again, turn="t", seq=5, reason="stop", chars=13)
    await chat.ended()
    assert await chat.seen() == [("You", "Hello?"), ("Reply", "one two three")]


async def test_a_message_written_without_a_connection_goes_out_with_the_next_one(
    chat: ChatPage, peer: Peer
) -> None:
    line = await visit(chat, peer)
    await line.drop()
    await chat.type("Later")
    line = await peer.line()
    send = await line.hear("send")
    assert send["content"] == "Later"
    await line.accept(send, turn="t", seq=1)
    await line.finish(send, turn="t", seq=2, reason="stop", chars=0)
    await chat.ended()
    assert await chat.seen() == [("You", "Later"), ("Reply", "")]


async def test_stop_without_a_connection_takes_an_unsent_message_back(chat: ChatPage, peer: Peer) -> None:
    line = await visit(chat, peer)
    await line.drop(1013)
    await expect(chat.connection).to_have_attribute("data-state", "reconnecting")
    await chat.type("Never mind")
    await chat.stop.click()
    await expect(chat.page.get_by_text("Not sent.")).to_be_visible()
    line = await peer.line()
    await chat.page.get_by_role("button", name="Send again").click()
    assert (await line.hear("send"))["content"] == "Never mind"


async def test_a_refused_message_says_why_and_can_be_sent_again(chat: ChatPage, peer: Peer) -> None:
    line = await visit(chat, peer)
    await chat.type("Hello?")
    send = await line.hear("send")
    error = {"code": "overloaded", "message": "There is no room.", "retryable": True}
    await line.say("error", ref=send["client_msg_id"], **error)
    await expect(chat.page.get_by_text("There is no room. (overloaded)")).to_be_visible()
    await chat.page.get_by_role("button", name="Send again").click()
    again = await line.hear("send")
    assert again["content"] == "Hello?"
    assert again["client_msg_id"] != send["client_msg_id"]
    await expect(chat.questions).to_have_count(1)


async def test_a_message_refused_for_draining_goes_to_the_next_server(chat: ChatPage, peer: Peer) -> None:
    line = await visit(chat, peer)
    await line.say("goaway", drain_ms=1000, reason="restart")
    await chat.type("Hello?")
    send = await line.hear("send")
    await line.say("error", ref=send["client_msg_id"], code="draining", message="Restarting.", retryable=True)
    await line.drop(1012)
    line = await peer.line()
    assert (await line.hear("send"))["client_msg_id"] == send["client_msg_id"]


async def test_a_message_above_the_frame_limit_is_refused_before_it_costs_the_connection(
    chat: ChatPage, peer: Peer
) -> None:
    await visit(chat, peer)
    await chat.type("é" * 40_000)
    await expect(chat.page.get_by_text("(content_too_long)")).to_be_visible()
    await expect(chat.connection).to_have_attribute("data-state", "connected")


async def test_what_another_device_asks_is_shown_as_it_streams(chat: ChatPage, peer: Peer) -> None:
    line = await visit(chat, peer)
    send = await begin(chat, line, "mine")
    await line.finish(send, turn="t", seq=3, reason="stop", chars=4)
    other = {"conversation_id": send["conversation_id"], "client_msg_id": "theirs"}
    await line.accept(other, turn="u", seq=4, content="From the phone")
    where = {"conversation_id": send["conversation_id"], "turn_id": "u"}
    await line.say("delta", text="yours", off=0, seq=5, first_seq=5, tokens=1, **where)
    await line.finish(other, turn="u", seq=6, reason="stop", chars=5)
    await expect(chat.replies).to_have_count(2)
    await chat.ended()
    assert (await chat.seen())[2:] == [("You", "From the phone"), ("Reply", "yours")]


async def test_a_rolled_back_exchange_leaves_the_page(chat: ChatPage, peer: Peer) -> None:
    line = await visit(chat, peer)
    send = await begin(chat, line, "never said")
    await line.finish(send, turn="t", seq=3, reason="cancelled", chars=0, removed=True)
    await expect(chat.page.locator(".message")).to_have_count(0)


async def test_a_failed_reply_says_what_failed(chat: ChatPage, peer: Peer) -> None:
    line = await visit(chat, peer)
    send = await begin(chat, line, "half")
    error = {"code": "internal", "message": "Something broke, see 4711."}
    await line.finish(send, turn="t", seq=3, reason="error", chars=4, error=error)
    await expect(chat.replies.last).to_contain_text("Something broke, see 4711. (internal)")


async def test_a_silent_server_is_left_for_a_new_connection(chat: ChatPage, peer: Peer) -> None:
    await chat.page.goto(peer.url)
    await peer.line(heartbeat_ms=100)
    await asyncio.wait_for(peer.line(), timeout=10)
    await chat.connected()


async def test_a_server_that_answers_pings_is_kept(chat: ChatPage, peer: Peer) -> None:
    line = await visit(chat, peer, heartbeat_ms=700)
    for _ in range(3):
        await line.hear("ping")
        await line.say("pong")
    await expect(chat.connection).to_have_attribute("data-state", "connected")


async def test_a_refusal_for_good_is_told_and_not_repeated(chat: ChatPage, peer: Peer) -> None:
    line = await visit(chat, peer)
    await line.drop(4403, "this address may not connect")
    await expect(chat.connection).to_contain_text("Refused: this address may not connect")
    await chat.page.get_by_role("button", name="Try now").click()
    await peer.line()
    await chat.connected()


async def test_a_server_that_is_gone_is_told_as_offline(
    chat: ChatPage, peer: Peer, complaints: Complaints
) -> None:
    complaints.expected = ["WebSocket connection to"]
    line = await visit(chat, peer)
    peer.closed = True
    await line.drop(1012)
    await expect(chat.connection).to_have_attribute("data-state", "offline", timeout=40_000)
    peer.closed = False
    await chat.page.get_by_role("button", name="Try now").click()
    await peer.line()
    await chat.connected()


async def test_a_new_epoch_starts_the_count_anew(chat: ChatPage, peer: Peer) -> None:
    line = await visit(chat, peer)
    send = await begin(chat, line, "one")
    await line.finish(send, turn="t", seq=3, reason="stop", chars=3)
    await line.drop()
    line = await peer.line()
    asked = await line.hear("history")
    page = {
        "conversation_id": asked["conversation_id"],
        "epoch": "other",
        "seq": 1,
        "messages": [],
        "has_more": False,
    }
    await line.say("history", ref=asked["ref"], **page)
    await chat.type("Again")
    again = await line.hear("send")
    await line.accept(again, turn="u", seq=2)
    await line.finish(again, turn="u", seq=3, reason="stop", chars=0)
    await chat.ended()
    await expect(chat.badge()).to_have_count(0)


async def test_the_wait_is_told_in_words(chat: ChatPage, peer: Peer) -> None:
    line = await visit(chat, peer)
    send = await begin(chat, line)
    where = {"conversation_id": send["conversation_id"], "turn_id": "t"}
    for facts, words in (
        ({"state": "queued", "queue_position": 3}, "Waiting, 2 before you"),
        ({"state": "queued", "queue_position": 1}, "Waiting, you are next"),
        ({"state": "prefill", "progress": 0.667}, "Reading, 66 %"),
        ({"state": "retrying"}, "Trying again"),
    ):
        await line.say("status", **facts, **where)
        await expect(chat.replies.last.locator(".waiting")).to_have_text(words)
    await delta(line, send, "Here.", off=0, seq=2)
    await expect(chat.replies.last.locator(".waiting")).to_be_hidden()
