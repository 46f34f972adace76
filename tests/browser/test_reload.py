"""What a reply outlives on a real server: a reload, a cut network. And what it does not: a restart, a tab closed for good."""

from __future__ import annotations

import signal

import pytest
from playwright.async_api import BrowserContext, expect

from tests.browser.chat_page import ChatPage
from tests.browser.conftest import Complaints
from tests.chaos.proxy import Proxy, Weather, proxy
from tests.server_process import ServerProcess

COUNT = "Count from 1 to 500."


async def counting(chat: ChatPage, url: str, *, pace: int = 60) -> None:
    """Opens the page and waits until it is in the middle of a long count; `pace`: characters per second."""
    await chat.open(url)
    await chat.read_at(pace)
    await chat.type(COUNT)
    await chat.until_shown("5,")


async def count_on(chat: ChatPage) -> None:
    """The count goes on, is stopped, and is without a hole or a repeat."""
    shown = (await chat.last_reply()).count(",")
    await chat.until_shown(f" {shown + 8},")
    await chat.page.keyboard.press("Escape")
    await chat.ended()
    await expect(chat.badge()).to_have_text("Stopped")
    await last_number(chat)


async def last_number(chat: ChatPage) -> int:
    """Returns how far the reply counts, with no number missing or doubled; the last one may be cut."""
    reported = [int(word) for word in (await chat.last_reply()).split(",")[:-1]]
    assert reported == list(range(1, len(reported) + 1))
    return len(reported)


async def test_a_reply_goes_on_over_a_reload_and_a_cut_network(
    chat: ChatPage, server: ServerProcess, complaints: Complaints
) -> None:
    complaints.expected = ["WebSocket connection to"]
    async with proxy(server.port) as network:
        await counting(chat, f"http://127.0.0.1:{network.port}")
        with server.engine_held():
            await chat.page.reload()
            await chat.until_shown("5,")
            await chat.connected()
            network.cut()
            await expect(chat.connection).not_to_have_attribute("data-state", "connected")
            await chat.connected()
        await count_on(chat)
        seen = await chat.seen()
        await chat.page.reload()
        await expect(chat.badge()).to_have_text("Stopped")
        await chat.shows(seen)


async def until_answered(chat: ChatPage) -> None:
    """Waits until the message that interrupted the count is answered."""
    await expect(chat.replies).to_have_count(2)
    await expect(chat.text).to_contain_text("Ada", timeout=60_000)
    await chat.ended()


@pytest.mark.parametrize("away", [False, True])
async def test_an_interrupted_reply_is_kept_as_it_was_seen(
    chat: ChatPage, server: ServerProcess, complaints: Complaints, *, away: bool
) -> None:
    """Whether the message takes 400 ms to the server, or is written without a network."""
    complaints.expected = ["WebSocket connection to"]
    async with proxy(server.port) as network:
        await counting(chat, f"http://127.0.0.1:{network.port}")
        if away:
            network.refuse()
            network.cut()
            await expect(chat.connection).not_to_have_attribute("data-state", "connected")
        else:
            network.there = Weather(delay_s=0.4)
        await chat.type("My name is Ada.")
        seen = await chat.replies.first.locator(".prose").inner_text()
        network.refuse(refuse=False)
        await until_answered(chat)
        await expect(chat.replies.first.locator(".prose")).to_have_text(seen)
        await chat.page.reload()
        await expect(chat.replies.first.locator(".prose")).to_have_text(seen)


async def offline(chat: ChatPage, network: Proxy) -> None:
    """Cuts the connection for good."""
    network.refuse()
    network.cut()
    await expect(chat.connection).not_to_have_attribute("data-state", "connected")


async def reload(chat: ChatPage, network: Proxy) -> None:
    """Leaves the page, and opens it again once there is a network: the page that was left can't use that."""
    address = chat.page.url
    await chat.page.goto("about:blank")
    network.refuse(refuse=False)
    await chat.page.goto(address)


@pytest.mark.parametrize("first", [True, False])
async def test_a_message_written_without_a_network_outlives_a_reload(
    chat: ChatPage, server: ServerProcess, complaints: Complaints, *, first: bool
) -> None:
    complaints.expected = ["WebSocket connection to", "Failed to load resource"]
    async with proxy(server.port) as network:
        url = f"http://127.0.0.1:{network.port}"
        await chat.open(url)
        if not first:
            await chat.ask("What is 2 plus 2?")
        await offline(chat, network)
        await chat.type("What is 7 plus 8?")
        await reload(chat, network)
        await expect(chat.text).to_contain_text("15")
        await chat.ended()
        await expect(chat.questions).to_have_count(1 if first else 2)
        assert "unanswered" not in await chat.client("JSON.stringify(sessionStorage)")
        later = ChatPage(await chat.page.context.new_page())
        await later.open(chat.page.url)
        await expect(later.questions).to_have_count(1 if first else 2)


async def test_a_stop_without_a_network_outlives_a_reload(
    chat: ChatPage, server: ServerProcess, complaints: Complaints
) -> None:
    complaints.expected = ["WebSocket connection to", "Failed to load resource"]
    async with proxy(server.port) as network:
        await counting(chat, f"http://127.0.0.1:{network.port}")
        await offline(chat, network)
        await chat.page.keyboard.press("Escape")
        seen = await chat.last_reply()
        await reload(chat, network)
        await expect(chat.badge()).to_have_text("Stopped")
        await expect(chat.text).to_have_text(seen)


async def test_a_restart_keeps_the_conversations_and_what_came_of_a_reply(
    chat: ChatPage, context: BrowserContext, own_server: ServerProcess, complaints: Complaints
) -> None:
    complaints.expected = ["WebSocket connection to"]
    await chat.open(own_server.url)
    await chat.ask("My name is Ada.")
    seen = await chat.seen()
    other = ChatPage(await context.new_page())
    await other.open(own_server.url)
    await other.page.get_by_role("button", name="New conversation").click()
    await other.read_at(60)
    await other.type(COUNT)
    await other.until_shown("5,")
    with own_server.engine_held():
        own_server.send(signal.SIGTERM)
        await expect(chat.connection).not_to_have_attribute("data-state", "connected")
    own_server.stop()
    own_server.start()
    await chat.connected()
    await chat.shows(seen)
    assert "Ada" in await chat.ask("What is my name?")
    await other.connected()
    await other.ended()
    await expect(other.badge()).to_be_visible()
    seen = await other.seen()
    await other.page.reload()
    await expect(other.replies).to_have_count(1)
    await other.shows(seen)
