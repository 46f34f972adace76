"""Stock `useChat` in a real Chromium, over the AI SDK's own transport: Stop, and a reload in the middle of a reply."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.browser.test_embedding import (
    COUNTED,
    join,
    of_the_guide,
    packages,
    reply_texts,
    send_message,
    serving_site,
    stop_and_reload,
)
from tests.clients.environments import HERE
from tests.server_process import ServerProcess, free_port, serving

COUNT = "Count from 1 to 500."

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]


class Site:
    """Pages on an origin of their own, and their server."""

    def __init__(self, folder: Path, origin: str, server: ServerProcess) -> None:
        self.folder = folder
        self.origin = origin
        self.server = server

    def url(self, way: str) -> str:
        """The page with a stock transport. Each way to leave has a chat of its own."""
        return f"{self.origin}/stock.html?way={way}&chat={way}&server={self.server.url}"

    async def kept(self, chat: str) -> list[str]:
        """The texts of a chat as the server keeps them."""
        async with httpx.AsyncClient(base_url=self.server.url) as client:
            answer = await client.get(f"/v1/ai-sdk/chat/{chat}/messages", params={"client_id": "ann"})
        return ["".join(part.get("text", "") for part in message["parts"]) for message in answer.json()]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The guide's page and the stock one, bundled as React projects are."""
    folder, port = tmp_path_factory.mktemp("ai-sdk"), free_port()
    origin = f"http://127.0.0.1:{port}"
    with serving(folder, {"MIDSTREAM_ALLOWED_ORIGINS": origin}) as server:
        bundle(folder, server)
        command = (sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1")
        with serving_site(*command, at=folder, port=port):
            yield Site(folder, origin, server)


@pytest.fixture(scope="module")
def assistant_ui(site: Site) -> str:
    """The address of a page of assistant-ui."""
    folder = site.folder / "assistant-ui"
    folder.mkdir()
    tools = packages(folder, HERE / "assistantui.json")
    (folder / "page.jsx").write_text((HERE / "assistantui_page.jsx").read_text())
    join(folder, tools, "page")
    return f"{site.origin}/assistant-ui/page.html?server={site.server.url}"


def bundle(folder: Path, server: ServerProcess) -> None:
    tools = packages(folder, HERE / "aisdk.json")
    guide = of_the_guide("jsx", "DefaultChatTransport")
    (folder / "guide.jsx").write_text(guide.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}"))
    (folder / "chat.jsx").write_text(of_the_guide("jsx", "chat.sendMessage"))
    (folder / "stock.jsx").write_text((HERE / "aisdk_page.jsx").read_text())
    join(folder, tools, "guide", "stock")


async def visit(context: BrowserContext, url: str) -> Page:
    page = await context.new_page()
    await page.goto(url)
    await expect(page.get_by_label("Message")).to_be_visible()
    return page


async def reload_and_continue(page: Page) -> None:
    """A reload in the middle of a reply goes on with it."""
    before = await page.locator("p").count()
    await expect(await send_message(page, COUNT)).to_contain_text(" 20,")
    await page.reload()
    await expect(page.locator(".assistant").last).to_contain_text(" 499, 500", timeout=90_000)
    await expect(page.locator("p")).to_have_count(before + 2)


async def test_the_guides_page_stops_exactly_and_a_reload_goes_on(
    context: BrowserContext, site: Site
) -> None:
    page = await visit(context, f"{site.origin}/guide.html")
    await stop_and_reload(page)
    await reload_and_continue(page)
    await page.close()  # before its server: it would complain of that


@pytest.mark.parametrize("way", ["leaving", "resuming"])
async def test_a_stock_transport_works_unchanged(context: BrowserContext, site: Site, way: str) -> None:
    page = await visit(context, site.url(way))
    reply = await send_message(page, COUNT)
    await expect(reply).to_contain_text(" 20,")
    await page.get_by_role("button", name="Stop").click()
    await expect(await send_message(page, "Hello!")).to_contain_text("Hello")
    first, seen, second = await reply_texts(page)
    kept = await site.kept(way)
    assert (first, second) == (COUNT, "Hello!")
    assert kept[:3:2] == [COUNT, "Hello!"]
    assert kept[1].startswith(seen)
    assert COUNTED.startswith(kept[1])
    assert len(kept[1]) < len(COUNTED)
    if way != "leaving":  # whoever leaves without a word wants no reply
        await reload_and_continue(page)
        assert (await site.kept(way))[-1] == COUNTED
    assert await page.locator(".error").count() == 0
    await page.close()


async def test_assistant_ui_chats_and_stops(context: BrowserContext, site: Site, assistant_ui: str) -> None:
    page = await visit(context, assistant_ui)
    async with page.expect_request("**/v1/ai-sdk/chat*") as requested:
        reply = await send_message(page, COUNT)
    await expect(reply).to_contain_text(" 20,")
    await page.get_by_role("button", name="Stop").click()
    await expect(await send_message(page, "Hello!")).to_contain_text("Hello")
    chat = json.loads((await requested.value).post_data or "")["id"]
    kept = await site.kept(chat)
    assert kept[:3:2] == [COUNT, "Hello!"]
    assert kept[1].startswith(await page.locator(".assistant").first.inner_text())
    assert len(kept[1]) < len(COUNTED)
    await page.close()
