"""The documents as a site: it is built whole or not at all, has every guide, and works as the service serves it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from playwright.async_api import BrowserContext, Request

from app import routes
from tests.app.in_process_service import serving
from tests.docs.documents import DESIGN, GUIDES, ROOT

BUILD = ROOT / "docs" / "site" / "build.py"
NAV = tomllib.loads((BUILD.parent / "zensical.toml").read_text())["project"]["nav"]


def build(site: Path, checkout: Path = ROOT) -> subprocess.CompletedProcess[str]:
    program = checkout / BUILD.relative_to(ROOT)
    return subprocess.run(
        [sys.executable, str(program), str(site)], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of this checkout."""
    folder = tmp_path_factory.mktemp("site") / "docs"
    ended = build(folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What is built from, to be spoilt."""
    copy = tmp_path / "checkout"
    for document in (*ROOT.glob("*.md"), *ROOT.glob("*/README.md")):
        (copy / document.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(document, copy / document.relative_to(ROOT))
    shutil.copytree(ROOT / "docs", copy / "docs")
    return copy


def places(nav: object) -> set[str]:
    return {place.strip('"') for place in re.findall(r"[\w/-]+\.md", str(nav))}


def test_every_guide_is_in_the_navigation() -> None:
    documents = {str(document.relative_to(ROOT / "docs")) for document in (*GUIDES, *DESIGN)}
    assert documents - places(NAV) == set()


def test_every_page_of_the_navigation_is_built(site: Path) -> None:
    built = {str(page.relative_to(site)) for page in site.rglob("index.html")}
    pages = {place.removesuffix(".md") for place in places(NAV)}
    assert built == {"index.html" if page == "index" else f"{page}/index.html" for page in pages}


def test_a_link_that_leads_nowhere_ends_the_build_and_leaves_the_site_as_it_was(
    checkout: Path, tmp_path: Path
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("before")
    guide = checkout / "docs" / "models.md"
    guide.write_text(guide.read_text() + "\n[here](tools.md#no-such-heading)\n")
    ended = build(tmp_path / "site", checkout)
    assert ended.returncode == 1
    assert "no-such-heading" in ended.stderr
    assert (tmp_path / "site" / "index.html").read_text() == "before"


def test_a_page_that_is_not_there_is_named(checkout: Path, tmp_path: Path) -> None:
    (checkout / "docs" / "tools.md").unlink()
    ended = build(tmp_path / "site", checkout)
    assert (ended.returncode, ended.stderr.strip()) == (
        1,
        "The navigation names what is not there: docs/tools.md.",
    )


def test_pages_load_nothing_from_elsewhere_and_hold_no_code(site: Path) -> None:
    """What the service's Content-Security-Policy would refuse."""
    for page in site.rglob("*.html"):
        html = page.read_text()
        assert re.findall(r"<(?:script|img|iframe)[^>]* src=\"(?:https?:)?//[^\"]*", html) == []
        assert re.findall(r"<link[^>]* href=\"(?:https?:)?//[^\"]*", html) == []
        assert re.findall(r"<script>|<style|<[a-z][^>]* (?:style|on[a-z]+)=", html) == []
        assert 'class="mermaid"' not in html


def test_the_page_of_what_is_not_there_finds_its_files_from_anywhere(site: Path) -> None:
    named = re.findall(r'(?:href|src)="(?!https:)([^"#]+)', (site / "404.html").read_text())
    assert len(named) > 30
    assert [
        name for name in named if not name.startswith("/docs/") or not (site / name[len("/docs/") :]).exists()
    ] == []


@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="session")
async def test_the_service_shows_it_to_a_browser(
    site: Path, tmp_path: Path, context: BrowserContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The console has nothing to complain of: a breach of the policy would be told there."""
    monkeypatch.setattr(routes, "DOCS", site)
    requested: list[str] = []

    def note(request: Request) -> None:
        requested.append(request.url)

    context.on("request", note)
    page = await context.new_page()
    async with serving(tmp_path) as running:
        answer = await page.goto(f"{running.url}/docs")
        assert answer is not None
        assert answer.headers["content-security-policy"] == routes.SECURITY_HEADERS["Content-Security-Policy"]
        await page.get_by_role("link", name="Tools and MCP").first.click()
        await page.get_by_role("heading", name="Tools on the server").first.wait_for()
        assert page.url == f"{running.url}/docs/tools/"
        await page.keyboard.press("/")
        await (
            page.get_by_role("combobox", name="Search")
            .or_(page.get_by_label("Search").locator("input"))
            .fill("seen_off")
        )
        await page.get_by_role("listbox", name="Search results").get_by_text("seen_off").first.wait_for()
        await page.goto(f"{running.url}/docs/architecture/")
        await page.get_by_text("flowchart TB").wait_for()
        assert [url for url in requested if not url.startswith(f"{running.url}/docs")] == []
        missing = await running.get("/docs/nothing")
        assert missing[0] == 404
        await page.close()


async def test_where_none_was_built_the_service_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "DOCS", tmp_path / "docs")
    async with serving(tmp_path) as running:
        for path in ("/docs", "/docs/tools/"):
            status, _, body = await running.get(path)
            assert (status, routes.DOCS_NOT_BUILT in body) == (404, True)
