"""Checks that the committed bundles and icons were made from their sources, and that the page's modules can be joined.

It compares SHA-256 sums with those that the builds recorded. It needs neither node nor a browser nor network, and knows
nothing of the builds themselves (build.mjs, icons.py). With `--rebuild` it also rebuilds the bundles (`npm ci`,
`npm run build`), and requires the same bytes.
"""
# ruff: noqa: INP001 - a folder of build files, no package

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from app.es_modules import BundleError
from app.page_files import built

SOURCES = Path(__file__).resolve().parent
ROOT = SOURCES.parent
PAGE = ROOT / "app" / "page"
BUNDLE = PAGE / "vendor"


class Made(NamedTuple):
    """The files of a build. `record` has the sums of its sources, by their paths below `sources`, and of the files beside it."""

    what: str
    record: Path
    sources: Path
    remedy: str


BUNDLES = Made(
    "the bundle",
    BUNDLE / "manifest.json",
    SOURCES,
    "run `npm ci && npm run build` in page/ and commit what it writes",
)
ICONS = Made(
    "the icons",
    PAGE / "icons" / "made-of.json",
    ROOT,
    "run `.venv/bin/python page/icons.py` and commit what it writes",
)


def changed(folder: Path, sums: dict[str, str]) -> list[str]:
    """Return the names in `sums` whose file in `folder` is missing, or has another SHA-256 sum."""
    return [name for name, expected in sums.items() if _sha256(folder / name) != expected]


def differences(made: Made) -> list[str]:
    """Return how committed files differ from their sources; empty if they don't."""
    sums = json.loads(made.record.read_text())
    stale = [
        f"{_shown(made.sources, name)} is not what {made.what} was made of"
        for name in changed(made.sources, sums["sources"])
    ]
    edited = [
        f"{_shown(made.record.parent, name)} is not what the build made"
        for name in changed(made.record.parent, sums["files"])
    ]
    return stale + edited


def complaints() -> Iterator[str]:
    """Yield what is wrong and what to do about it; nothing if nothing is wrong."""
    for made in (BUNDLES, ICONS):
        if found := differences(made):
            yield from (*found, made.remedy)
    try:
        built(PAGE)
    except BundleError as why:
        yield str(why)
        yield "until then the service serves the page file by file, which takes seconds on a slow line"


def rebuild() -> None:
    """Build the bundles from the locked sources. Raises CalledProcessError if npm fails."""
    for command in (["npm", "ci"], ["npm", "run", "build"]):
        subprocess.run(command, cwd=SOURCES, check=True)  # noqa: S603 - constant commands


def main(arguments: list[str]) -> int:
    """Print what is wrong; return the exit status, 1 if anything is wrong."""
    found = list(complaints())
    if "--rebuild" in arguments and not found:
        before = BUNDLES.record.read_bytes()
        rebuild()
        if BUNDLES.record.read_bytes() != before:
            found = ["a fresh build makes other files than the committed ones", BUNDLES.remedy]
    for line in found:
        sys.stderr.write(f"{line}\n")
    return 1 if found else 0


def _shown(folder: Path, name: str) -> str:
    return (folder / name).relative_to(ROOT).as_posix()


def _sha256(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
