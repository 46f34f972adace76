"""The chat in React, installed and started as its guide says: it streams, stops, comes back, and says what is wrong."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import BrowserContext, expect

from tests.app.in_process_service import serving
from tests.browser.chat_page import ChatPage
from tests.browser.conftest import Complaints
from tests.browser.examples.chat import Chat, counting, installed
from tests.browser.page_states import violations
from tests.browser.static_server import serving_site
from tests.chaos.proxy import Proxy, proxy
from tests.docs.documents import ROOT, snippets
from tests.server_process import free_port

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]

EXAMPLE = ROOT / "examples" / "react-chat"
PORT = free_port()
ORIGIN = f"http://127.0.0.1:{PORT}"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """On a port of its own."""
    checkout = tmp_path_factory.mktemp("checkout")
    return installed("react-chat", checkout, lambda package: package.replace("5173", str(PORT)))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def network(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Proxy]:
    folder = tmp_path_factory.mktemp("service")
    async with (
        serving(folder, counting(), allowed_origins=(ORIGIN,)) as service,
        proxy(service.port) as network,
    ):
        yield network


@pytest.fixture(scope="module")
def site(project: Path, network: Proxy) -> Iterator[str]:
    """The page, by its one command; of the service's address the port is changed."""
    main = (EXAMPLE / "main.jsx").read_text()
    assert "127.0.0.1:8000" in main
    (project / "main.jsx").write_text(main.replace("127.0.0.1:8000", f"127.0.0.1:{network.port}"))
    (command,) = [line for line in snippets(ROOT / "examples" / "README.md", "sh") if "react-chat" in line]
    folder, install, start = command.strip().split(" && ")
    assert (folder, install) == ("cd examples/react-chat", "npm install")
    with serving_site(*start.split(), at=project, port=PORT):
        yield ORIGIN


@pytest_asyncio.fixture(loop_scope="session")
async def chat(context: BrowserContext, site: str) -> AsyncIterator[Chat]:
    page = await context.new_page()
    await page.goto(site)
    yield Chat(page)
    await page.close()


async def test_a_reload_goes_on_with_the_running_reply_and_stop_keeps_what_was_seen(chat: Chat) -> None:
    await chat.send("Count, please.")
    await chat.counts_to(5)
    await chat.page.reload()
    await chat.counts_to(40)
    await expect(chat.status).to_have_text("Replying…")
    seen = await chat.stop()
    for _ in ("at first", "after a reload"):
        await chat.has("Count, please.", seen)
        await chat.page.reload()


async def test_a_lost_connection_is_told_of_and_the_reply_goes_on(
    chat: Chat, network: Proxy, complaints: Complaints
) -> None:
    complaints.expected = ["WebSocket connection"]
    await chat.send("Count, please.")
    await chat.counts_to(5)
    network.refuse()
    network.cut()
    await expect(chat.status).to_have_text("Connecting…")
    network.refuse(refuse=False)
    await chat.counts_to(60)
    await chat.stop()


async def test_what_is_refused_is_told_of_in_its_place(chat: Chat) -> None:
    await chat.connected()
    await chat.send("W" * 70_000)
    await expect(chat.page.locator(".error")).to_have_text(re.compile("longer than"))
    await chat.connected()


async def test_no_rule_for_accessible_pages_is_broken(context: BrowserContext, site: str, axe: str) -> None:
    await context.add_init_script(axe)
    page = await context.new_page()
    await page.goto(site)
    chat = Chat(page)
    await chat.send("Count, please.")
    await chat.counts_to(5)
    assert await violations(ChatPage(page)) == []
    await chat.stop()
    await page.close()


async def test_it_is_built_as_a_file(project: Path) -> None:
    build = await asyncio.create_subprocess_exec("npm", "run", "build", "--silent", cwd=project)
    assert await build.wait() == 0
    assert "WebSocket" in (project / "built" / "main.js").read_text()
