"""A real Chromium, a visit to the page in it, and the peer that says what a test tells it to."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    ViewportSize,
    async_playwright,
    expect,
)
from pytest_asyncio import is_async_test

from app import page_files
from tests.browser.chat_page import ChatPage
from tests.browser.fake_server import PAGE, FakeServer, shipped
from tests.browser.fake_server import peer as make_peer
from tests.browser.page_states import axe_script
from tests.clients.environments import NotInstallable

HERE = Path(__file__).parent
OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
expect.set_options(timeout=20_000)  # a busy machine is no failure of the page
DESKTOP = ViewportSize(width=1280, height=840)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of pages share a browser, so they share its event loop."""
    for item in items:
        if HERE in item.path.parents and is_async_test(item):
            item.add_marker("browser")
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


class Complaints:
    """What the browser complained of. A test that provokes a complaint names it; any other fails the test."""

    def __init__(self) -> None:
        self.expected: list[str] = []
        self._heard: list[str] = []

    def watch(self, context: BrowserContext) -> None:
        """Listens to every page of a context."""
        context.on("console", self._console)
        context.on("weberror", lambda error: self._heard.append(str(error.error)))

    def unexpected(self) -> list[str]:
        """Complaints that no test asked for."""
        return [line for line in self._heard if not any(word in line for word in self.expected)]

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self._heard.append(message.text)


@asynccontextmanager
async def launched(*names: str, options: Sequence[str] = ()) -> AsyncIterator[Browser]:
    """The first of these programs that is there."""
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("NOT TESTED: there is no `chromium` on PATH (Debian: apt-get install chromium)")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=[*OPTIONS, *options])
        yield browser
        await browser.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """One browser for all tests, since it takes a second to start; each test has a context of its own in it.

    Chromium's shell without windows is taken where it is installed: the same engine, at half the cost for a page.
    """
    async with launched("chromium-headless-shell", "chromium") as browser:
        yield browser


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core."""
    try:
        return axe_script().read_text()
    except NotInstallable as why:
        pytest.skip(f"NOT TESTED: axe-core could not be installed by npm: {why}")


@pytest.fixture(scope="session", autouse=True)
def joined_once() -> Iterator[None]:
    """Services of a test's own serve the page that was joined and compressed for the first of them."""
    join = page_files._built
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_files, "_built", lambda folder: shipped() if folder == PAGE else join(folder))
        yield


@pytest.fixture
def complaints() -> Complaints:
    """What the browser complained of in this test."""
    return Complaints()


@pytest_asyncio.fixture(loop_scope="session")
async def context(chromium: Browser, complaints: Complaints) -> AsyncIterator[BrowserContext]:
    """A visitor: storage of their own. The test fails where the console had something to complain of."""
    made = await chromium.new_context(viewport=DESKTOP, permissions=["clipboard-read", "clipboard-write"])
    complaints.watch(made)
    yield made
    await made.close()
    assert complaints.unexpected() == []


@pytest_asyncio.fixture(loop_scope="session")
async def chat(context: BrowserContext) -> ChatPage:
    """An empty tab that is about to show the chat."""
    return ChatPage(await context.new_page())


@pytest_asyncio.fixture(loop_scope="session")
async def peer(context: BrowserContext) -> AsyncIterator[FakeServer]:
    """The other side, where a test has to play it word by word.

    It outlives the pages: a connection that comes while asyncio closes a server is dropped unclosed, with a warning.
    """
    async with make_peer() as made:
        yield made
        for page in context.pages:
            await page.close()
