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

from tests.browser.test_voice import MICROPHONE, needs_a_voice, recording
from tests.clients.conftest import GRAMMAR
from tests.clients.environments import NotInstallable, program_of
from tests.clients.open_webui import running, sign_up
from tests.clients.tools import scripted_server
from tests.clients.turn_log import ends_of_turns, stopped
from tests.server_process import ServerProcess, serving

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
