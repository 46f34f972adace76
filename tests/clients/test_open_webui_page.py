"""Open WebUI as it comes from PyPI, its settings left as they are, and its page in Chromium.

`scripted` calls the first tool that it knows, `midstream-demo` is the demo model. Each message of the page carries all
built-in tools.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.browser.test_voice import MICROPHONE, needs_a_voice, recording
from tests.clients.conftest import GRAMMAR
from tests.clients.environments import NotInstallable, program_of
from tests.clients.tools import scripted_server
from tests.clients.turn_log import ends_of_turns, stopped
from tests.server_process import ServerProcess, free_port, serving, wait_ready

READY_S = 900
PATIENCE_MS = 120_000
SENTENCE = "Tell me a story about a lighthouse."
RECORDED = "0:06"
"""What the page shows when the sentence was said: before it are two seconds of silence."""
LISTEN_IN = """
    const play = HTMLMediaElement.prototype.play;
    window.heardS = 0;
    HTMLMediaElement.prototype.play = function () {
      this.addEventListener("timeupdate", () => (window.heardS = Math.max(window.heardS, this.currentTime)));
      return play.call(this);
    };
"""

pytestmark = [pytest.mark.clients, pytest.mark.browser, pytest.mark.timeout(2400)]


@contextmanager
def running(
    program: Path, gateways: Sequence[ServerProcess], folder: Path, *, speech: ServerProcess | None = None
) -> Iterator[str]:
    """Open WebUI in a folder of its own, with no way to the internet that it would ask for models. Gives its address.

    `speech`: the gateway for dictation and reading aloud, as an administrator names it on the page; models and voice are
    left at their defaults.
    """
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
    if speech is not None:
        for kind in ("STT", "TTS"):
            environ[f"AUDIO_{kind}_ENGINE"] = "openai"
            environ[f"AUDIO_{kind}_OPENAI_API_BASE_URL"] = f"{speech.url}/v1"
            environ[f"AUDIO_{kind}_OPENAI_API_KEY"] = "a-name-of-its-own"
    log = folder / "webui.log"
    with log.open("w") as file:
        command = [str(program), "serve", "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=file, stderr=file)
    try:
        wait_ready(process, f"http://127.0.0.1:{port}/health", log, within_s=READY_S)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=60)


def sign_up(page: Page, url: str) -> None:
    """Become its first person, and close what is new in this version."""
    page.goto(f"{url}/auth")
    page.get_by_role("button", name="Get started").click()
    page.locator("input[autocomplete=name]").fill("Ada")
    page.locator("input[type=email]").fill("ada@example.org")
    for secret in page.locator("input[type=password]").all():
        secret.fill("a long secret")
    page.locator("button[type=submit]").click()
    page.get_by_role("button", name="Okay, Let's Go!").dispatch_event("click")  # it moves for long


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A gateway over an engine that calls what it is shown."""
    environ = {"MIDSTREAM_MODEL": "scripted"}
    with serving(tmp_path_factory.mktemp("scripted"), environ, command=scripted_server.COMMAND) as shared:
        yield shared


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A gateway with the demo model that hears and speaks, which the tests that need it start."""
    environ = {"MIDSTREAM_SPEECH": "both", "MIDSTREAM_SPEECH_RECOGNIZER": str(GRAMMAR)}
    server = ServerProcess(tmp_path_factory.mktemp("demo"), environ)
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
    with running(program, [scripted, demo], tmp_path_factory.mktemp("webui"), speech=demo) as url:
        yield url


@pytest.fixture(scope="module")
def page(webui: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """Its page, where somebody signed up and closed what is new in this version. They say a sentence once it listens."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("NOT TESTED: there is no `chromium` on PATH (Debian: apt-get install chromium)")
    options = ["--headless", "--no-sandbox", "--disable-gpu", MICROPHONE]
    if shutil.which("espeak-ng") is not None:
        sound = recording(SENTENCE, tmp_path_factory.mktemp("microphone"))
        options.append(f"--use-file-for-fake-audio-capture={sound}%noloop")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=options)
        page = browser.new_page(viewport={"width": 1280, "height": 840}, permissions=["microphone"])
        page.add_init_script(LISTEN_IN)
        page.set_default_timeout(PATIENCE_MS)
        sign_up(page, webui)
        yield page
        browser.close()


def start_chat(page: Page, webui: str, model: str, text: str) -> None:
    """Begin a chat with a model."""
    page.goto(f"{webui}/?models={model}")
    expect(page.locator("#chat-input")).to_be_visible(timeout=PATIENCE_MS)
    page.locator("#chat-input").click()
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def expect_text(page: Page, text: str) -> None:
    expect(page.locator("#messages-container")).to_contain_text(text, timeout=PATIENCE_MS)


def test_a_tool_is_called_and_its_result_told(page: Page, webui: str) -> None:
    start_chat(page, webui, "scripted", "What is the weather in Oslo?")
    expect_text(page, "get_current_timestamp")
    expect_text(page, 'The weather in Oslo: {"current_timestamp"')


def test_a_chat_has_the_title_that_the_model_gave_it(page: Page, webui: str) -> None:
    start_chat(page, webui, "scripted", "Is there anything to call?")
    expect(page).to_have_title(re.compile("The weather in Oslo"), timeout=PATIENCE_MS)


def test_stop_stops_the_model(page: Page, webui: str, scripted: ServerProcess) -> None:
    with ends_of_turns(scripted) as ends:
        start_chat(page, webui, "scripted", "Count from 1 to 500.")
        expect_text(page, " 20,")
        page.get_by_role("button", name="Stop", exact=True).dispatch_event("click")
        assert stopped(ends)["steps_after"] == 0
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_hidden(timeout=PATIENCE_MS)
    expect(page.locator("#messages-container")).not_to_contain_text(" 490,")


def test_the_demo_model_chats(page: Page, webui: str, demo: ServerProcess) -> None:
    demo.bring_back()
    start_chat(page, webui, "midstream-demo", "Count from 1 to 12.")
    expect_text(page, "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12")


@needs_a_voice
def test_what_is_dictated_becomes_the_message(page: Page, webui: str, demo: ServerProcess) -> None:
    demo.bring_back()
    page.goto(f"{webui}/?models=midstream-demo")
    page.locator("#voice-input-button").click()
    expect(page.get_by_text(RECORDED, exact=True)).to_be_visible(timeout=PATIENCE_MS)
    page.locator("#confirm-recording-button").click()
    received = re.compile(SENTENCE.removesuffix("."), re.IGNORECASE)
    expect(page.locator("#chat-input")).to_contain_text(received, timeout=PATIENCE_MS)


@needs_a_voice
def test_a_reply_is_read_aloud(page: Page, webui: str, demo: ServerProcess) -> None:
    demo.bring_back()
    start_chat(page, webui, "midstream-demo", "What is 7 plus 8?")
    expect_text(page, "15")
    with page.expect_response("**/api/v1/audio/speech", timeout=PATIENCE_MS) as answered:
        page.locator("[id^=speak-button-]").last.click()
    assert answered.value.ok
    assert answered.value.headers["content-type"] == "audio/mpeg"
    page.wait_for_function("window.heardS > 0.5", timeout=PATIENCE_MS)
