"""The whole page below a path, `/chat/`, behind a real nginx and a real Caddy with the lines of deploy/README.md."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.async_api import Browser, expect

from tests.browser.chat_page import ChatPage
from tests.browser.conftest import Complaints
from tests.browser.test_conversation_list import choose
from tests.deploy import caddy_site as caddy
from tests.deploy import nginx_site as nginx
from tests.deploy.conftest import caddy_site, nginx_site, run_reverse_proxy
from tests.deploy.reverse_proxy import DEPLOY, ReverseProxy
from tests.server_process import ServerProcess

__all__ = ["caddy_site", "nginx_site", "run_reverse_proxy"]  # fixtures


def shipped(kind: str) -> str:
    """The lines for a path in deploy/README.md."""
    section = (DEPLOY / "README.md").read_text().partition("### Path prefix")[2]
    found = re.search(rf"```{kind}\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture(params=["nginx", "caddy"])
def below(
    request: pytest.FixtureRequest, server: ServerProcess, run_reverse_proxy: Callable[[ReverseProxy], None]
) -> ReverseProxy:
    """A site that serves Midstream at /chat/."""
    site = request.getfixturevalue(f"{request.param}_site")(server.port)
    move = nginx.move_below if request.param == "nginx" else caddy.move_below
    move(site, "/chat", shipped(request.param))
    run_reverse_proxy(site)
    return site


async def test_the_page_works_below_a_path(
    below: ReverseProxy, chromium: Browser, complaints: Complaints
) -> None:
    context = await chromium.new_context(ignore_https_errors=True)
    complaints.watch(context)
    requested: list[str] = []
    context.on("request", lambda request: requested.append(request.url))
    root = f"https://localhost:{below.https_port}/chat"
    chat = ChatPage(await context.new_page())
    sockets: list[str] = []
    chat.page.on("websocket", lambda socket: sockets.append(socket.url))
    await chat.open(root)
    reply = await chat.ask("What is 7 plus 8?")
    await chat.page.reload()
    await expect(chat.text).to_have_text(reply)
    await choose(chat, "Share")
    link = await chat.page.get_by_role("textbox", name="Link").input_value()
    assert link.startswith(f"{root}/s/")
    reader = ChatPage(await context.new_page())
    await reader.page.goto(link)
    await expect(reader.text).to_have_text(reply)
    await reader.page.get_by_role("link", name="Start your own chat").click()
    await reader.connected()
    manifest = await reader.page.evaluate("""async () => {
      const { href } = document.querySelector("link[rel=manifest]");
      const { start_url, scope, icons } = await (await fetch(href)).json();
      const found = await Promise.all(icons.map(({ src }) => fetch(new URL(src, href)).then(({ ok }) => ok)));
      return [new URL(start_url, href).pathname, new URL(scope, href).pathname, found.every(Boolean)];
    }""")
    assert manifest == ["/chat/", "/chat/", True]
    for path in ("metrics", "v1/admin/keys"):
        assert (await context.request.get(f"{root}/{path}")).status == 404
    assert sockets == [f"wss://localhost:{below.https_port}/chat/v1/ws"] * 2
    assert [url for url in requested if not url.startswith(f"{root}/") and url != root] == []
    assert complaints.unexpected() == []
    await context.close()
    assert not any(link.rpartition("/")[2] in line for line in below.logged())
