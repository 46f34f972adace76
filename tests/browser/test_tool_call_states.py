"""What the page makes of calls and thoughts as they are told to it: states, bounds, holes, refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.async_api import Locator, expect

from tests.browser.chat_page import ChatPage
from tests.browser.fake_server import FakeServer, PageConnection
from tests.browser.server_actions import begun, delta, history_call, send_history, visit
from tests.browser.test_modules import run


def card(chat: ChatPage, name: str = "pay") -> Locator:
    """The card of a call."""
    return chat.page.get_by_role("group", name=f"Call of {name}", exact=True)


async def old(chat: ChatPage, peer: FakeServer, *calls: dict[str, Any], **more: Any) -> PageConnection:
    """The page, opened on a conversation with a reply that called."""
    await chat.page.goto(f"{peer.url}/#/old")
    conn = await peer.conn()
    await send_history(conn, "Pay.", "", seq=5, calls=calls, **more)
    return conn


async def call(conn: PageConnection, send: dict[str, Any], *, seq: int, **more: Any) -> None:
    """A call of turn `t`, told live."""
    fields = {key: value for key, value in history_call("waiting").items() if key != "state"}
    where = {"conversation_id": send["conversation_id"], "turn_id": "t", "seq": seq, "tokens": 1}
    await conn.send_frame("tool_call", **fields | where | more)


async def test_the_page_names_its_features(chat: ChatPage, peer: FakeServer) -> None:
    conn = await visit(chat, peer)
    assert conn.hello["features"] == ["reasoning", "tools", "continue", "titles", "interpret", "audio"]


SETTLED = [
    (history_call("done", content=""), "Done"),
    (history_call("done", error="No money."), "Failed"),
    (history_call("denied"), "Not allowed"),
    (history_call("cancelled"), "Stopped"),
    (history_call("expired"), "Nobody answered in time"),
    (history_call("lost"), "Interrupted: nobody knows whether it was carried out"),
]
OPEN = [
    (history_call("running"), "Running"),
    (history_call("waiting", needs="none"), "About to run"),
    (history_call("running", where="client"), "Allowed. Waits for another program"),
]


@pytest.mark.parametrize("states", [SETTLED, OPEN], ids=["settled", "open"])
async def test_each_state_has_its_words_after_a_reload(
    chat: ChatPage, peer: FakeServer, states: list[tuple[dict[str, Any], str]]
) -> None:
    await old(chat, peer, *[call | {"call_id": f"c{number}"} for number, (call, _) in enumerate(states)])
    await expect(chat.page.locator(".call-state")).to_have_text([words for _, words in states])
    await expect(chat.page.get_by_role("button", name="Allow").filter(visible=True)).to_have_count(0)
    await expect(chat.stop).to_be_visible(visible=states is OPEN)
    if states is SETTLED:
        await chat.page.get_by_text("What went wrong").filter(visible=True).click()
        await expect(chat.page.get_by_text("No money.")).to_be_visible()


async def test_a_decision_is_bound_to_what_was_shown_and_a_refused_one_may_be_made_again(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn = await old(chat, peer, history_call("waiting"))
    allow = card(chat).get_by_role("button", name="Allow")
    await allow.click()
    decision = await conn.receive("tool_decision")
    assert (decision["call_id"], decision["args_sha256"], decision["decision"]) == (
        "c",
        history_call("waiting")["args_sha256"],
        "allow",
    )
    assert decision["conversation_id"] == "old"
    await expect(allow).to_have_attribute("aria-disabled", "true")
    await allow.click(force=True)
    await conn.refuse(decision, "store_unavailable", retryable=True)
    await expect(chat.page.locator("#notices")).to_contain_text("can't keep messages")
    await expect(allow).to_have_attribute("aria-disabled", "false")
    await card(chat).get_by_role("button", name="Deny").click()
    assert (await conn.receive("tool_decision"))["decision"] == "deny"
    await expect(card(chat).locator(".call-state")).to_have_text("Needs your permission")


async def test_a_state_of_an_unknown_call_is_looked_up_in_the_history(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn, send = await begun(chat, peer)
    where = {"conversation_id": send["conversation_id"], "turn_id": "t"}
    await conn.send_frame("tool_state", call_id="c", state="running", seq=3, first_seq=2, **where)
    await send_history(conn, "Pay.", "", seq=3, calls=[history_call("running")], status="running")
    await expect(card(chat).locator(".call-state")).to_have_text("Running")


async def test_a_stop_in_the_middle_of_a_reply_cancels_the_calls_that_it_had_told(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn, send = await begun(chat, peer, "I pay.")
    await call(conn, send, seq=3, off=6)
    await expect(card(chat).locator(".call-state")).to_have_text("Needs your permission")
    await conn.finish(send, turn="t", seq=4, reason="cancelled", chars=6)
    await expect(card(chat).locator(".call-state")).to_have_text("Stopped")
    await expect(chat.stop).to_be_hidden()


async def test_a_removed_exchange_of_several_turns_is_read_anew(chat: ChatPage, peer: FakeServer) -> None:
    conn = await old(chat, peer, history_call("waiting"))
    where = {"conversation_id": "old", "epoch": "e"}
    await conn.send_frame(
        "tool_state", conversation_id="old", turn_id="t", call_id="c", state="cancelled", seq=6
    )
    ids = {"client_msg_id": "m", "turn_id": "u", "message_id": "t-reply", "parent_id": "t-user"}
    await conn.send_frame("accepted", seq=7, follows="t", **ids, **where)
    await conn.finish({"conversation_id": "old"}, turn="u", seq=8, reason="cancelled", chars=0, removed=True)
    requested = await conn.receive("history")
    await conn.answer(requested, "history", epoch="e", seq=8, messages=[], has_more=False)
    await expect(chat.page.locator(".message")).to_have_count(0)
    await expect(chat.stop).to_be_hidden()


async def test_arguments_of_any_length_are_shown_a_part_at_a_time(chat: ChatPage, peer: FakeServer) -> None:
    args = json.dumps({"note": "x" * 30_000})
    await old(chat, peer, history_call("waiting", args=args))
    arguments = card(chat).get_by_label("Arguments")
    assert len(await arguments.inner_text()) == 2_000
    await card(chat).get_by_role("button", name="Show more").click()
    assert len(await arguments.inner_text()) == 22_000
    await card(chat).get_by_role("button", name="Show more").click()
    assert (await arguments.inner_text()).count("x") == 30_000
    await expect(card(chat).get_by_role("button", name="Show more")).to_be_hidden()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(
    value=st.dictionaries(
        st.text(max_size=4),
        st.recursive(st.integers() | st.booleans() | st.none() | st.text(max_size=6), st.lists, max_leaves=6),
        max_size=4,
    )
)
async def test_laid_out_arguments_are_the_same_object_and_hide_nothing(
    chat: ChatPage, peer: FakeServer, value: dict[str, Any]
) -> None:
    text = json.dumps(value, ensure_ascii=False)
    laid_out = await run(chat, peer, "ui/elements/json-text.js", "return module.laidOut(argument);", text)
    assert json.loads(laid_out) == value
    assert not set(laid_out) & set("\u202e\u202d\u200b\u2066\ufeff")


async def test_what_stands_twice_is_shown_twice_and_numbers_keep_their_digits(
    chat: ChatPage, peer: FakeServer
) -> None:
    text = '{"to":"Ann","to":"Bob\u202e","sum":12345678901234567890}'
    body = "return module.laidOut(argument);"
    laid_out = await run(chat, peer, "ui/elements/json-text.js", body, text)
    assert laid_out == '{\n  "to": "Ann",\n  "to": "Bob\\u202e",\n  "sum": 12345678901234567890\n}'


async def test_a_long_thought_keeps_what_is_laid_out_of_it(chat: ChatPage, peer: FakeServer) -> None:
    conn, send = await begun(chat, peer)
    where = {"conversation_id": send["conversation_id"], "turn_id": "t"}
    text = "word " * 50 + "\n"
    off, seq = 0, 2
    for _ in range(40):
        await conn.send_frame("reasoning", text=text, off=off, seq=seq, first_seq=seq, tokens=1, **where)
        off, seq = off + len(text), seq + 1
        if seq == 10:
            await expect(chat.replies.last.locator(".thought-text p")).not_to_have_count(0)
            await chat.page.evaluate("window.first = document.querySelector('.thought-text p')")
    await delta(conn, send, "Done.", off=0, seq=seq)
    await chat.until_shown("Done.")
    blocks = chat.replies.last.locator(".thought-text p")
    assert await blocks.count() > 5
    assert await chat.page.evaluate("window.first.isConnected")
    joined = "\n".join(await blocks.all_text_contents())
    assert joined == text * 40


async def test_a_missing_piece_of_a_thought_is_looked_up(chat: ChatPage, peer: FakeServer) -> None:
    conn, send = await begun(chat, peer)
    where = {"conversation_id": send["conversation_id"], "turn_id": "t"}
    await conn.send_frame("reasoning", text="Hm", off=0, seq=2, first_seq=2, tokens=1, **where)
    await conn.send_frame("reasoning", text=" so.", off=9, seq=4, first_seq=4, tokens=1, **where)
    await send_history(conn, "Pay.", "", seq=4, status="running", reasoning="Hm, I see so.")
    await expect(chat.replies.last.locator(".thought-text")).to_have_text("Hm, I see so.")
    await expect(chat.replies.last.locator("summary")).to_have_text("Thinking")
