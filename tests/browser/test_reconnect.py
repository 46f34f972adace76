"""What the page makes of lost connections, and of holes, cuts and repeats: the peer plays a server that has a bad day."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest
from playwright.async_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.conftest import Complaints
from tests.browser.fake_server import FakeServer, PageConnection
from tests.browser.server_actions import begin, begun, delta, gap, replied, resume, send_history, visit, wait


async def test_a_page_that_is_told_to_wait_asks_again_for_what_was_missed(
    chat: ChatPage, peer: FakeServer
) -> None:
    """Of a crowd that comes back with one key some are told so; it reads no history meanwhile, and sends nothing again."""
    conn, send = await begun(chat, peer, "one ", "two ")
    await conn.drop()
    conn = await peer.conn()
    assert conn.hello["client_id"] == "given-by-the-peer"
    for _ in range(2):
        await wait(conn, "resume", ms=20)
    await resume(conn, after=3, live="t")
    await delta(conn, send, "three ", off=8, seq=5, first_seq=4)
    await delta(conn, send, "four", off=14, seq=6)
    await conn.finish(send, turn="t", seq=7, reason="stop", chars=18)
    await chat.ended()
    await chat.shows([("You", "Hello?"), ("Reply", "one two three four")])
    assert conn.kept("send") == conn.kept("history") == []


async def test_a_page_that_is_told_to_wait_for_hours_reads_history(chat: ChatPage, peer: FakeServer) -> None:
    """A limit of another kind: what can be had now is asked for."""
    conn = await visit(chat, peer)
    await begin(chat, conn, "one ", "two ")
    await conn.drop()
    conn = await peer.conn()
    await wait(conn, "resume", ms=3_600_000)
    await wait(conn, "history", ms=20)
    await send_history(conn, "Hello?", "one two three", seq=9)
    await chat.until_shown("three")


async def test_where_what_was_missed_is_gone_history_is_read_and_the_message_sent_again(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn, send = await begun(chat, peer, "one ", "two ")
    await conn.drop()
    conn = await peer.conn()
    await gap(conn)
    await send_history(conn, "Hello?", seq=9)
    again = await conn.receive("send")
    assert (again["client_msg_id"], again["content"]) == (send["client_msg_id"], "Hello?")
    await conn.accept(again, turn="t", seq=1, duplicate=True)
    await delta(conn, again, "one two three", off=0, seq=10, first_seq=2)
    await conn.finish(again, turn="t", seq=11, reason="stop", chars=13)
    await chat.ended()
    await chat.shows([("You", "Hello?"), ("Reply", "one two three")])


async def test_a_message_whose_acceptance_was_lost_is_sent_again_under_its_id(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn = await visit(chat, peer)
    await chat.type("Hello?")
    send = await conn.receive("send")
    await conn.drop()
    conn = await peer.conn()
    again = await conn.receive("send")
    assert again == send
    assert (send["grace_s"], "on_disconnect" in send) == (
        20,
        False,
    )  # then the reply of a closed tab is stopped
    await conn.accept(again, turn="t", seq=1, duplicate=True)
    await conn.finish(again, turn="t", seq=2, reason="stop", chars=0)
    await chat.ended()
    await expect(chat.questions).to_have_text(["Hello?"])


async def test_messages_that_were_not_accepted_outlive_a_reload_in_their_order(
    chat: ChatPage, peer: FakeServer
) -> None:
    """Though the second interrupts the first."""
    conn = await visit(chat, peer)
    sent = []
    for text in ("First", "Second"):
        await chat.type(text)
        sent.append(await conn.receive("send"))
    peer.histories[sent[0]["conversation_id"]] = []
    await chat.page.reload()
    conn = await peer.conn()
    for send in sent:
        assert await conn.receive("send") == send


async def test_a_message_that_was_stopped_does_not_come_back_with_a_reload(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn = await visit(chat, peer)
    await chat.type("First")
    send = await conn.receive("send")
    await chat.stop.click()
    await conn.receive("cancel")
    peer.histories[send["conversation_id"]] = []
    await chat.page.reload()
    conn = await peer.conn()
    cancel = await conn.receive("cancel")
    assert cancel["client_msg_id"] == send["client_msg_id"]
    await conn.send_frame("cancelled", ref=cancel["ref"], turn_id=None, already=True)
    await chat.type("Second")
    assert (await conn.receive("send"))["content"] == "Second"


RELOADED = """
    async (kept) => {
      const { ChatClient } = await import("/static/client/chat-client.js");
      const visit = () => new ChatClient({ url: `ws://${location.host}/v1/ws`, session: sessionStorage });
      if (kept === null) visit().send({ content: "Before" });
      else sessionStorage.setItem("midstream.unanswered", kept);
      const client = visit();
      const after = client.send({ content: "After" });
      client.connect();
      return client.repliesOf("default").at(-1) === after;
    }
"""


async def test_a_message_sent_before_the_connection_loses_none_from_before_the_reload(
    chat: ChatPage, peer: FakeServer
) -> None:
    await chat.page.goto(f"{peer.url}/static/client/backoff.js")
    assert await chat.client(RELOADED)
    conn = await peer.conn()
    for content in ("Before", "After"):
        assert (await conn.receive("send"))["content"] == content


async def test_what_another_program_stored_in_the_place_of_messages_is_ignored(
    chat: ChatPage, peer: FakeServer
) -> None:
    for kept in (
        "{",
        "5",
        '{"messages": {}, "stops": "none"}',
        '{"messages": [null, {"frame": {}, "attachments": []}], "stops": [null, {}]}',
        '{"messages": [{"frame": {"type": "send", "client_msg_id": "m", "conversation_id": "c"}}]}',
    ):
        await chat.page.goto(f"{peer.url}/static/client/backoff.js")
        assert await chat.client(RELOADED, kept)
        conn = await peer.conn()
        assert (await conn.receive("send"))["content"] == "After"


async def test_an_end_that_was_missed_altogether_is_taken_from_history(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn, send = await begun(chat, peer, "one ")
    await conn.accept(send | {"client_msg_id": "theirs"}, turn="u", seq=9, content="From the phone")
    await send_history(conn, "Hello?", "one two", seq=8)
    await conn.finish(send, turn="u", seq=10, reason="stop", chars=0)
    await chat.ended()
    await expect(chat.stop).to_be_hidden()
    await expect(chat.replies.first.locator(".prose")).to_have_text("one two")


async def stopped_while_away(chat: ChatPage, peer: FakeServer) -> tuple[PageConnection, dict[str, Any]]:
    """A reply of which "seen" is shown when Stop is pressed without a connection; the next one, and what was sent."""
    conn, send = await begun(chat, peer, "seen")
    await conn.drop()
    await expect(chat.connection).to_have_attribute("data-state", "reconnecting")
    await chat.stop.click()
    conn = await peer.conn()
    await resume(conn, after=2, live="t")
    return conn, send


async def test_stop_without_a_connection_is_asked_for_on_the_next_one(
    chat: ChatPage, peer: FakeServer
) -> None:
    """The server lets the reply run for a grace time: its loss alone does not stop it."""
    conn, send = await stopped_while_away(chat, peer)
    await delta(conn, send, " and unseen", off=4, seq=3)
    cancel = await conn.receive("cancel")
    assert cancel["seen_off"] == 4
    await conn.send_frame("cancelled", ref=cancel["ref"], turn_id="t", already=False)
    await conn.finish(send, turn="t", seq=4, reason="cancelled", chars=4)
    await expect(chat.badge()).to_have_text("Stopped")
    await expect(chat.text).to_have_text("seen")


async def test_a_stop_that_the_next_connection_refuses_lets_the_reply_go_on(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn, send = await stopped_while_away(chat, peer)
    cancel = await conn.receive("cancel")
    await conn.refuse(cancel, "store_unavailable", retryable=True)
    await delta(conn, send, " whole", off=4, seq=3)
    await chat.until_shown("seen whole")
    await expect(chat.stop).to_be_visible()


async def test_stop_without_a_connection_takes_an_unsent_message_back(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn = await visit(chat, peer)
    await conn.drop(1013)
    await expect(chat.connection).to_have_attribute("data-state", "reconnecting")
    await chat.type("Never mind")
    await chat.stop.click()
    await expect(chat.page.get_by_text("Not sent.")).to_be_visible()
    conn = await peer.conn()
    await chat.page.get_by_role("button", name="Send again").click()
    assert (await conn.receive("send"))["content"] == "Never mind"


async def test_a_message_refused_for_draining_goes_to_the_next_server(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn = await visit(chat, peer)
    await conn.send_frame("goaway", drain_ms=1000, reason="restart")
    await chat.type("Hello?")
    send = await conn.receive("send")
    await conn.refuse(send, "draining", retryable=True)
    await conn.drop(1012)
    conn = await peer.conn()
    assert (await conn.receive("send"))["client_msg_id"] == send["client_msg_id"]


async def test_a_silent_server_is_left_for_a_new_connection(chat: ChatPage, peer: FakeServer) -> None:
    peer.mute = True
    await chat.page.goto(peer.url)
    await peer.conn(heartbeat_ms=100)
    await asyncio.wait_for(peer.conn(), timeout=60)
    await chat.connected()


async def test_a_refusal_for_good_is_told_and_not_repeated(chat: ChatPage, peer: FakeServer) -> None:
    conn = await visit(chat, peer)
    await conn.drop(4403, "this address may not connect")
    await expect(chat.connection).to_contain_text("Access denied")
    await chat.page.get_by_role("button", name="Try now").click()
    await peer.conn()
    await chat.connected()


async def test_a_server_that_is_gone_is_told_as_offline(
    chat: ChatPage, peer: FakeServer, complaints: Complaints
) -> None:
    complaints.expected = ["WebSocket connection to"]
    await chat.page.clock.install()
    conn = await visit(chat, peer)
    peer.closed = True
    await conn.drop(1012)
    while await chat.connection.get_attribute("data-state") != "offline":
        await chat.page.clock.fast_forward(20_000)
    peer.closed = False
    await chat.page.get_by_role("button", name="Try now").click()
    await peer.conn()
    await chat.connected()


async def test_a_new_epoch_starts_the_count_anew(chat: ChatPage, peer: FakeServer) -> None:
    conn, _ = await replied(chat, peer, "one")
    await conn.drop()
    conn = await peer.conn()
    await gap(conn)
    requested = await conn.receive("history")
    await conn.answer(requested, "history", epoch="other", seq=1, messages=[], has_more=False)
    await chat.type("Again")
    again = await conn.receive("send")
    await conn.accept(again, turn="u", seq=2)
    await conn.finish(again, turn="u", seq=3, reason="stop", chars=0)
    await chat.ended()
    await expect(chat.badge()).to_have_count(0)


async def test_a_reply_is_cut_where_the_server_cut_it_counted_in_code_points(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn, send = await begun(chat, peer, "a🚂b", "🚃 gone")
    await conn.finish(send, turn="t", seq=4, reason="cancelled", chars=4)
    await chat.ended()
    await expect(chat.text).to_have_text("a🚂b🚃")


@pytest.mark.parametrize("pieces", [("one 🚂 ", "two"), ()], ids=["in the middle", "before the first word"])
async def test_nothing_more_is_shown_after_stop(
    chat: ChatPage, peer: FakeServer, pieces: tuple[str, ...]
) -> None:
    seen, seq = "".join(pieces), 2 + len(pieces)
    conn, send = await begun(chat, peer, *pieces)
    await chat.stop.click()
    cancel = await conn.receive("cancel")
    assert (cancel["seen_off"], cancel["conversation_id"]) == (len(seen), send["conversation_id"])
    await delta(conn, send, " and late", off=len(seen), seq=seq)
    await conn.answer(cancel, "cancelled", turn_id="t", already=False)
    await expect(chat.replies.last).to_have_attribute("data-status", "stopping")
    await expect(chat.text).to_have_text(seen)
    await conn.finish(send, turn="t", seq=seq + 1, reason="cancelled", chars=len(seen))
    await expect(chat.badge()).to_have_text("Stopped")
    await expect(chat.text).to_have_text(seen)


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


async def test_messages_that_interrupt_keep_what_was_seen_until_all_of_them_are_refused(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn, send = await begun(chat, peer, "seen")
    interrupts = []
    for text in ("Wait!", "Or rather"):
        await chat.type(text)
        interrupts.append(await conn.receive("send"))
        assert (interrupts[-1]["content"], interrupts[-1]["seen_off"], interrupts[-1]["seen_turn_id"]) == (
            text,
            4,
            "t",
        )
    await delta(conn, send, " and more", off=4, seq=3)
    for message, shown in zip(interrupts, ("seen", "seen and more"), strict=True):
        await conn.refuse(message, "filtered")
        await expect(chat.page.get_by_text("The rules of this service").last).to_be_visible()
        await expect(chat.replies.first.locator(".prose")).to_have_text(shown)


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


async def test_a_hole_in_the_events_is_filled_from_history(chat: ChatPage, peer: FakeServer) -> None:
    conn, send = await begun(chat, peer, "one ")
    await delta(conn, send, "three", off=8, seq=4)
    await send_history(conn, "Hello?", "one two three", seq=4, status="running")
    await chat.until_shown("one two three")
    await delta(conn, send, " four", off=13, seq=5)
    await conn.finish(send, turn="t", seq=6, reason="stop", chars=18)
    await chat.ended()
    await expect(chat.text).to_have_text("one two three four")


OTHER = hashlib.sha256(b"one two").hexdigest()


@pytest.mark.parametrize("end", [{"seq": 4, "chars": 7}, {"seq": 3, "chars": 4, "text_sha256": OTHER}])
async def test_an_end_of_another_text_than_was_received_has_it_read_from_history(
    chat: ChatPage, peer: FakeServer, end: dict[str, Any]
) -> None:
    """Longer than what came, or with another hash."""
    conn, send = await begun(chat, peer, "one ")
    await conn.finish(send, turn="t", reason="stop", **end)
    await send_history(conn, "Hello?", "one two", seq=4)
    await expect(chat.text).to_have_text("one two")


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
