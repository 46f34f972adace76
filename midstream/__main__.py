"""`python -m midstream` chats in the terminal, as `midstream chat` of an installed service does."""

from __future__ import annotations

import sys
from importlib.util import find_spec

PARTS = ("click", "markdown_it", "prompt_toolkit", "rich")
"""Packages that the terminal chat needs besides the client."""


def main() -> None:
    """Chat, or say what to install if a package is missing."""
    if missing := [part for part in PARTS if find_spec(part) is None]:
        sys.exit(f"A chat in the terminal needs {', '.join(missing)}: pip install 'midstream[terminal]'")
    from midstream.terminal import chat  # noqa: PLC0415 - it needs what was just looked for

    chat(prog_name="python -m midstream")


if __name__ == "__main__":
    main()
