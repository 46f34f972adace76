"""Waits for the ends of turns in a server's log: another process has no other event for them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.server_process import ServerProcess

Ends = Iterator[dict[str, Any]]


@contextmanager
def ends_of_turns(server: ServerProcess, *, since: int | None = None) -> Iterator[Ends]:
    """What the server logs of each turn that ends, as it comes: from now on, or from a size that its log once had."""
    size = server.log.stat().st_size if since is None else since
    command = ["tail", "-c", f"+{size + 1}", "-f", str(server.log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as tail:
        assert tail.stdout is not None
        try:
            lines = (json.loads(line) for line in tail.stdout if line.startswith(b"{"))
            yield (line for line in lines if line["event"] == "turn ended")
        finally:
            tail.terminate()


def stopped(ends: Ends) -> dict[str, Any]:
    """The next turn that ended since its client left; waits for it."""
    return next(end for end in ends if end["cause"] == "disconnect")
