"""What the page tells of its connection: soon, only what is so, and no more than is of use."""

from __future__ import annotations

import pytest
from playwright.async_api import Locator, expect

from tests.browser.acts import begin, delta, resume, visit
from tests.browser.chat_page import ChatPage
from tests.browser.conftest import Complaints
from tests.browser.peer import Line, Peer
from tests.browser.test_told_calls import call, card

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

A_LONG_BEAT = 3_600_000
STATE = "data-state"
PULSE = "getComputedStyle(document.querySelector('.reply .said'), '::before').animationName"


async def hide_network(chat: ChatPage) -> None:
    """The browser says that there is no network."""
    await chat.client("Object.defineProperty(navigator, 'onLine', { configurable: true, get: () => false })")
    await chat.client("window.dispatchEvent(new Event('offline'))")


async def settled(chat: ChatPage, line: Line) -> None:
    """Waits until the page has taken all that was said: the last of it is seen."""
    await line.say("limits", name="requests", remaining=0, reset_s=1)
    await expect(chat.page.locator(".notice")).to_be_visible()


async def width(locator: Locator) -> float:
    """How wide something is on the screen, in px."""
    box = await locator.bounding_box()
    return 0 if box is None else box["width"]


async def test_a_connection_that_stands_is_a_dot_with_a_name(chat: ChatPage, peer: Peer) -> None:
    await visit(chat, peer)
    word = chat.page.locator("#connection-text")
    await expect(word).to_have_text("Connected")
    assert await width(word) <= 1
    await expect(chat.page.get_by_role("status").filter(has_text="Connected")).to_be_attached()
    await expect(chat.connection).to_have_attribute("title", "Connected")


async def test_that_it_is_back_is_said_for_a_moment(chat: ChatPage, peer: Peer) -> None:
    await chat.page.clock.install()
    line = await visit(chat, peer)
    await line.drop()
    await expect(chat.connection).to_have_attribute(STATE, "reconnecting")
    await chat.page.clock.fast_forward(1_000)
    await peer.line()
    await chat.connected()
    word = chat.page.locator("#connection-text")
    assert await width(word) > 10
    await chat.page.clock.fast_forward(5_000)
    await expect(chat.connection).not_to_have_attribute("data-back", "")
    assert await width(word) <= 1


async def test_a_network_that_is_said_to_be_gone_is_told_at_the_first_failure(
    chat: ChatPage, peer: Peer, complaints: Complaints
) -> None:
    complaints.expected = ["WebSocket connection to"]
    await chat.page.clock.install()
    await visit(chat, peer, heartbeat_ms=A_LONG_BEAT)
    peer.closed = True
    await hide_network(chat)
    await chat.page.clock.fast_forward(2_400)
    await expect(chat.connection).to_have_attribute(STATE, "quiet")
    await expect(chat.page.locator("#connection-text")).to_have_text("No answer")
    await chat.page.clock.fast_forward(2_400)
    await expect(chat.connection).to_have_attribute(STATE, "offline")
    await expect(chat.page.locator("#connection-text")).to_have_text("Offline")


async def test_a_network_that_is_another_one_is_doubted(chat: ChatPage, peer: Peer) -> None:
    await chat.page.add_init_script(
        "Object.defineProperty(navigator, 'connection', { value: new EventTarget() })"
    )
    line = await visit(chat, peer, heartbeat_ms=A_LONG_BEAT)
    await chat.client("navigator.connection.dispatchEvent(new Event('change'))")
    await line.hear("ping")


async def test_a_page_that_awaits_nothing_asks_for_no_sign_of_life(chat: ChatPage, peer: Peer) -> None:
    peer.listed = []
    await chat.page.clock.install()
    line = await visit(chat, peer, heartbeat_ms=A_LONG_BEAT)
    send = await begin(chat, line, "one")
    await line.finish(send, turn="t", seq=3, reason="stop", chars=3)
    await chat.ended()
    await settled(chat, line)
    for _ in range(6):
        await chat.page.clock.fast_forward(3_000)
    await chat.type("Again")
    await line.hear("send")
    assert line.kept("ping") == []


async def test_a_message_that_nobody_accepts_has_the_server_asked(chat: ChatPage, peer: Peer) -> None:
    """A server that answers is waited for as long as it takes; one that doesn't is left within five seconds."""
    await chat.page.clock.install()
    line = await visit(chat, peer, heartbeat_ms=A_LONG_BEAT)
    await chat.type("Hello?")
    await line.hear("send")
    for _ in range(3):
        await chat.page.clock.fast_forward(2_600)
        await line.hear("ping")
    await expect(chat.connection).to_have_attribute(STATE, "connected")
    peer.mute = True
    await chat.page.clock.fast_forward(2_600)
    await line.hear("ping")
    await chat.page.clock.fast_forward(2_100)
    await expect(chat.connection).to_have_attribute(STATE, "quiet")
    await line.say("pong")
    await expect(chat.connection).to_have_attribute(STATE, "connected")


async def test_a_reply_that_nothing_comes_of_does_not_look_as_if_it_were_written(
    chat: ChatPage, peer: Peer, complaints: Complaints
) -> None:
    complaints.expected = ["WebSocket connection to"]
    await chat.page.clock.install()
    line = await visit(chat, peer, heartbeat_ms=A_LONG_BEAT)
    send = await begin(chat, line, "one ")
    assert await chat.client(PULSE) == "flow"
    peer.mute = True
    await chat.page.clock.fast_forward(2_600)
    await line.hear("ping")
    await chat.page.clock.fast_forward(2_100)
    await expect(chat.connection).to_have_attribute(STATE, "quiet")
    assert await chat.client(PULSE) == "none"
    await delta(line, send, "two", off=4, seq=3)
    await chat.until_shown("one two")
    assert await chat.client(PULSE) == "flow"
    await chat.page.clock.fast_forward(2_600)
    await line.hear("ping")
    await chat.page.clock.fast_forward(2_100)
    await chat.page.clock.fast_forward(2_100)
    await expect(chat.connection).to_have_attribute(STATE, "reconnecting")
    assert await chat.client(PULSE) == "none"
    await chat.page.clock.fast_forward(1_000)
    line = await peer.line()
    await resume(line, after=3, live="t")
    await delta(line, send, " three", off=7, seq=4)
    await chat.until_shown("one two three")
    assert await chat.client(PULSE) == "flow"


async def test_a_call_that_waits_for_people_costs_no_questions(chat: ChatPage, peer: Peer) -> None:
    peer.listed = []
    await chat.page.clock.install()
    line = await visit(chat, peer, heartbeat_ms=A_LONG_BEAT)
    send = await begin(chat, line, "one")
    await call(line, send, seq=3, off=3)
    await line.finish(send, turn="t", seq=4, reason="tools", chars=3, open=["c"])
    await expect(card(chat)).to_be_visible()
    await settled(chat, line)
    for _ in range(4):
        await chat.page.clock.fast_forward(3_000)
    await chat.type("Again")
    await line.hear("send")
    assert line.kept("ping") == []
