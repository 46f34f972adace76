"""The served files of the page: their headers and encodings, over real HTTP."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import brotli
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from app import page_files, routes
from app.routes import PAGE
from tests.app.in_process_service import InProcessService, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

FOREVER = "public, max-age=31536000, immutable"
NAMED = re.compile(r'(?:href|src)="(static/[^"]+)"')
DECODE = {"br": brotli.decompress, "gzip": gzip.decompress, None: bytes}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcessService]:
    """One service for all tests: they only read."""
    async with serving(tmp_path_factory.mktemp("page")) as service:
        yield service


async def fetch(
    running: InProcessService, path: str, *, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and the raw bytes of an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    sent = {"Host": f"127.0.0.1:{running.port}", "Connection": "close"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "\r\n"]
    writer.write("\r\n".join(lines).encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    status, *found = head.decode().split("\r\n")
    return int(status.split()[1]), dict(line.split(": ", 1) for line in found), body


async def named(running: InProcessService) -> list[str]:
    """Return the files that the page names."""
    return [f"/{path}" for path in NAMED.findall((await fetch(running, "/"))[2].decode())]


@pytest.mark.parametrize(
    ("accepted", "coding"), [("gzip, deflate, br", "br"), ("gzip, deflate", "gzip"), ("identity", None)]
)
@pytest.mark.parametrize(
    "path", ["/", "/static/main.js", "/static/client/chat-client.js", "/static/vendor/markdown.js"]
)
async def test_a_file_comes_in_the_coding_that_is_asked_for(
    running: InProcessService, path: str, accepted: str, coding: str | None
) -> None:
    plain = (await fetch(running, path))[2]
    if path != "/":  # guides tell people to import the readable file
        assert plain == (PAGE / path.removeprefix("/static/")).read_bytes()
    status, headers, body = await fetch(running, path, Accept_Encoding=accepted)
    assert (status, headers.get("content-encoding"), headers["vary"]) == (200, coding, "Accept-Encoding")
    assert DECODE[coding](body) == plain
    assert int(headers["content-length"]) == len(body)


async def test_what_the_page_names_is_kept_for_good(running: InProcessService) -> None:
    """Before the first message a page is few requests: itself, its sheet, its scripts; icons and the manifest come later."""
    assert len([path for path in await named(running) if path.endswith((".js", ".css"))]) == 4
    paths = [path for path in await named(running) if not path.endswith(".webmanifest")]
    assert any("start." in path for path in paths)
    assert any("style." in path for path in paths)
    for path in paths:
        status, headers, _ = await fetch(running, path)
        assert (path, status, headers["cache-control"]) == (path, 200, FOREVER)


async def test_a_first_visit_is_few_bytes(running: InProcessService) -> None:
    """Of all that the page names: 120 KB, within a budget of 150."""
    paths = ["/", *await named(running)]
    sizes = {path: len((await fetch(running, path, Accept_Encoding="br"))[2]) for path in paths}
    assert sum(sizes.values()) < 150_000, sizes


@pytest.mark.parametrize("path", ["/", "/static/main.js", "/static/manifest.webmanifest"])
@pytest.mark.parametrize("accepted", ["br", "gzip", "identity"])
async def test_what_did_not_change_is_not_sent_again(
    running: InProcessService, path: str, accepted: str
) -> None:
    _, first, _ = await fetch(running, path, Accept_Encoding=accepted)
    for known in (first["etag"], f'"other", W/{first["etag"]}', "*"):
        status, headers, body = await fetch(running, path, Accept_Encoding=accepted, If_None_Match=known)
        assert (status, body) == (304, b"")
        assert {name: headers[name] for name in ("etag", "cache-control", "vary")} == {
            name: first[name] for name in ("etag", "cache-control", "vary")
        }
    assert first["cache-control"] == "no-cache"


async def test_bytes_of_another_coding_are_others(running: InProcessService) -> None:
    _, coded, _ = await fetch(running, "/", Accept_Encoding="br")
    assert (await fetch(running, "/", If_None_Match=coded["etag"]))[0] == 200


async def test_head_is_the_head_of_get(running: InProcessService) -> None:
    for path in ["/", "/static/main.js", *await named(running)]:
        _, requested, _ = await fetch(running, path, Accept_Encoding="br")
        status, headers, body = await fetch(running, path, method="HEAD", Accept_Encoding="br")
        assert (status, body) == (200, b"")
        assert headers | {"date": ""} == requested | {"date": ""}


async def test_a_file_of_another_version_is_answered_for_this_once(running: InProcessService) -> None:
    """While replicas of two versions serve: no cache keeps a file under a name with another sum."""
    for path in ("/static/start.0123456789abcdef.js", "/static/main.0123456789abcdef.js"):
        status, headers, _ = await fetch(running, path)
        assert (status, headers["cache-control"]) == (200, "no-store")
    assert (await fetch(running, "/static/nothing.0123456789abcdef.js"))[0] == 404


@pytest.mark.parametrize("path", ["/static/start.0123456789abcdef.js", "/static/main.js"])
async def test_nothing_is_posted_to_a_file(running: InProcessService, path: str) -> None:
    assert (await fetch(running, path, method="POST"))[0] == 405


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/static/main.js", "text/javascript; charset=utf-8"),
        ("/static/css/theme.css", "text/css; charset=utf-8"),
        ("/static/icon.svg", "image/svg+xml"),
        ("/static/icons/icon-192.png", "image/png"),
        ("/static/manifest.webmanifest", "application/manifest+json"),
        ("/static/client/frames.d.ts", "text/plain; charset=utf-8"),
        ("/static/client/LICENSE", "text/plain; charset=utf-8"),
    ],
)
async def test_each_kind_of_file_is_named(running: InProcessService, path: str, media_type: str) -> None:
    """Whatever the machine's list of types says: browsers are told not to guess."""
    assert (await fetch(running, path))[1]["content-type"] == media_type


def png_size(content: bytes) -> tuple[int, int]:
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    return int.from_bytes(content[16:20]), int.from_bytes(content[20:24])


async def test_the_manifest_names_icons_that_are_there(running: InProcessService) -> None:
    manifest = json.loads((await fetch(running, "/static/manifest.webmanifest"))[2])
    assert (manifest["display"], manifest["start_url"], manifest["scope"]) == ("standalone", "../", "../")
    pictures = [icon for icon in manifest["icons"] if icon["type"] == "image/png"]
    assert {(icon["sizes"], icon["purpose"]) for icon in pictures} == {
        (sizes, purpose) for sizes in ("192x192", "512x512") for purpose in ("any", "maskable")
    }
    for icon in pictures:
        content = (await fetch(running, f"/static/{icon['src']}"))[2]
        assert "{}x{}".format(*png_size(content)) == icon["sizes"]


async def test_an_edited_source_is_seen_at_the_next_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = shutil.copytree(PAGE, tmp_path / "page")
    monkeypatch.setattr(routes, "PAGE", page)
    monkeypatch.setattr(page_files, "LOOK_S", 0.0)
    async with serving(tmp_path) as running:
        before = await named(running)
        source = page / "main.js"
        assert (await fetch(running, "/static/main.js"))[2] == source.read_bytes()
        source.write_text(f"{source.read_text()}\nconsole.log(1);\n")
        after = await named(running)
        (start,) = set(after) - set(before)
        assert (await fetch(running, start))[2].endswith(b"console.log(1);\n}\n")
        assert (await fetch(running, "/static/main.js"))[2] == source.read_bytes()


async def test_modules_that_can_t_be_joined_are_served_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = shutil.copytree(PAGE, tmp_path / "page")
    monkeypatch.setattr(routes, "PAGE", page)
    (page / "main.js").write_text("export default 1;")
    async with serving(tmp_path) as running:
        with capture_logs() as logged:
            assert (await fetch(running, "/"))[2] == (page / "index.html").read_bytes()
        for path in await named(running):
            assert (await fetch(running, path))[1]["cache-control"] == "no-cache"
    assert "app/page/main.js: write" in next(line["why"] for line in logged if "why" in line)
