"""Which tests one worker runs one after another: those of a file, and those of all files that share the server."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[1]
_SHARED = re.compile(r"\bserver: ServerProcess\b")
"""How a test asks for the shared server, which takes ten seconds of a processor to start."""


class SharedServerScheduling(LoadScopeScheduling):
    """Gives a worker a file, or all files that share the server."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return "the shared server" if _shares(file) else file


@cache
def _shares(file: str) -> bool:
    return _SHARED.search((ROOT / file).read_text(encoding="utf-8")) is not None
