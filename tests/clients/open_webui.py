"""Open WebUI as it comes from PyPI, its settings left as they are: its process, and a person who signed up on its page."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page

from tests.server_process import ServerProcess, free_port

READY_S = 900


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
        _until_it_answers(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=60)


def _until_it_answers(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            time.sleep(0.2)  # another process's readiness has no event to wait for
        else:
            return
    raise AssertionError(f"Open WebUI does not answer:\n{log.read_text()[-3000:]}")


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
