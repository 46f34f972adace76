"""Open WebUI as it comes from PyPI, its settings left as they are, and its page in Chromium.

`scripted` calls the first tool that it knows, `midstream-demo` is the demo model. Each message of the page carries all
built-in tools.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.clients.endings import ends_of_turns, stopped
from tests.clients.environments import NotInstallable, program_of
from tests.clients.tools import scripted_server
from tests.server_process import ServerProcess, free_port, serving

READY_S = 300
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


@contextmanager
def running(program: Path, gateways: list[ServerProcess], folder: Path) -> Iterator[str]:
    """Open WebUI in a folder of its own, with no way to the internet that it would ask for models."""
    port = free_port()
    environ = os.environ | {
        "DATA_DIR": str(folder),
        "WEBUI_SECRET_KEY": "a secret of this test, long enough for a signature",
        "OPENAI_API_BASE_URLS": ";".join(f"{one.url}/v1" for one in gateways),
        "OPENAI_API_KEYS": ";".join("a-name-of-its-own" for _ in gateways),
        "ENABLE_OLLAMA_API": "false",
        "OFFLINE_MODE": "true",  # it looks for no newer version, and downloads no model
        "RAG_EMBEDDING_ENGINE": "openai",  # nor does it look for one that embeds
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
    environ.pop("PYTHONPATH", None)
    log = folder / "webui.log"
    with log.open("w") as file:
        command = [str(program), "serve", "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=file, stderr=file)
    try:
        until_it_answers(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=60)


def until_it_answers(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            time.sleep(0.2)  # polling a process has no event to wait for
        else:
            return
    raise AssertionError(f"Open WebUI does not answer:\n{log.read_text()[-3000:]}")


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
        page.goto(f"{webui}/auth")
        page.get_by_role("button", name="Get started").click()
        page.locator("input[autocomplete=name]").fill("Ada")
        page.locator("input[type=email]").fill("ada@example.org")
        for secret in page.locator("input[type=password]").all():
            secret.fill("a long secret")
        page.locator("button[type=submit]").click()
        page.get_by_role("button", name="Okay, Let's Go!").dispatch_event("click")  # it moves for long
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
