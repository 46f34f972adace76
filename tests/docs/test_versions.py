"""The guide to clients names the versions that were run."""

from __future__ import annotations

import json
import re

from tests.clients.environments import HERE
from tests.docs.documents import ROOT


def pins() -> dict[str, str]:
    """Version by package, as installed for the tests."""
    folders = (HERE, HERE / "tools")
    files = [ROOT / "constraints.txt", *(file for folder in folders for file in folder.glob("*.txt"))]
    lines = [
        line.split("==") for file in reversed(files) for line in file.read_text().splitlines() if "==" in line
    ]
    node = [json.loads(file.read_text()) for folder in folders for file in folder.glob("*.json")]
    pinned = [(name, pin) for one in node for name, pin in one.get("dependencies", {}).items()]
    return dict(lines) | {f"{name} for Node": pin for name, pin in pinned}


def test_the_guide_names_the_versions_that_are_run() -> None:
    guide = (ROOT / "docs" / "clients.md").read_text()
    section = guide.partition("## What was run")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\S+)`( for Node)?(?: for Python)? \| ([\d.]+)", section, re.MULTILINE)
    assert len(rows) >= 7
    assert {name + node: version for name, node, version in rows}.items() <= pins().items()


def test_the_examples_need_the_versions_that_are_installed_here() -> None:
    """A site beside the service, in the same environment, changes nothing of it."""
    needed = (ROOT / "examples" / "fastapi-login" / "requirements.txt").read_text().split()
    assert set(needed) <= set((ROOT / "constraints.txt").read_text().split())
