"""A web server that a guide or an example has people start, as a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serving_site(*command: str, at: Path, port: int, **environ: str) -> Iterator[None]:
    """A web server that writes each request to a file. One that ends with its input, as esbuild's does, has one so long."""
    how = {"cwd": at, "env": os.environ | environ, "stdin": subprocess.PIPE}
    with (at / "requests").open("ab") as log, subprocess.Popen(command, stderr=log, **how) as process:
        try:
            with socket.socket() as probe:
                while probe.connect_ex(("127.0.0.1", port)):
                    assert process.poll() is None, (at / "requests").read_text()
            yield
        finally:
            process.terminate()
