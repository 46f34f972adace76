"""The papers that people read, and the code in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
README = ROOT / "README.md"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
PROTOCOL = ROOT / "PROTOCOL.md"
GUIDES = sorted((ROOT / "docs").glob("*.md"))
DESIGN = sorted((ROOT / "docs" / "design").glob("*.md"))
PAPERS = [
    README,
    ARCHITECTURE,
    PROTOCOL,
    *GUIDES,
    *DESIGN,
    *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    ROOT / "deploy" / "README.md",
    ROOT / "demo_model" / "README.md",
    ROOT / "examples" / "README.md",
    ROOT / "app" / "page" / "client" / "README.md",
]

_CODE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def snippets(paper: Path, language: str) -> list[str]:
    """The code of one language in a paper, in its order."""
    return [code for named, code in _CODE.findall(paper.read_text()) if named == language]


def prose(paper: Path) -> str:
    """A paper without its code."""
    return _CODE.sub("", paper.read_text())
