"""A conversation's event stream in a browser's own EventSource, which comes back by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Page
from websockets.asyncio.client import connect

from tests.app.in_process_service import Socket
from tests.browser.chat_page import ChatPage
from tests.browser.conftest import Complaints
from tests.server_process import ServerProcess

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

READ = """path => {
    const told = [];
    let heard = () => {};
    const source = new EventSource(path);
    source.onmessage = ({ data, lastEventId }) => {
        told.push({ ...JSON.parse(data), id: lastEventId });
        heard();
    };
    window.toldUntil = async (type, times) => {
        while (told.filter((frame) => frame.type === type).length < times) {
            await new Promise((resolve) => { heard = resolve; });
        }
        return told;
    };
}"""


@asynccontextmanager
async def speaking(server: ServerProcess, client_id: str) -> AsyncIterator[Socket]:
    async with connect(server.ws_url) as opened:
        socket = Socket(opened)
        await socket.send(type="hello", client_id=client_id)
        await socket.next("ready")
        yield socket


async def send_message(server: ServerProcess, client_id: str, content: str) -> None:
    async with speaking(server, client_id) as socket:
        await socket.send(type="send", client_msg_id=content, content=content)
        await socket.until("done")


async def received_events(page: Page, until: str, times: int = 1) -> list[dict[str, Any]]:
    """All that the page was told, once it was told something so many times."""
    frames: list[dict[str, Any]] = await page.evaluate("what => toldUntil(...what)", [until, times])
    return frames


async def test_an_event_source_reads_along_over_a_restart(
    chat: ChatPage, own_server: ServerProcess, client_id: str, complaints: Complaints
) -> None:
    complaints.expected += ["net::ERR_", "404"]  # the server was away, and has no favicon.ico
    await send_message(own_server, client_id, "Hello!")
    await chat.page.goto(f"{own_server.url}/healthz")
    await chat.page.evaluate(READ, f"/v1/conversations/default/events?client_id={client_id}")
    await received_events(chat.page, until="history")
    await send_message(own_server, client_id, "What is your name?")
    await received_events(chat.page, until="done")
    own_server.restart()
    await send_message(own_server, client_id, "Count from 1 to 3.")
    frames = await received_events(chat.page, until="done", times=2)
    numbered = [frame for frame in frames if frame["type"] in ("accepted", "delta", "done")]
    page = frames[0]
    assert (page["type"], len(page["messages"])) == ("history", 2)
    assert [frame.get("first_seq", frame["seq"]) for frame in numbered] == [
        seq + 1 for seq in (page["seq"], *(frame["seq"] for frame in numbered[:-1]))
    ]
    assert frames[-1]["id"] == f"{page['epoch']}:{numbered[-1]['seq']}"
    assert {"goaway", "resumed"} <= {frame["type"] for frame in frames}
