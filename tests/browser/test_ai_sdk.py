"""Stock `useChat` in a real Chromium, over the AI SDK's transports and ours: Stop, and a reload in the middle of a reply."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.browser.test_embedding import (
    COUNTED,
    of_the_guide,
    reply_texts,
    send_message,
    serving_site,
    stop_and_reload,
)
from tests.clients.environments import HERE, NotInstallable, node_modules
from tests.docs.documents import ROOT
from tests.server_process import ServerProcess, free_port, serving

COUNT = "Count from 1 to 500."
STRICT = (
    "--noEmit",
    "--strict",
    "--target",
    "es2023",
    "--lib",
    "es2024,dom",
    "--module",
    "nodenext",
    "--skipLibCheck",
)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.clients,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="session"),
]


class Site:
    """Pages on an origin of their own, and their server."""

    def __init__(self, folder: Path, origin: str, server: ServerProcess) -> None:
        self.folder = folder
        self.origin = origin
        self.server = server

    def url(self, transport: str) -> str:
        """The page of a stock transport. Each has a chat of its own."""
        return f"{self.origin}/stock.html?transport={transport}&chat={transport}&server={self.server.url}"

    async def kept(self, chat: str) -> list[str]:
        """The texts of a chat as the server keeps them."""
        async with httpx.AsyncClient(base_url=self.server.url) as client:
            answer = await client.get(f"/v1/ai-sdk/chat/{chat}/messages", params={"client_id": "ann"})
        return ["".join(part.get("text", "") for part in message["parts"]) for message in answer.json()]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The guide's page and the stock one, bundled as React projects are."""
    try:
        tools = node_modules(print, HERE / "aisdk.json")
    except NotInstallable as why:
        pytest.skip(f"NOT TESTED: {why}")
    folder, port = tmp_path_factory.mktemp("ai-sdk"), free_port()
    origin = f"http://127.0.0.1:{port}"
    with serving(folder, {"MIDSTREAM_ALLOWED_ORIGINS": origin}) as server:
        bundle(folder, tools, server)
        command = (sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1")
        with serving_site(*command, at=folder, port=port):
            yield Site(folder, origin, server)


@pytest.fixture(scope="module")
def assistant_ui(site: Site) -> str:
    """The address of a page of assistant-ui."""
    try:
        tools = node_modules(print, HERE / "assistantui.json")
    except NotInstallable as why:
        pytest.skip(f"NOT TESTED: {why}")
    folder = site.folder / "assistant-ui"
    folder.mkdir()
    install(folder, tools)
    (folder / "page.jsx").write_text((HERE / "assistantui_page.jsx").read_text())
    join(folder, tools, "page")
    return f"{site.origin}/assistant-ui/page.html?server={site.server.url}"


def install(folder: Path, tools: Path) -> Path:
    """Makes a project that has these packages."""
    modules = folder / "node_modules"
    modules.mkdir()
    for package in tools.iterdir():
        (modules / package.name).symlink_to(package)
    return modules


def bundle(folder: Path, tools: Path, server: ServerProcess) -> None:
    modules = install(folder, tools)
    (modules / "midstream-client").symlink_to(ROOT / "app" / "page" / "client")
    guide = of_the_guide("jsx", "MidstreamChatTransport").replace(
        "127.0.0.1:8000", f"127.0.0.1:{server.port}"
    )
    (folder / "ours.jsx").write_text(guide)
    (folder / "chat.jsx").write_text(of_the_guide("jsx", "chat.sendMessage"))
    (folder / "stock.jsx").write_text((HERE / "aisdk_page.jsx").read_text())
    join(folder, tools, "ours", "stock")


def join(folder: Path, tools: Path, *pages: str) -> None:
    """Bundles pages as React projects are."""
    for page in pages:
        head = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">'
        body = f'<div id="root"></div><script type="module" src="{page}.js"></script>'
        (folder / f"{page}.html").write_text(head + body)
    sources = [f"{page}.jsx" for page in pages]
    options = [*sources, "--bundle", "--jsx=automatic", "--format=esm", "--outdir=."]
    subprocess.run([tools / ".bin" / "esbuild", *options], cwd=folder, check=True, capture_output=True)


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


async def test_our_transport_stops_exactly_and_a_reload_goes_on(context: BrowserContext, site: Site) -> None:
    page = await visit(context, f"{site.origin}/ours.html")
    await stop_and_reload(page)
    await reload_and_continue(page)
    await page.close()  # before its server: it would complain of that


@pytest.mark.parametrize("transport", ["leaving", "resuming", "socket"])
async def test_a_stock_transport_works_unchanged(context: BrowserContext, site: Site, transport: str) -> None:
    page = await visit(context, site.url(transport))
    reply = await send_message(page, COUNT)
    await expect(reply).to_contain_text(" 20,")
    await page.get_by_role("button", name="Stop").click()
    await expect(await send_message(page, "Hello!")).to_contain_text("Hello")
    first, seen, second = await reply_texts(page)
    kept = await site.kept(transport)
    assert (first, second) == (COUNT, "Hello!")
    assert kept[:3:2] == [COUNT, "Hello!"]
    assert kept[1].startswith(seen)
    assert COUNTED.startswith(kept[1])
    assert len(kept[1]) < len(COUNTED)
    if transport != "leaving":  # whoever leaves without a word wants no reply
        await reload_and_continue(page)
        assert (await site.kept(transport))[-1] == COUNTED
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


TYPED = """
import type { ChatTransport, UIMessage } from "ai";
import type { ChatClient } from "midstream-client";
import { MidstreamChatTransport } from "midstream-client/ai-sdk.js";

export function transport(client: ChatClient): ChatTransport<UIMessage> {
  return new MidstreamChatTransport({ client, params: { temperature: 0 } });
}
"""


async def test_our_transport_is_one_for_a_strict_reader(site: Site) -> None:
    (site.folder / "typed.ts").write_text(TYPED)
    (site.folder / "package.json").write_text('{"private": true, "type": "module"}')
    compiled = type_checked(site.folder)
    assert compiled.returncode == 0, compiled.stdout


def type_checked(folder: Path) -> subprocess.CompletedProcess[str]:
    tsc = folder / "node_modules" / "typescript" / "bin" / "tsc"
    command = ["node", str(tsc), *STRICT, "typed.ts"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
