"""A Redis-compatible server of the test, which it may suspend and kill; its data is in its append-only file."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from sessions.store.embedded import binary
from tests.server_process import free_port

LOOK_S, LOOKS = 0.02, 1_000


class StoreServer:
    """One server; it keeps its port and its data across restarts. `fsync`: `always` means before the answer."""

    process: subprocess.Popen[bytes]

    def __init__(self, folder: Path, *, fsync: str = "everysec") -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(folder),
            "appendonly": "yes",
            "appendfsync": fsync,
            "save": "",
            "logfile": str(folder / "store.log"),
        }
        self._command = [
            binary(),
            *(part for name, value in options.items() for part in (f"--{name}", value)),
        ]

    def start(self) -> None:
        """Start the process and wait until it answers, once it has read its file."""
        self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL)
        patient = Retry(ConstantBackoff(LOOK_S), LOOKS)
        with redis.Redis(port=self.port, socket_timeout=1.0, retry=patient) as client:
            client.ping()

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.wait(20)


@contextmanager
def store_server(folder: Path, *, fsync: str = "everysec") -> Iterator[StoreServer]:
    """Run a server inside the block."""
    folder.mkdir(exist_ok=True)
    server = StoreServer(folder, fsync=fsync)
    server.start()
    try:
        yield server
    finally:
        server.kill()
