"""The app of Capacitor, as far as it runs without a phone: its projects are written, and its pages run under their origin."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, Route, expect
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.app.in_process_service import InProcessService, serving
from tests.browser.conftest import Complaints
from tests.browser.examples.chat import Chat, counting, installed
from tests.chaos.proxy import Proxy, proxy
from tests.clients.environments import HERE as CLIENTS
from tests.docs.documents import ROOT, snippets

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]

ANDROID, IOS = "https://localhost", "capacitor://localhost"
"""The origins of its pages in Android's web view and in that of iOS."""
PUBLIC = {"android": "android/app/src/main/assets/public", "ios": "ios/App/App/public"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With Node 22, which Capacitor asks for."""
    node = json.loads((CLIENTS / "tools" / "aisdk.json").read_text())["dependencies"]["node"]

    def edit(package: str) -> str:
        wanted = json.loads(package)
        wanted["devDependencies"]["node"] = node
        return json.dumps(wanted)

    return installed("capacitor", tmp_path_factory.mktemp("checkout"), edit)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcessService]:
    folder = tmp_path_factory.mktemp("service")
    async with serving(folder, counting(), allowed_origins=(ANDROID, IOS)) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def network(service: InProcessService) -> AsyncIterator[Proxy]:
    async with proxy(service.port) as between:
        yield between


async def npm(project: Path, verb: str, service: str) -> tuple[int | None, str]:
    """How a script of the project ended, and what it said."""
    environ = os.environ | {"CHAT_SERVICE": service}
    pipes: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
    }
    ran = await asyncio.create_subprocess_exec("npm", "run", verb, cwd=project, env=environ, **pipes)
    output, _ = await ran.communicate()
    return ran.returncode, output.decode()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def added(project: Path, network: Proxy) -> Path:
    """The project with those of Android Studio and Xcode in it."""
    (command,) = [line for line in snippets(ROOT / "examples" / "README.md", "sh") if "capacitor" in line]
    assert command.endswith("cd examples/capacitor && npm install && npm run add\n")
    code, output = await npm(project, "add", f"ws://127.0.0.1:{network.port}/v1/ws")
    assert code == 0, output
    return project


@pytest.fixture(scope="module")
def files(added: Path) -> dict[str, dict[str, bytes]]:
    """The files of the page in each project."""
    return {
        system: {path.name: path.read_bytes() for path in (added / public).iterdir() if path.is_file()}
        for system, public in PUBLIC.items()
    }


async def test_without_an_address_it_says_what_to_set(project: Path) -> None:
    code, output = await npm(project, "build", "chat.example.org")
    assert code != 0
    assert "CHAT_SERVICE has to be the chat service's address" in output


async def test_both_projects_have_the_page_and_no_worker(files: dict[str, dict[str, bytes]]) -> None:
    ours = {"index.html", "app.js", "native.js", "config.js", "style.css"}
    for found in files.values():
        assert ours <= found.keys()
        assert not {"worker.js", "install.js"} & found.keys()
        assert b"native.js" in found["index.html"]


@pytest_asyncio.fixture(loop_scope="session")
async def view(context: BrowserContext, chromium: Browser, added: Path) -> AsyncIterator[Page]:
    """A page that has the origin and the files that Android's web view has."""

    async def answer(route: Route) -> None:
        name = route.request.url.removeprefix(f"{ANDROID}/") or "index.html"
        await route.fulfill(path=added / PUBLIC["android"] / name)

    await context.route(f"{ANDROID}/**", answer)
    page = await context.new_page()
    tab = await context.new_cdp_session(page)
    place = (await tab.send("Target.getTargetInfo"))["targetInfo"]["browserContextId"]
    # Chromium asks a user whether a page from elsewhere may connect to this machine, where the test's service is.
    requested = {"permission": {"name": "loopback-network"}, "setting": "granted", "origin": ANDROID}
    browser = await chromium.new_browser_cdp_session()
    await browser.send("Browser.setPermission", requested | {"browserContextId": place})
    yield page
    await page.close()


async def test_in_a_web_view_a_reply_is_stopped_and_survives_a_lost_line(
    view: Page, context: BrowserContext, network: Proxy, complaints: Complaints
) -> None:
    complaints.expected = ["WebSocket connection", "ERR_INTERNET_DISCONNECTED"]
    await view.goto(f"{ANDROID}/")
    chat = Chat(view)
    await chat.send("Count, please.")
    await chat.counts_to(5)
    await context.set_offline(True)
    network.cut()
    await expect(chat.status).to_contain_text("You are offline.")
    await context.set_offline(False)
    await chat.counts_to(40)
    seen = await chat.stop()
    await view.reload()
    await chat.has("Count, please.", seen)


async def test_the_service_takes_the_origins_of_both_systems_and_no_other(service: InProcessService) -> None:
    for origin in (ANDROID, IOS):
        async with service.socket(origin=origin) as socket:
            assert socket.ready["type"] == "ready"
    with pytest.raises(InvalidStatus, match="403"):
        async with connect(service.ws_url, origin="capacitor://elsewhere"):
            pass
