"""The site that logs people in, as a process with an environment of its own, beside a real service: requests, sockets, pages."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import BrowserContext, Page, expect

from tests.app.in_process_service import InProcessService, serving
from tests.browser.chat_page import ChatPage
from tests.browser.conftest import Complaints
from tests.browser.examples.chat import Chat, counting
from tests.browser.page_states import violations
from tests.browser.static_server import serving_site
from tests.clients.environments import NotInstallable, python_with
from tests.docs.documents import ROOT, snippets
from tests.jwt_signing import SECRET
from tests.server_process import free_port

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]

EXAMPLE = ROOT / "examples" / "fastapi-login"
PORT = free_port()
ORIGIN = f"http://127.0.0.1:{PORT}"
PASSWORDS = {"ann": "correct horse", "bob": "battery staple"}
REFRESH_S = 3.0
"""How long the service waits for a new token."""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has what the site needs."""
    needs = shutil.copy(EXAMPLE / "requirements.txt", tmp_path_factory.mktemp("needs") / "fastapi-login.txt")
    try:
        return str(python_with(needs, print))
    except NotInstallable as why:
        pytest.skip(f"NOT TESTED: {why}")


@pytest.fixture(scope="module")
def users(python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of those who may log in."""
    file = tmp_path_factory.mktemp("users") / "users.json"
    for name, password in PASSWORDS.items():
        add = [python, str(EXAMPLE / "people.py"), name]
        subprocess.run(
            add, env=os.environ | {"CHAT_USERS": str(file)}, input=f"{password}\n".encode(), check=True
        )
    return file


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcessService]:
    settings = {"jwt_secret": SECRET, "allowed_origins": (ORIGIN,)}
    folder = tmp_path_factory.mktemp("service")
    async with serving(folder, counting(), refresh_s=REFRESH_S, **settings) as running:
        yield running


@pytest.fixture(scope="module")
def site(python: str, users: Path, service: InProcessService) -> Iterator[str]:
    (command,) = [line for line in snippets(ROOT / "examples" / "README.md", "sh") if "people.py" in line]
    install, add, start = [line.split()[1:] for line in command.splitlines()]
    assert install == ["-m", "pip", "install", "-r", "examples/fastapi-login/requirements.txt"]
    assert add == ["examples/fastapi-login/people.py", "ann"]
    assert start == ["examples/fastapi-login/app.py"]
    environ = {"CHAT_SECRET": SECRET, "CHAT_SERVICE": service.ws_url, "CHAT_USERS": str(users)}
    app = (python, str(EXAMPLE / "app.py"))
    with serving_site(*app, at=users.parent, port=PORT, PORT=str(PORT), CHAT_TOKEN_S="2", **environ):
        yield ORIGIN


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(site: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=site) as client:
        yield client


async def log_in(visitor: httpx.AsyncClient, name: str) -> httpx.Response:
    return await visitor.post("/login", data={"name": name, "password": PASSWORDS[name]})


async def token(visitor: httpx.AsyncClient) -> str:
    return str((await visitor.post("/chat-token")).json()["token"])


@pytest.mark.parametrize("secret", ["", "too short"])
async def test_without_a_secret_it_says_what_to_set(python: str, secret: str) -> None:
    environ = os.environ | {"CHAT_SECRET": secret}
    app = await asyncio.create_subprocess_exec(
        python, str(EXAMPLE / "app.py"), env=environ, stderr=asyncio.subprocess.PIPE
    )
    _, stderr = await app.communicate()
    assert app.returncode == 1
    assert b"CHAT_SECRET needs 32 characters or more: the same that" in stderr
    assert b"MIDSTREAM_JWT_SECRET" in stderr


def test_passwords_are_kept_as_hashes_that_nobody_else_reads(users: Path) -> None:
    assert users.stat().st_mode & 0o077 == 0
    assert not any(password in users.read_text() for password in PASSWORDS.values())


@pytest.mark.parametrize(("name", "password"), [("ann", "battery staple"), ("eve", "correct horse")])
async def test_who_does_not_know_the_password_stays_out(
    visitor: httpx.AsyncClient, name: str, password: str
) -> None:
    answer = await visitor.post("/login", data={"name": name, "password": password})
    assert answer.status_code == 401
    assert "The name or the password is wrong." in answer.text
    assert (await visitor.post("/chat-token")).status_code == 401
    assert (await visitor.get("/")).headers["location"] == "/login"


async def test_no_script_and_no_other_site_gets_the_session(visitor: httpx.AsyncClient) -> None:
    cookie = (await log_in(visitor, "ann")).headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie


@pytest.mark.parametrize("origin", ["https://elsewhere.example", "null"])
async def test_no_other_sites_page_logs_anybody_in_or_out(visitor: httpx.AsyncClient, origin: str) -> None:
    ann = {"name": "ann", "password": PASSWORDS["ann"]}
    for path in ("/login", "/logout"):
        answer = await visitor.post(path, data=ann, headers={"Origin": origin})
        assert (answer.status_code, answer.headers.get("set-cookie")) == (403, None)
    assert (await visitor.post("/login", data=ann, headers={"Origin": ORIGIN})).status_code == 303


async def test_two_people_do_not_see_each_others_chats(
    visitor: httpx.AsyncClient, service: InProcessService, site: str
) -> None:
    await log_in(visitor, "ann")
    async with service.socket({"token": await token(visitor)}) as ann:
        await ann.send(type="send", client_msg_id="1", content="A secret.")
        await ann.next("accepted")
        await ann.send(type="cancel")
        await ann.next("done")
    async with httpx.AsyncClient(base_url=site) as other:
        await log_in(other, "bob")
        async with service.socket({"token": await token(other)}) as bob:
            assert (await bob.ask(type="conversations"))["conversations"] == []
            assert (await bob.ask(type="history"))["code"] == "not_found"


async def test_who_has_logged_out_gets_no_token_and_is_disconnected(
    visitor: httpx.AsyncClient, service: InProcessService
) -> None:
    await log_in(visitor, "ann")
    session = visitor.cookies["session"]
    async with service.socket({"token": await token(visitor)}) as socket:
        await visitor.post("/logout")
        assert "session" not in visitor.cookies
        again = await visitor.post("/chat-token", headers={"Cookie": f"session={session}"})
        assert again.status_code == 401
        assert (await socket.closed())[0] == 4401


async def enter(context: BrowserContext, site: str, name: str, password: str) -> Page:
    """A tab in which somebody filled in the form."""
    page = await context.new_page()
    await page.goto(site)
    await page.get_by_label("Name").fill(name)
    await page.get_by_label("Password").fill(password)
    await page.get_by_role("button", name="Log in").click()
    return page


async def test_a_page_stays_connected_while_its_user_is_logged_in(
    context: BrowserContext, site: str, complaints: Complaints
) -> None:
    complaints.expected = ["401"]
    page = await enter(context, site, "bob", "wrong password")
    await expect(page.get_by_role("alert")).to_have_text("The name or the password is wrong.")
    await page.close()
    page = await enter(context, site, "bob", PASSWORDS["bob"])
    chat = Chat(page)
    await expect(chat.status).to_have_text("You are bob.")
    await chat.send("Count, please.")
    await chat.counts_to(5)
    async with page.expect_request("**/chat-token"):
        pass  # the first token has expired
    await chat.counts_to(100)  # of 20 in a second: past the time for a new one
    seen = await chat.stop()
    await page.reload()
    await chat.has("Count, please.", seen)
    await page.close()


async def test_logging_out_ends_the_chat_in_every_tab(context: BrowserContext, site: str) -> None:
    first = await enter(context, site, "ann", PASSWORDS["ann"])
    await expect(Chat(first).status).to_have_text("You are ann.")
    second = await context.new_page()
    await second.goto(site)
    await expect(Chat(second).status).to_have_text("You are ann.")
    await first.get_by_role("button", name="Log out").click()
    for page in (first, second):
        await expect(page.get_by_role("heading")).to_have_text("Log in")
    await second.goto(site)
    await expect(second.get_by_role("heading")).to_have_text("Log in")
    await first.close()
    await second.close()


async def test_no_rule_for_accessible_pages_is_broken(context: BrowserContext, site: str, axe: str) -> None:
    page = await context.new_page()
    await page.goto(site)
    await page.evaluate(axe)
    assert await violations(ChatPage(page)) == []
    await page.close()
    page = await enter(context, site, "ann", PASSWORDS["ann"])
    await expect(Chat(page).status).to_have_text("You are ann.")
    await page.evaluate(axe)
    assert await violations(ChatPage(page)) == []
    await page.close()
