"""What was written and not sent yet: it stays with its conversation, outlives a reload, and goes when it is to."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import BrowserContext, expect

from tests.browser.chat_page import ChatPage
from tests.browser.conftest import Complaints
from tests.browser.fake_server import FakeServer
from tests.browser.server_actions import begin, send_list, visit
from tests.browser.test_modules import run

KEPT = "JSON.stringify([localStorage, sessionStorage])"


async def go_to(chat: ChatPage, conversation: str) -> None:
    """Follows the link to a conversation."""
    await chat.client(f"location.hash = '#/{conversation}'")


async def test_each_conversation_has_its_own_draft_which_outlives_a_reload(
    chat: ChatPage, peer: FakeServer
) -> None:
    await visit(chat, peer)
    await chat.box.fill("Begun")
    await chat.page.reload()
    await expect(chat.box).to_have_value("Begun")
    await expect(chat.page.get_by_role("button", name="Send", exact=True)).to_be_enabled()
    await go_to(chat, "one")
    await expect(chat.box).to_have_value("")
    await chat.box.fill("For one")
    await go_to(chat, "two")
    await expect(chat.box).to_have_value("")
    await chat.box.fill("For two")
    await go_to(chat, "one")
    await expect(chat.box).to_have_value("For one")
    await chat.page.go_back()
    await expect(chat.box).to_have_value("For two")
    await chat.page.get_by_role("button", name="New conversation").click()
    await expect(chat.box).to_have_value("")
    await chat.box.fill("Anew")
    await go_to(chat, "one")
    await chat.page.get_by_role("button", name="New conversation").click()
    await expect(chat.box).to_have_value("Anew")


async def test_a_draft_goes_once_it_is_sent_and_with_its_conversation(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn = await visit(chat, peer)
    await chat.box.fill("Secret plan")
    assert "Secret plan" in await chat.client(KEPT)
    await begin(chat, conn, "Yes.", text="Secret plan")
    assert "Secret plan" not in await chat.client(KEPT)
    await send_list(conn, "one")
    await go_to(chat, "one")
    await chat.box.fill("Secret plan")
    await conn.send_frame("deleted", conversation_id="one")
    await expect(chat.box).to_have_value("")
    assert "Secret plan" not in await chat.client(KEPT)
    await chat.page.reload()
    await expect(chat.box).to_have_value("")


async def test_a_draft_goes_with_a_key_that_goes_with_the_tab(
    chat: ChatPage, peer: FakeServer, context: BrowserContext, complaints: Complaints
) -> None:
    """Whoever opens the browser next has neither."""
    complaints.expected = ["Failed to load resource"]
    await context.route("**/v1/tickets", lambda route: route.fulfill(status=404))
    await chat.page.goto(peer.url)
    conn = await peer.stranger()
    await conn.receive("hello")
    await conn.drop(4401, "unauthenticated")
    await chat.page.get_by_label("Key", exact=True).fill("right")
    await chat.page.keyboard.press("Enter")
    await peer.conn()
    await chat.connected()
    await chat.box.fill("Secret plan")
    assert "Secret plan" not in await chat.client("JSON.stringify(localStorage)")
    await chat.page.reload()
    await expect(chat.box).to_have_value("Secret plan")
    other = ChatPage(await context.new_page())
    await other.page.goto(chat.page.url)
    await expect(other.box).to_have_value("")


DRAFTS = """
    localStorage.clear();
    const drafts = new module.Kept("midstream.drafts", { lasting: localStorage, session: sessionStorage, forTab: () => false });
    for (const [id, text] of argument) drafts.keep(id, text);
    return argument.map(([id]) => drafts.of(id)?.length ?? 0);
"""


@pytest.mark.parametrize(
    ("sizes", "kept"),
    [
        ([1] * 103, [0] * 3 + [1] * 100),
        ([150_000, 60_000, 100_000], [0, 60_000, 100_000]),
        ([10, 300_000], [10, 0]),
    ],
)
async def test_drafts_are_bounded_in_number_and_size_and_the_oldest_go(
    chat: ChatPage, peer: FakeServer, sizes: list[int], kept: list[int]
) -> None:
    written: list[Any] = [[f"c{number}", "x" * size] for number, size in enumerate(sizes)]
    assert await run(chat, peer, "ui/settings/kept.js", DRAFTS, written) == kept


async def test_settings_of_hundreds_of_conversations_are_kept(chat: ChatPage, peer: FakeServer) -> None:
    kept = "Array.from({ length: 500 }, (_, number) => [`c${number}`, { pace: number }])"
    await visit(chat, peer)
    await chat.client(f"localStorage.setItem('midstream.conversation-settings', JSON.stringify({kept}))")
    await chat.page.get_by_role("button", name="Settings", exact=True).click()
    await chat.page.get_by_label("Temperature").fill("1")
    await chat.page.get_by_role("button", name="Save").click()
    choices = await chat.client("JSON.parse(localStorage.getItem('midstream.conversation-settings'))")
    assert (len(choices), choices[0]) == (501, ["c0", {"pace": 0}])


async def test_what_is_attached_is_there_again_with_its_draft(chat: ChatPage, peer: FakeServer) -> None:
    conn = await visit(chat, peer)
    await go_to(chat, "one")
    notes = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"Secret plan"}
    await chat.page.locator("#attach-files").set_input_files([notes])  # type: ignore[list-item]
    chips = chat.page.locator("#attachments li")
    await expect(chips).to_have_text(["notes.txt"])
    await go_to(chat, "two")
    await expect(chips).to_have_count(0)
    await go_to(chat, "one")
    await expect(chips).to_have_text(["notes.txt"])
    await chat.page.reload()
    await expect(chips).to_have_text(["notes.txt"])
    conn = await peer.conn()
    await chat.connected()
    await chat.page.get_by_role("button", name="Send", exact=True).click()
    send = await conn.receive("send")
    assert "Secret plan" in send["content"]
    await conn.accept(send, turn="t", seq=1)
    await chat.page.wait_for_function(f"() => !({KEPT}).includes('Secret plan')")


HELD = """
    const read = Blob.prototype.arrayBuffer;
    window.reading = new Promise((begun) => {
      Blob.prototype.arrayBuffer = async function () {
        await new Promise((goOn) => begun({ goOn }));
        return read.call(this);
      };
    });
"""
NONE_CHOSEN = "() => document.querySelector('#attach-files').files.length === 0"


async def test_a_file_that_is_still_read_goes_with_its_conversation(chat: ChatPage, peer: FakeServer) -> None:
    conn = await visit(chat, peer)
    await send_list(conn, "one")
    await go_to(chat, "one")
    await chat.client(f"() => {{ {HELD} }}")
    notes = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"Secret plan"}
    await chat.page.locator("#attach-files").set_input_files([notes])  # type: ignore[list-item]
    await chat.client("async () => void (await window.reading)")
    await conn.send_frame("deleted", conversation_id="one")
    await chat.page.wait_for_function("() => location.hash !== '#/one'")
    await chat.client("async () => (await window.reading).goOn()")
    await chat.page.wait_for_function(NONE_CHOSEN)  # it was read
    assert "Secret plan" not in await chat.client(KEPT)
    await expect(chat.page.locator("#attachments li")).to_have_count(0)


async def test_a_storage_that_holds_something_else_or_is_full_hinders_nobody(
    chat: ChatPage, peer: FakeServer
) -> None:
    body = """
        localStorage.setItem("midstream.drafts", "[[");
        const full = { getItem: (key) => localStorage.getItem(key), setItem() { throw new DOMException("", "QuotaExceededError"); } };
        const drafts = new module.Kept("midstream.drafts", { lasting: full, session: null, forTab: () => false });
        drafts.keep("one", "text");
        return drafts.of("one");
    """
    assert await run(chat, peer, "ui/settings/kept.js", body, None) is None
