"""The page as it is delivered: in few requests, from the browser's own store the next time, and from its sources where it must."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from playwright.async_api import BrowserContext, expect

from app import routes
from tests.app.in_process_service import serving
from tests.browser.chat_page import ChatPage
from tests.server_process import ServerProcess

FETCHED = (
    """() => performance.getEntriesByType("resource").map(({ name, transferSize }) => [name, transferSize])"""
)
HIGHLIGHTER = """() => performance.getEntriesByType("resource").some(({ name }) => name.includes("/vendor/highlight."))"""


async def fetched(chat: ChatPage) -> dict[str, int]:
    """What the page loaded beside itself, with the bytes that came over the line."""
    found: list[tuple[str, int]] = await chat.client(FETCHED)
    return {name.partition("/static/")[2]: size for name, size in found}


async def test_a_first_visit_is_a_handful_of_requests_and_the_next_one_takes_them_from_the_browsers_store(
    chat: ChatPage, context: BrowserContext, server: ServerProcess
) -> None:
    """Each costs a round trip, and the next one in a row another; the highlighter comes when there is time."""
    await chat.open(server.url)
    await chat.page.wait_for_function(HIGHLIGHTER)
    names = [name.partition(".")[0] for name in await fetched(chat)]
    own = sorted(name for name in names if not name.startswith(("icon", "vendor/")))
    assert own == ["start", "style", "theme-early"]
    await chat.reload()
    await chat.page.wait_for_function(HIGHLIGHTER)
    assert {name: size for name, size in (await fetched(chat)).items() if size} == {}
    session = await context.new_cdp_session(chat.page)  # and the page can be installed
    manifest = await session.send("Page.getAppManifest")
    assert manifest["url"].endswith("/static/manifest.webmanifest")
    assert manifest["errors"] == []
    found = await session.send("Page.getInstallabilityErrors")
    errors = {error["errorId"] for error in found["installabilityErrors"]}
    assert errors <= {"in-incognito"}  # as every visitor of these tests is


MODULES = {
    "index.html": """<!doctype html><link rel="icon" href="data:,"><link rel="stylesheet" href="static/a.css">
    <script type="module" src="static/main.js"></script>""",
    "a.css": "body { color: red }",
    "main.js": """
        import { told } from "./told.js";
        import { say, said as heard } from "./log.js";
        import { NAME, twice } from "./ui/view.js";
        // not said
        say(`${told}, main, ${NAME} ${twice(2)} ${/[/]\\/'/.test("//'")}`);
        await load();
        async function load() {
          const loaded = await Promise.all([import("./lazy.js"), import("./lazy.js"), import("./ui/view.js")]);
          say(loaded[0].late === loaded[1].late && loaded[2].twice === twice);
          document.title = heard.join("; ");
        }
    """,
    "told.js": 'import { say } from "./log.js";\nsay("told");\nexport const told = "heard";',
    "log.js": "export const said = [];\nexport function say(text) { said.push(String(text)); }",
    "ui/view.js": """
        import { big } from "../vendor/big.js";
        export const twice = (number) => 2 * number / 1;
        export { big as NAME };
    """,
    "lazy.js": """
        import { say } from "./log.js";
        import { deep } from "./ui/deep.js";
        say(`lazy ${deep}`);
        export class late {}
    """,
    "ui/deep.js": """
        import { heavy } from "../vendor/heavy.js";
        const sheet = /** @type {boolean} */ (isSheet(import.meta.resolve("../a.css")));
        function isSheet(address) { return /^http:.*\\/static\\/a[.0-9a-f]*\\.css$/.test(address); }
        export const deep = `${heavy} at ${sheet}`;
    """,
    "vendor/big.js": 'export const big = "big";',
    "vendor/heavy.js": 'export const heavy = "heavy";',
}


@pytest.mark.parametrize("joined", [True, False])
async def test_joined_modules_do_what_they_do_one_by_one(
    chat: ChatPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, joined: bool
) -> None:
    """The browser itself is asked what the modules mean."""
    page = tmp_path / "page"
    files = MODULES if joined else MODULES | {"told.js": f"{MODULES['told.js']}\nexport default 1;"}
    for path, text in files.items():
        (page / path).parent.mkdir(parents=True, exist_ok=True)
        (page / path).write_text(dedent(text))
    monkeypatch.setattr(routes, "PAGE", page)
    async with serving(tmp_path) as running:
        await chat.page.goto(running.url)
        loads, lazy = "heard, main, big 4 true", "lazy heavy at true"
        order = (
            [lazy, loads] if joined else [loads, lazy]
        )  # one script runs each module before those that load it
        title = "; ".join(["told", *order, "true"])
        await expect(chat.page).to_have_title(title)
        assert ("main.js" in await fetched(chat)) is not joined
