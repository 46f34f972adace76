"""Renders the page's icons: `python page/icons.py` draws app/page/icon.svg with Chromium into app/page/icons.

It records which drawing (by SHA-256) made which pictures, so that check.py needs no browser. It needs the tools of
`make install`, and `chromium` on PATH.
"""
# ruff: noqa: INP001 - a folder of build files, no package

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, sync_playwright

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "app" / "page"
ICONS = PAGE / "icons"
BACKGROUND = "#0c6b62"


class Picture(NamedTuple):
    """One file. `share`: the part of its side that the drawing takes; a background fills the rest. None: no background."""

    name: str
    pixels: int
    share: float | None = None


PICTURES = (
    Picture("icon-192.png", 192),
    Picture("icon-512.png", 512),
    # Systems cut the maskable ones to any shape that leaves the inner 80 % of the width.
    Picture("maskable-192.png", 192, 0.84),
    Picture("maskable-512.png", 512, 0.84),
    Picture("touch-180.png", 180, 1.0),  # for iOS, which rounds the corners itself and shows no transparency
)


def main() -> int:
    """Render all pictures."""
    ICONS.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for picture in PICTURES:
            (ICONS / picture.name).write_bytes(render(browser, picture))
        browser.close()
    sums = {
        "sources": {"app/page/icon.svg": sha256(PAGE / "icon.svg"), "page/icons.py": sha256(Path(__file__))},
        "files": {picture.name: sha256(ICONS / picture.name) for picture in PICTURES},
    }
    (ICONS / "made-of.json").write_text(json.dumps(sums, indent=2) + "\n")
    return 0


def render(browser: Browser, picture: Picture) -> bytes:
    """Return one picture as PNG."""
    size = {"width": picture.pixels, "height": picture.pixels}
    page = browser.new_page(viewport=size)
    background = "transparent" if picture.share is None else BACKGROUND
    side = picture.pixels * (picture.share or 1.0)
    drawing = (PAGE / "icon.svg").read_text().replace("<svg ", f'<svg width="{side}" height="{side}" ', 1)
    centred = f"margin:0;height:100vh;display:grid;place-items:center;background:{background}"
    page.set_content(f'<body style="{centred}">{drawing}</body>')
    shown = page.screenshot(omit_background=True)
    page.close()
    return shown


def sha256(path: Path) -> str:
    """Return the sum of a file, in hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
