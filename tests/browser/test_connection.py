"""What the page tells of its connection: soon, only what is so, and no more than is of use."""

from __future__ import annotations

import pytest
from playwright.async_api import Locator, expect

from tests.browser.chat_page import ChatPage
from tests.browser.conftest import Complaints
from tests.browser.fake_server import FakeServer, PageConnection
from tests.browser.server_actions import begin, delta, resume, visit
from tests.browser.test_tool_call_states import call, card

A_LONG_BEAT = 3_600_000
STATE = "data-state"
PULSE = "getComputedStyle(document.querySelector('.reply .said'), '::before').animationName"


async def hide_network(chat: ChatPage) -> None:
    """The browser says that there is no network."""
    await chat.client("Object.defineProperty(navigator, 'onLine', { configurable: true, get: () => false })")
    await chat.client("window.dispatchEvent(new Event('offline'))")


async def until_rendered(chat: ChatPage, conn: PageConnection) -> None:
    """Waits until the page has taken all that was said: the last of it is seen."""
    await conn.send_frame("limits", name="requests", remaining=0, reset_s=1)
    await expect(chat.page.locator(".notice")).to_be_visible()


async def width(locator: Locator) -> float:
    """How wide something is on the screen, in px."""
    box = await locator.bounding_box()
    return 0 if box is None else box["width"]


async def test_a_connection_is_a_dot_with_a_name_and_that_it_is_back_is_said_for_a_moment(
    chat: ChatPage, peer: FakeServer
) -> None:
    await chat.page.clock.install()
    conn = await visit(chat, peer)
    word = chat.page.locator("#connection-text")
    await expect(word).to_have_text("Connected")
    assert await width(word) <= 1
    await expect(chat.page.get_by_role("status").filter(has_text="Connected")).to_be_attached()
    await expect(chat.connection).to_have_attribute("title", "Connected")
    await conn.drop()
    await expect(chat.connection).to_have_attribute(STATE, "reconnecting")
    await chat.page.clock.fast_forward(1_000)
    await peer.conn()
    await chat.connected()
    assert await width(word) > 10
    await chat.page.clock.fast_forward(5_000)
    await expect(chat.connection).not_to_have_attribute("data-back", "")
    assert await width(word) <= 1


async def test_a_network_that_is_said_to_be_gone_is_told_at_the_first_failure(
    chat: ChatPage, peer: FakeServer, complaints: Complaints
) -> None:
    complaints.expected = ["WebSocket connection to"]
    await chat.page.clock.install()
    await visit(chat, peer, heartbeat_ms=A_LONG_BEAT)
    peer.closed = True
    await hide_network(chat)
    await chat.page.clock.fast_forward(2_400)
    await expect(chat.connection).to_have_attribute(STATE, "quiet")
    await expect(chat.page.locator("#connection-text")).to_have_text("Server not responding")
    await chat.page.clock.fast_forward(2_400)
    await expect(chat.connection).to_have_attribute(STATE, "offline")
    await expect(chat.page.locator("#connection-text")).to_have_text("Offline")


async def test_a_network_that_is_another_one_is_doubted(chat: ChatPage, peer: FakeServer) -> None:
    await chat.page.add_init_script(
        "Object.defineProperty(navigator, 'connection', { value: new EventTarget() })"
    )
    conn = await visit(chat, peer, heartbeat_ms=A_LONG_BEAT)
    await chat.client("navigator.connection.dispatchEvent(new Event('change'))")
    await conn.receive("ping")


@pytest.mark.parametrize("calls", [False, True])
async def test_a_page_that_awaits_nothing_asks_for_no_sign_of_life(
    chat: ChatPage, peer: FakeServer, *, calls: bool
) -> None:
    """Not even one whose reply has a call that waits for people."""
    peer.listed = []
    await chat.page.clock.install()
    conn = await visit(chat, peer, heartbeat_ms=A_LONG_BEAT)
    send = await begin(chat, conn, "one")
    if calls:
        await call(conn, send, seq=3, off=3)
        await conn.finish(send, turn="t", seq=4, reason="tools", chars=3, open=["c"])
        await expect(card(chat)).to_be_visible()
    else:
        await conn.finish(send, turn="t", seq=3, reason="stop", chars=3)
        await chat.ended()
    await until_rendered(chat, conn)
    for _ in range(6):
        await chat.page.clock.fast_forward(3_000)
    await chat.type("Again")
    await conn.receive("send")
    assert conn.kept("ping") == []


async def test_a_message_that_nobody_accepts_has_the_server_asked(chat: ChatPage, peer: FakeServer) -> None:
    """A server that answers is waited for as long as it takes; one that doesn't is left within five seconds."""
    await chat.page.clock.install()
    conn = await visit(chat, peer, heartbeat_ms=A_LONG_BEAT)
    await chat.type("Hello?")
    await conn.receive("send")
    for _ in range(3):
        await chat.page.clock.fast_forward(2_600)
        await conn.receive("ping")
    await expect(chat.connection).to_have_attribute(STATE, "connected")
    peer.mute = True
    await chat.page.clock.fast_forward(2_600)
    await conn.receive("ping")
    await chat.page.clock.fast_forward(2_100)
    await expect(chat.connection).to_have_attribute(STATE, "quiet")
    await conn.send_frame("pong")
    await expect(chat.connection).to_have_attribute(STATE, "connected")


async def test_a_reply_that_nothing_comes_of_does_not_look_as_if_it_were_written(
    chat: ChatPage, peer: FakeServer, complaints: Complaints
) -> None:
    complaints.expected = ["WebSocket connection to"]
    await chat.page.clock.install()
    conn = await visit(chat, peer, heartbeat_ms=A_LONG_BEAT)
    send = await begin(chat, conn, "one ")
    assert await chat.client(PULSE) == "flow"
    peer.mute = True
    await chat.page.clock.fast_forward(2_600)
    await conn.receive("ping")
    await chat.page.clock.fast_forward(2_100)
    await expect(chat.connection).to_have_attribute(STATE, "quiet")
    assert await chat.client(PULSE) == "none"
    await delta(conn, send, "two", off=4, seq=3)
    await chat.until_shown("one two")
    assert await chat.client(PULSE) == "flow"
    await chat.page.clock.fast_forward(2_600)
    await conn.receive("ping")
    await chat.page.clock.fast_forward(2_100)
    await chat.page.clock.fast_forward(2_100)
    await expect(chat.connection).to_have_attribute(STATE, "reconnecting")
    assert await chat.client(PULSE) == "none"
    await chat.page.clock.fast_forward(1_000)
    conn = await peer.conn()
    await resume(conn, after=3, live="t")
    await delta(conn, send, " three", off=7, seq=4)
    await chat.until_shown("one two three")
    assert await chat.client(PULSE) == "flow"
