"""The web app for phones on a phone's screen: stopped, put to sleep, taken off the network, opened without one."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, ViewportSize, async_playwright, expect

from tests.app.in_process_service import serving
from tests.browser.chat_page import ChatPage
from tests.browser.conftest import OPTIONS, Complaints
from tests.browser.examples.chat import Chat, counting
from tests.browser.page_states import violations
from tests.browser.static_server import serving_site
from tests.chaos.proxy import Proxy, proxy
from tests.docs.documents import ROOT, snippets
from tests.server_process import free_port

EXAMPLE = ROOT / "examples" / "phone-web"
PHONE = ViewportSize(width=360, height=640)
HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
FINGER_PX = 44


class Phone(Chat):
    """The app on a phone, and the network between it and the service."""

    def __init__(self, page: Page, network: Proxy, url: str) -> None:
        super().__init__(page)
        self.network, self.url = network, url


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder as somebody copies it, with what its links lead to."""
    folder = tmp_path_factory.mktemp("copy")
    return Path(shutil.copytree(EXAMPLE, folder / "examples" / "phone-web", symlinks=False))


@pytest_asyncio.fixture(loop_scope="session")
async def phone_context(chromium: Browser, complaints: Complaints) -> AsyncIterator[BrowserContext]:
    made = await chromium.new_context(viewport=PHONE, has_touch=True, is_mobile=True)
    complaints.watch(made)
    complaints.expected = ["ERR_CONNECTION", "ERR_INTERNET_DISCONNECTED", "WebSocket connection"]
    yield made
    await made.close()
    assert complaints.unexpected() == []


@pytest_asyncio.fixture(loop_scope="session")
async def phone(phone_context: BrowserContext, copy: Path, tmp_path: Path) -> AsyncIterator[Phone]:
    """The app, served by its one command, whose engine counts calmly. The page goes before the service does."""
    (command,) = [line for line in snippets(ROOT / "examples" / "README.md", "sh") if "http.server" in line]
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    start = [sys.executable, *shlex.split(command.replace("5173", str(port)))[1:]]
    async with (
        serving(tmp_path, counting(), allowed_origins=(url,)) as service,
        proxy(service.port) as network,
    ):
        config = (EXAMPLE / "config.js").read_text()
        (copy / "config.js").write_text(config.replace("127.0.0.1:8000", f"127.0.0.1:{network.port}"))
        with serving_site(*start, at=copy.parents[1], port=port):
            page = await phone_context.new_page()
            await page.goto(url)
            yield Phone(page, network, url)
            await page.close()


async def test_a_reply_is_stopped_with_a_finger_and_is_there_after_a_reload(phone: Phone, axe: str) -> None:
    """A finger finds what it wants, nothing runs off the screen, and no rule for accessible pages is broken."""
    message = "Count, please. " + "W" * 200
    await phone.page.get_by_label("Message").fill(message)
    await phone.button("Send").tap()
    await phone.counts_to(5)
    for name in ("Send", "Stop"):
        box = await phone.button(name).bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) >= FINGER_PX
    size = "getComputedStyle(document.querySelector('#text')).fontSize"
    assert await phone.page.evaluate(size) == "16px"  # iOS zooms into fields of smaller letters
    sideways = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert await phone.page.evaluate(sideways) == 0
    await phone.page.evaluate(axe)
    assert await violations(ChatPage(phone.page)) == []
    seen = await phone.stop()
    await phone.page.reload()
    await phone.has(message, seen)


async def test_back_from_the_background_the_reply_goes_on_at_once(phone: Phone) -> None:
    """A page that sleeps has no timers that would try again."""
    await phone.send("Count, please.")
    await phone.counts_to(5)
    await phone.page.clock.install()
    await phone.page.clock.pause_at(await phone.page.evaluate("Date.now() + 1000"))
    await phone.page.evaluate(HIDE, True)
    connections = phone.network.connections
    phone.network.cut()
    await expect(phone.status).to_have_text("Connecting…")
    assert phone.network.connections == connections
    await phone.page.evaluate(HIDE, False)
    await phone.counts_to(40)
    await phone.stop()


async def test_without_a_network_it_opens_with_what_was_not_sent_and_sends_it_once_there_is_one(
    phone: Phone, phone_context: BrowserContext
) -> None:
    box = phone.page.get_by_label("Message")
    await phone.page.evaluate("navigator.serviceWorker.ready")
    await box.fill("A thought in the lift")
    await phone_context.set_offline(True)
    phone.network.refuse()
    await phone.page.reload()
    await expect(phone.page.get_by_role("heading", name="Chat")).to_be_visible()
    await expect(phone.status).to_have_text(re.compile("You are offline"))
    await expect(box).to_have_value("A thought in the lift")
    await phone.button("Send").tap()
    await expect(box).to_have_value("")
    await box.fill("And another")
    await phone.button("Send").tap()
    await box.fill("A third, not s")
    await phone.page.reload()
    await expect(box).to_have_value("A thought in the lift\n\nAnd another\n\nA third, not s")
    await phone.button("Send").tap()
    await expect(phone.messages.first).to_contain_text("A thought in the lift")
    await phone_context.set_offline(False)
    phone.network.refuse(refuse=False)
    await phone.counts_to(5)
    await phone.stop()
    await expect(phone.messages).to_have_count(2)
    await phone.page.reload()
    await expect(box).to_have_value("")


async def test_only_the_apps_own_files_are_kept(phone: Phone) -> None:
    """Whoever uses the phone next must not find what the service answered to somebody else."""
    kept = "caches.open('files').then((kept) => kept.keys()).then((all) => all.map(({ url }) => url))"
    await phone.page.evaluate("navigator.serviceWorker.ready")
    await phone.page.reload()  # now the worker answers
    assert await phone.page.evaluate("navigator.serviceWorker.controller !== null")
    status = await phone.page.evaluate("fetch('worker.js?conversations').then(({ status }) => status)")
    assert status == 200
    urls = await phone.page.evaluate(kept)
    assert not any("worker.js" in url for url in urls)


async def test_a_browser_finds_nothing_against_installing_it(phone: Phone, tmp_path: Path) -> None:
    """Only the whole browser judges that, and not in a private window."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("NOT TESTED: there is no `chromium` on PATH (Debian: apt-get install chromium)")
    async with async_playwright() as playwright:
        start = playwright.chromium.launch_persistent_context
        browser = await start(tmp_path / "profile", executable_path=path, args=OPTIONS)
        page = await browser.new_page()
        await page.goto(phone.url)
        session = await browser.new_cdp_session(page)
        assert await session.send("Page.getInstallabilityErrors") == {"installabilityErrors": []}
        assert (await session.send("Page.getAppManifest"))["errors"] == []
        await browser.close()
