"""The page of `docs/embed.md`, put together as it says there, in a real Chromium on an origin of its own."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import BrowserContext, Locator, Page, expect

from tests.browser.static_server import serving_site
from tests.clients.environments import NotInstallable, node_modules
from tests.docs.documents import ROOT, snippets
from tests.jwt_signing import SECRET
from tests.server_process import ServerProcess, free_port, serving

GUIDE = ROOT / "docs" / "embed.md"
COUNTED = ", ".join(str(number) for number in range(1, 501)) + "."


def of_the_guide(language: str, word: str) -> str:
    """The one snippet of a language with this word in it."""
    (code,) = [code for code in snippets(GUIDE, language) if word in code]
    return code


def site(folder: Path, chat: str, server: ServerProcess) -> None:
    """The files of section 1; of the address of the service only the port is changed."""
    copy = "mkdir -p my-site && cp -r app/page/client my-site/midstream\n"
    assert copy in snippets(GUIDE, "sh")
    made = folder / "my-site"
    made.mkdir()
    shutil.copytree(ROOT / "app" / "page" / "client", made / "midstream")
    page = of_the_guide("html", "<form")
    (made / "index.html").write_text(page.replace("<title>", '<link rel="icon" href="data:,"><title>'))
    assert "127.0.0.1:8000" in chat
    (made / "chat.js").write_text(chat.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the page of section 1, served as it says there."""
    folder, port = tmp_path_factory.mktemp("plain"), free_port()
    (serve,) = [code for code in snippets(GUIDE, "sh") if "http.server" in code]
    command = [sys.executable, *shlex.split(serve.replace("5173", str(port)))[1:]]
    with serving(folder, {"MIDSTREAM_ALLOWED_ORIGINS": f"http://127.0.0.1:{port}"}) as server:
        site(folder, of_the_guide("js", "replaceChildren"), server)
        with serving_site(*command, at=folder, port=port):
            yield f"http://127.0.0.1:{port}/"


async def send_message(page: Page, text: str) -> Locator:
    """Sends a message; gives the reply that is to be seen."""
    before = await page.locator(".assistant").count()
    await page.get_by_label("Message").fill(text)
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator(".assistant")).to_have_count(before + 1)
    return page.locator(".assistant").last


async def stop_and_reload(page: Page) -> None:
    """Stops a count, says more, and finds all of it after a reload."""
    reply = await send_message(page, "Count from 1 to 500.")
    await expect(reply).to_contain_text(" 20,")
    await page.get_by_role("button", name="Stop").click()
    seen = await reply.inner_text()
    assert COUNTED.startswith(seen)
    await expect(await send_message(page, "Hello!")).to_contain_text("Hello")
    reported = ["Count from 1 to 500.", seen, "Hello!", re.compile("Hello")]
    await expect(page.locator("p")).to_have_text(reported)
    await page.reload()
    await expect(page.locator("p")).to_have_text(reported)


async def reply_texts(page: Page) -> list[str]:
    """The first three messages; the fourth may still be growing."""
    return (await page.locator("p").all_inner_texts())[:3]


async def test_the_plain_page_stops_a_reply_and_a_reload_goes_on(context: BrowserContext, plain: str) -> None:
    page = await context.new_page()
    await page.goto(plain)
    await stop_and_reload(page)
    await expect(await send_message(page, "Count from 1 to 500.")).to_contain_text(" 20,")
    await page.reload()
    await expect(page.locator(".assistant").last).to_contain_text(" 499, 500", timeout=60_000)
    await expect(page.locator("p")).to_have_count(6)


async def test_a_user_who_is_logged_in_comes_in_and_stays_when_the_token_expires(
    context: BrowserContext, tmp_path: Path
) -> None:
    port = free_port()
    origin = f"http://127.0.0.1:{port}"
    code, plain = of_the_guide("python", "LIFETIME_S"), of_the_guide("js", "replaceChildren")
    assert "LIFETIME_S = 300" in code
    (tmp_path / "site.py").write_text(code.replace("LIFETIME_S = 300", "LIFETIME_S = 2"))
    login = of_the_guide("js", "/chat-token")
    chat = re.sub(r"const client = .*?\}\);\n", lambda _: login, plain, flags=re.DOTALL)
    with serving(tmp_path, {"MIDSTREAM_ALLOWED_ORIGINS": origin, "MIDSTREAM_JWT_SECRET": SECRET}) as server:
        site(tmp_path, chat, server)
        environ = {"CHAT_SECRET": SECRET, "PORT": str(port)}
        with serving_site(sys.executable, "site.py", at=tmp_path, port=port, **environ):
            page = await context.new_page()
            async with page.expect_request("**/chat-token"):
                await page.goto(origin)
            await expect(await send_message(page, "Hello!")).to_contain_text("Hello")
            async with page.expect_request("**/chat-token", timeout=120_000):
                pass  # the first token has expired
            await expect(await send_message(page, "Hello!")).to_contain_text("Hello")
            assert await page.locator(".error").count() == 0
            await page.close()  # before its server: it would complain of that


@pytest.mark.clients
@pytest.mark.timeout(900)
async def test_the_hook_for_react_does_the_same(context: BrowserContext, tmp_path: Path) -> None:
    port = free_port()
    with serving(tmp_path, {"MIDSTREAM_ALLOWED_ORIGINS": f"http://127.0.0.1:{port}"}) as server:
        bundle(tmp_path, server)
        command = (sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1")
        with serving_site(*command, at=tmp_path, port=port):
            page = await context.new_page()
            await page.goto(f"http://127.0.0.1:{port}/main.html")
            await stop_and_reload(page)
            await page.close()  # before its server: it would complain of that


def bundle(folder: Path, server: ServerProcess) -> None:
    """A page with the guide's component."""
    tools = packages(folder)
    main = of_the_guide("jsx", "<Chat url").replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
    shutil.copy(ROOT / "examples" / "react-chat" / "use-chat.js", folder)
    (folder / "main.jsx").write_text(main)
    join(folder, tools, "main")


def packages(folder: Path, *package: Path) -> Path:
    """Makes a project that has the packages of a `package.json` and our client; gives the folder of the packages."""
    try:
        tools = node_modules(print, *package)
    except NotInstallable as why:
        pytest.skip(f"NOT TESTED: {why}")
    modules = folder / "node_modules"
    modules.mkdir()
    for one in tools.iterdir():
        (modules / one.name).symlink_to(one)
    (modules / "midstream-client").symlink_to(ROOT / "app" / "page" / "client")
    return tools


def join(folder: Path, tools: Path, *pages: str) -> None:
    """Bundles pages as React projects are."""
    for page in pages:
        head = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">'
        body = f'<div id="root"></div><script type="module" src="{page}.js"></script>'
        (folder / f"{page}.html").write_text(head + body)
    sources = [f"{page}.jsx" for page in pages]
    options = [*sources, "--bundle", "--jsx=automatic", "--format=esm", "--outdir=."]
    subprocess.run([tools / ".bin" / "esbuild", *options], cwd=folder, check=True, capture_output=True)
