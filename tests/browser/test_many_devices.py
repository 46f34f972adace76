"""What one person sees on several devices: the list, the history and the running reply are what the server says."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.conftest import Complaints
from tests.browser.fake_server import FakeServer, PageConnection
from tests.browser.server_actions import delta, send_history, visit

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

LOOK = "document.dispatchEvent(new Event('visibilitychange'))"
A_LONG_BEAT = 600_000


async def send_list(conn: PageConnection, *titles: str) -> None:
    """Answers the next request for the list."""
    requested = await conn.receive("conversations")
    entries: list[dict[str, Any]] = [
        {"conversation_id": title.lower(), "title": title, "updated_at": 1, "messages": 2} for title in titles
    ]
    await conn.send_frame("conversations", ref=requested["ref"], conversations=entries, has_more=False)


async def test_what_another_device_began_is_listed_when_the_page_is_looked_at(
    chat: ChatPage, peer: FakeServer
) -> None:
    conn = await visit(chat, peer)
    await send_list(conn, "Mine")
    await expect(chat.conversations).to_have_text(["Mine"])
    await chat.client(LOOK)
    await send_list(conn, "Theirs", "Mine")
    await expect(chat.conversations).to_have_text(["Theirs", "Mine"])


async def test_a_new_browser_lists_and_opens_what_another_one_began(chat: ChatPage, peer: FakeServer) -> None:
    """And follows the reply that runs there, whatever this browser keeps of its own."""
    conn = await visit(chat, peer)
    await send_list(conn, "Theirs")
    await chat.conversations.first.click()
    await send_history(conn, "Hello?", "one ", seq=3, status="running")
    await chat.until_shown("one")
    await delta(conn, {"conversation_id": "theirs"}, "two", off=4, seq=4)
    await chat.until_shown("one two")
    await expect(chat.stop).to_be_visible()


async def test_a_dead_connection_is_noticed_when_somebody_looks_at_the_page(
    chat: ChatPage, peer: FakeServer, complaints: Complaints
) -> None:
    """Long before the next heartbeat: nobody is told "Connected" who is not."""
    complaints.expected = ["WebSocket connection to"]
    await chat.page.clock.install()
    await visit(chat, peer, heartbeat_ms=A_LONG_BEAT)
    peer.closed = True
    await chat.client(LOOK)
    await chat.page.clock.fast_forward(5_000)
    await expect(chat.connection).not_to_have_attribute("data-state", "connected")
