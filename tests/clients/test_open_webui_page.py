"""Open WebUI as it comes from PyPI, its settings left as they are, and its page in Chromium.

`scripted` calls the first tool that it knows, `midstream-demo` is the demo model. Each message of the page carries all
built-in tools.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.clients.endings import ends_of_turns, stopped
from tests.clients.environments import NotInstallable, program_of
from tests.clients.open_webui import running, sign_up
from tests.clients.tools import scripted_server
from tests.server_process import ServerProcess, serving

PATIENCE_MS = 120_000

pytestmark = [pytest.mark.clients, pytest.mark.browser, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A gateway over an engine that calls what it is shown."""
    environ = {"MIDSTREAM_MODEL": "scripted"}
    with serving(tmp_path_factory.mktemp("scripted"), environ, command=scripted_server.COMMAND) as shared:
        yield shared


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A gateway with the demo model, which the test that needs it starts."""
    server = ServerProcess(tmp_path_factory.mktemp("demo"))
    yield server
    if server.process is not None:
        server.stop()


@pytest.fixture(scope="module")
def webui(
    scripted: ServerProcess, demo: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a running Open WebUI, which knows both gateways and nobody yet."""
    try:
        program = program_of("openwebui", "open-webui", print)
    except NotInstallable as why:
        pytest.skip(f"NOT TESTED: Open WebUI could not be installed: {why}")
    with running(program, [scripted, demo], tmp_path_factory.mktemp("webui")) as url:
        yield url


@pytest.fixture(scope="module")
def page(webui: str) -> Iterator[Page]:
    """Its page, where somebody signed up and closed what is new in this version."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("NOT TESTED: there is no `chromium` on PATH (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 840})
        page.set_default_timeout(PATIENCE_MS)
        sign_up(page, webui)
        yield page
        browser.close()


def ask(page: Page, webui: str, model: str, text: str) -> None:
    """Begin a chat with a model."""
    page.goto(f"{webui}/?models={model}")
    expect(page.locator("#chat-input")).to_be_visible(timeout=PATIENCE_MS)
    page.locator("#chat-input").click()
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def told(page: Page, text: str) -> None:
    expect(page.locator("#messages-container")).to_contain_text(text, timeout=PATIENCE_MS)


def test_a_tool_is_called_and_its_result_told(page: Page, webui: str) -> None:
    ask(page, webui, "scripted", "What is the weather in Oslo?")
    told(page, "get_current_timestamp")
    told(page, 'The weather in Oslo: {"current_timestamp"')


def test_a_chat_has_the_title_that_the_model_gave_it(page: Page, webui: str) -> None:
    ask(page, webui, "scripted", "Is there anything to call?")
    expect(page).to_have_title(re.compile("The weather in Oslo"), timeout=PATIENCE_MS)


def test_stop_stops_the_model(page: Page, webui: str, scripted: ServerProcess) -> None:
    with ends_of_turns(scripted) as ends:
        ask(page, webui, "scripted", "Count from 1 to 500.")
        told(page, " 20,")
        page.get_by_role("button", name="Stop", exact=True).dispatch_event("click")
        assert stopped(ends)["steps_after"] == 0
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_hidden(timeout=PATIENCE_MS)
    expect(page.locator("#messages-container")).not_to_contain_text(" 490,")


def test_the_demo_model_chats(page: Page, webui: str, demo: ServerProcess) -> None:
    demo.start()
    ask(page, webui, "midstream-demo", "Count from 1 to 12.")
    told(page, "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12")
