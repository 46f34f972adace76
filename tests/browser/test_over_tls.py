"""The whole page over TLS, behind a real Caddy with the shipped site: Stop, a change of network, a page in the background.

Afterwards the page shows what the history has, and the count in it misses no number and has none twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.browser.chat_page import ChatPage
from tests.browser.conftest import DESKTOP, Complaints
from tests.browser.test_reload import COUNT, count_on, counting, last_number
from tests.chaos import gateway
from tests.chaos.proxy import Proxy, proxy
from tests.clients.turn_log import ends_of_turns, stopped
from tests.deploy.caddy_site import CaddySite
from tests.deploy.conftest import caddy_site, run_reverse_proxy
from tests.deploy.reverse_proxy import ReverseProxy
from tests.server_process import ServerProcess, serving

__all__ = ["caddy_site", "run_reverse_proxy"]  # fixtures

PACE = 20
"""Characters per second: the count takes a minute and a half."""
IMPATIENT = gateway.Script(reply=", ".join(map(str, range(1, 501))), pace_s=0.05, hurry=10)
"""Its server closes a connection that has answered no ping for 2 s."""
SHORT_GRACE = """
    const send = WebSocket.prototype.send;
    WebSocket.prototype.send = function (data) {
      return send.call(this, typeof data === "string" ? data.replace('"grace_s":20', '"grace_s":0.5') : data);
    };
"""
LOST = ["WebSocket connection to", "Failed to load resource"]


class Visit(NamedTuple):
    """A visitor of the page, and the network between them and Caddy."""

    chat: ChatPage
    network: Proxy
    url: str


Visitor = Callable[[ServerProcess], Awaitable[Visit]]


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(
    chromium: Browser,
    complaints: Complaints,
    caddy_site: Callable[..., CaddySite],
    run_reverse_proxy: Callable[[ReverseProxy], None],
) -> AsyncIterator[Visitor]:
    """Puts Caddy before a server, and opens a tab."""
    async with AsyncExitStack() as stack:

        async def visitor(server: ServerProcess) -> Visit:
            run_reverse_proxy(site := caddy_site(server.port))
            network = await stack.enter_async_context(proxy(site.https_port))
            context = await chromium.new_context(viewport=DESKTOP, ignore_https_errors=True)
            stack.push_async_callback(context.close)
            complaints.watch(context)
            return Visit(ChatPage(await context.new_page()), network, f"https://localhost:{network.port}/")

        yield visitor
    assert complaints.unexpected() == []


@asynccontextmanager
async def reopened(chat: ChatPage) -> AsyncIterator[ChatPage]:
    """The same visitor and conversation over new connections; in its own tab Chromium would use one that leads nowhere."""
    browser = chat.page.context.browser
    assert browser is not None
    state = await chat.page.context.storage_state()
    context = await browser.new_context(viewport=DESKTOP, ignore_https_errors=True, storage_state=state)
    other = ChatPage(await context.new_page())
    await other.open(chat.page.url)
    yield other
    await context.close()


async def until_same_messages(chat: ChatPage) -> None:
    """Waits until the page, opened anew, shows the same messages."""
    async with reopened(chat) as other:
        await other.shows(await chat.seen())


async def roam(chat: ChatPage, network: Proxy) -> None:
    """Gives the browser another network: its connections lead nowhere, and neither side learns of it."""
    network.abandon()
    await chat.page.context.set_offline(True)
    await chat.page.context.set_offline(False)
    await expect(chat.connection).not_to_have_attribute("data-state", "connected")


async def leave_and_return(chat: ChatPage, network: Proxy) -> None:
    """Takes the network away, and gives it back once the page has noticed."""
    network.refuse()
    network.abandon()
    await chat.page.context.set_offline(True)
    await expect(chat.connection).to_have_attribute("data-state", "offline")
    network.refuse(refuse=False)
    await chat.page.context.set_offline(False)


@pytest.mark.parametrize("change", [roam, leave_and_return])
async def test_a_reply_goes_on_over_a_change_of_network(
    change: Callable[[ChatPage, Proxy], Awaitable[None]],
    visitor: Visitor,
    server: ServerProcess,
    complaints: Complaints,
) -> None:
    complaints.expected = LOST
    chat, network, url = await visitor(server)
    sockets: list[str] = []
    chat.page.on("websocket", lambda socket: sockets.append(socket.url))
    await counting(chat, url, pace=PACE)
    await change(chat, network)
    await chat.connected()
    assert set(sockets) == {f"wss://localhost:{network.port}/v1/ws"}
    await count_on(chat)
    await until_same_messages(chat)


@asynccontextmanager
async def in_background(page: Page) -> AsyncIterator[None]:
    """Inside the block the page is hidden and frozen: no script of it runs, as on a phone that shows something else."""
    session = await page.context.new_cdp_session(page)
    await session.send("Page.setWebLifecycleState", {"state": "frozen"})
    yield
    await session.send("Page.setWebLifecycleState", {"state": "active"})
    await page.bring_to_front()


@pytest.mark.parametrize("lose", [Proxy.flow, Proxy.abandon])
async def test_a_reply_that_ended_in_the_background_is_shown(
    lose: Callable[[Proxy], None], visitor: Visitor, server: ServerProcess, complaints: Complaints
) -> None:
    complaints.expected = LOST
    chat, network, url = await visitor(server)
    await chat.open(url)
    await chat.read_at(PACE)
    await chat.type("Count from 1 to 40.")
    await chat.until_shown("5,")
    async with in_background(chat.page):
        lose(network)
        async with reopened(chat) as other:
            await other.until_shown("39, 40")
            await other.ended()
    await chat.ended()
    await chat.until_shown("39, 40")
    assert await last_number(chat) == 39
    await until_same_messages(chat)


async def test_a_reply_that_the_server_cut_meanwhile_is_shown_as_far_as_it_is_kept(
    visitor: Visitor, tmp_path: Path, complaints: Complaints
) -> None:
    complaints.expected = LOST
    with serving(tmp_path, command=gateway.command(IMPATIENT)) as server, ends_of_turns(server) as ends:
        chat, network, url = await visitor(server)
        await chat.page.add_init_script(SHORT_GRACE)
        await chat.open(url)
        await chat.type(COUNT)
        await chat.until_shown("5,")
        async with in_background(chat.page):
            before = await last_number(chat)
            network.abandon()
            await asyncio.to_thread(stopped, ends)
        await expect(chat.badge()).to_have_text("Stopped")
        assert await last_number(chat) > before
        await until_same_messages(chat)
        await chat.page.close()  # before its server: it would complain of that
