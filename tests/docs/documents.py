"""The documents that people read, and the code in them."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
README = ROOT / "README.md"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
PROTOCOL = ROOT / "PROTOCOL.md"
GUIDES = sorted((ROOT / "docs").glob("*.md"))
DESIGN = sorted((ROOT / "docs" / "design").glob("*.md"))
DOCUMENTS = [
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


def snippets(document: Path, language: str) -> list[str]:
    """The code of one language in a document, in its order."""
    return [code for named, code in _CODE.findall(document.read_text()) if named == language]


def prose(document: Path) -> str:
    """A document without its code."""
    return _CODE.sub("", document.read_text())


async def run_program(*command: str, **environ: str) -> tuple[int, str]:
    """The exit status of a program, and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env=os.environ | environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, (out or err).decode()
