"""Tells whether the committed bundle of the page is the one that its sources make.

Compares SHA-256 sums with the bundle's manifest: needs neither node nor network, and knows nothing of the build
itself (build.mjs). With `--rebuild` it also builds anew (`npm ci`, `npm run build`) and demands the same bytes.
"""
# ruff: noqa: INP001 - a folder of build files, no package

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
BUNDLE = SOURCES.parent / "app" / "page" / "vendor"


def changed(folder: Path, sums: dict[str, str]) -> list[str]:
    """Name those of `sums` whose file in `folder` is missing or has another SHA-256 sum than the one given."""
    return [name for name, expected in sums.items() if _sha256(folder / name) != expected]


def differences() -> list[str]:
    """Say what keeps the committed bundle from being the one of its sources; an empty list when all is well."""
    manifest = json.loads((BUNDLE / "manifest.json").read_text())
    stale = [
        f"page/{name} is not what the bundle was made of" for name in changed(SOURCES, manifest["sources"])
    ]
    edited = [
        f"app/page/vendor/{name} is not what the build made" for name in changed(BUNDLE, manifest["files"])
    ]
    return stale + edited


def rebuild() -> None:
    """Build the bundle from the locked sources. Raises CalledProcessError where npm fails."""
    for command in (["npm", "ci"], ["npm", "run", "build"]):
        subprocess.run(command, cwd=SOURCES, check=True)  # noqa: S603 - constant commands


def main(arguments: list[str]) -> int:
    """Print what differs; the exit status is 1 when anything does."""
    found = differences()
    if "--rebuild" in arguments and not found:
        before = (BUNDLE / "manifest.json").read_bytes()
        rebuild()
        if (BUNDLE / "manifest.json").read_bytes() != before:
            found = ["a fresh build makes other files than the committed ones"]
    for line in found:
        sys.stderr.write(f"{line}\n")
    if found:
        sys.stderr.write("run `npm ci && npm run build` in page/ and commit what it writes\n")
    return 1 if found else 0


def _sha256(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
