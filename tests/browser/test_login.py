"""The way in where the service asks for a key: on a real server, and on the peer that plays one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.async_api import BrowserContext, expect

from app.keys import add_key
from engine.scripted import ScriptedEngine
from tests.app.in_process_service import serving
from tests.browser.chat_page import ChatPage
from tests.browser.conftest import Complaints
from tests.browser.fake_server import FakeServer, PageConnection
from tests.browser.server_actions import begin, send_list


@pytest.fixture(autouse=True)
def expected(complaints: Complaints) -> None:
    """A browser complains of every answer that is no success."""
    complaints.expected = ["Failed to load resource"]


async def meet(chat: ChatPage, peer: FakeServer) -> None:
    """Opens the page of a peer, which gives no tickets: the page shows its key instead."""
    await chat.page.context.route("**/v1/tickets", lambda route: route.fulfill(status=404))
    await chat.page.goto(peer.url)


async def refuse(peer: FakeServer) -> PageConnection:
    """Turns the page's next connection away."""
    conn = await peer.stranger()
    conn.hello = await conn.receive("hello")
    await conn.send_frame("error", code="unauthenticated", message="There is no such key.", retryable=False)
    await conn.drop(4401, "unauthenticated")
    return conn


async def enter(chat: ChatPage, key: str, *, keep: bool = False) -> None:
    """Types a key into the prompt."""
    await chat.page.get_by_label("Key", exact=True).fill(key)
    await chat.page.get_by_label("Keep it in this browser").set_checked(keep)
    await chat.page.keyboard.press("Enter")


async def let_in(chat: ChatPage, peer: FakeServer, *, keep: bool = False) -> PageConnection:
    """Opens the page of a peer that asks for a key, and enters it."""
    await meet(chat, peer)
    await refuse(peer)
    await enter(chat, "right", keep=keep)
    conn = await peer.conn()
    await chat.connected()
    return conn


async def test_a_key_is_asked_for_until_it_is_the_right_one(chat: ChatPage, peer: FakeServer) -> None:
    """At first it is told where one comes from, and nothing of a failure; a wrong one is told at its field."""
    await meet(chat, peer)
    assert "token" not in (await refuse(peer)).hello
    prompt = chat.page.get_by_role("dialog", name="This chat needs a key")
    await expect(prompt).to_have_accessible_description(
        re.compile("Ask the operator of this service for a key.")
    )
    field = chat.page.get_by_label("Key", exact=True)
    await expect(field).not_to_have_attribute("aria-invalid", "true")
    await expect(chat.page.locator("#connection-text")).to_have_text("A key is needed")
    assert "no such key" not in await chat.page.locator("body").inner_text()
    await enter(chat, "wrong")
    assert (await refuse(peer)).hello["token"] == "wrong"
    await expect(field).to_have_attribute("aria-invalid", "true")
    await expect(field).to_have_accessible_description(re.compile("This key is not valid here."))
    details = chat.page.get_by_text("There is no such key. (unauthenticated)")
    await expect(details).to_be_hidden()
    await prompt.get_by_text("Details").click()
    await expect(details).to_be_visible()
    await field.fill("r")
    await expect(field).not_to_have_attribute("aria-invalid", "true")
    await expect(chat.page.get_by_text("is not valid here")).to_be_hidden()
    await enter(chat, "right")
    assert (await peer.conn()).hello["token"] == "right"
    await chat.connected()
    await expect(chat.page.get_by_role("dialog")).to_be_hidden()


@pytest.mark.parametrize("keep", [True, False])
async def test_a_key_is_kept_for_the_tab_or_for_good(
    chat: ChatPage, peer: FakeServer, context: BrowserContext, *, keep: bool
) -> None:
    await let_in(chat, peer, keep=keep)
    await chat.page.reload()
    assert (await peer.conn()).hello["token"] == "right"
    other = await context.new_page()
    await other.goto(peer.url)
    assert (await peer.conn()).hello.get("token") == ("right" if keep else None)


async def test_who_has_no_key_and_writes_all_the_same_is_asked_again(
    chat: ChatPage, peer: FakeServer
) -> None:
    await meet(chat, peer)
    await refuse(peer)
    await chat.page.get_by_role("button", name="Not now").click()
    await chat.type("Hello?")
    await refuse(peer)
    await enter(chat, "right")
    assert (await (await peer.conn()).receive("send"))["content"] == "Hello?"


async def store_secret(chat: ChatPage, conn: PageConnection, secret: str) -> None:
    """A conversation whose title, messages and draft hold a secret."""
    send = await begin(chat, conn, f"{secret} reply", text=f"{secret} question")
    await send_list(conn, f"{secret} title", conversation_id=send["conversation_id"])
    await conn.finish(send, turn="t", seq=3, reason="stop", chars=len(f"{secret} reply"))
    await chat.ended()
    await chat.box.fill(f"{secret} draft")


async def readable(chat: ChatPage) -> str:
    """Whatever can be read of the page: its text, fields, title, attributes, accessibility tree and storage."""
    everything = """
        [document.title, location.href, document.documentElement.outerHTML, JSON.stringify(sessionStorage),
         JSON.stringify(localStorage), ...[...document.querySelectorAll("input, textarea")].map(({ value }) => value)].join(" ")
    """
    return str(await chat.client(everything)) + await chat.page.locator("body").aria_snapshot()


async def test_who_leaves_leaves_nothing_to_read(chat: ChatPage, peer: FakeServer) -> None:
    conn = await let_in(chat, peer)
    await store_secret(chat, conn, "Sekrit")
    address = chat.page.url
    assert "Sekrit draft" in await readable(chat)
    await chat.page.get_by_role("button", name="Sign out").click()
    await conn.closed()
    assert "token" not in (await refuse(peer)).hello
    await expect(chat.page.get_by_role("dialog", name="This chat needs a key")).to_be_visible()
    assert "Sekrit" not in await readable(chat)
    await chat.page.get_by_role("button", name="Not now").click()
    assert "Sekrit" not in await readable(chat)
    assert chat.page.url != address
    await chat.page.go_back()
    await chat.page.wait_for_load_state()
    assert "Sekrit" not in await readable(chat)


async def test_who_leaves_in_one_tab_leaves_in_all_that_share_the_key(
    chat: ChatPage, peer: FakeServer, context: BrowserContext
) -> None:
    await let_in(chat, peer, keep=True)
    other = ChatPage(await context.new_page())
    await other.page.goto(peer.url)
    conn = await peer.conn()
    await store_secret(other, conn, "Sekrit")
    await chat.page.get_by_role("button", name="Sign out").click()
    await conn.closed()
    await refuse(peer)
    await refuse(peer)
    await expect(other.page.get_by_role("dialog", name="This chat needs a key")).to_be_visible()
    assert "Sekrit" not in await readable(other)


async def test_a_key_that_runs_out_is_renewed_on_the_connection_that_stands(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn = await let_in(chat, peer)
    await conn.send_frame("error", code="unauthenticated", message="The token has expired.", retryable=True)
    await expect(chat.page.get_by_text("Your key has expired or was revoked.")).to_be_visible()
    await enter(chat, "newer")
    fresh = await conn.receive("auth.refresh")
    assert fresh["token"] == "newer"
    await conn.refuse(fresh, "unauthenticated", retryable=True)
    await conn.drop(4401, "unauthenticated")
    await expect(chat.page.get_by_text("This key is not valid here.")).to_be_visible()


async def test_a_real_server_lets_the_page_in_by_a_ticket_for_its_key(chat: ChatPage, tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys", "ann")
    engine = ScriptedEngine(reply="Hello, Ada.")
    async with serving(tmp_path, engine, api_keys=str(tmp_path / "keys")) as server:
        hellos: list[str] = []
        chat.page.on(
            "websocket", lambda socket: socket.on("framesent", lambda sent: hellos.append(str(sent)))
        )
        await chat.page.goto(server.url)
        await enter(chat, "wrong")
        await expect(chat.page.get_by_text("This key is not valid here.")).to_be_visible()
        hellos.clear()
        await enter(chat, key)
        await chat.connected()
        assert json.loads(hellos[0])["token"].startswith("mst_")
        assert "Ada" in await chat.ask("My name is Ada.")
        await chat.page.close()
