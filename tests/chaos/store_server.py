"""A Redis-compatible server of the test, which it may suspend and kill; its data is in its append-only file."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from sessions.store.embedded import binary
from tests.server_process import free_port

READY_S = 20.0
LOOK_S = 0.02


class StoreServer:
    """One server; it keeps its port and its data across restarts."""

    def __init__(self, folder: Path, *, fsync: str = "everysec") -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self._folder = folder
        self._fsync = fsync
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process and wait until it answers."""
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self._folder),
            "appendonly": "yes",
            "appendfsync": self._fsync,
            "save": "",
            "logfile": str(self._folder / "store.log"),
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        self._process = subprocess.Popen([binary(), *arguments], stdin=subprocess.DEVNULL)
        self._wait_ready()

    def kill(self) -> None:
        """Kill the process."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the process as an operator does."""
        self._end(signal.SIGTERM)

    def stall(self) -> None:
        """Suspend the process; its connections stay."""
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Resume the process."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._signal(number)
        self._process.wait(READY_S)

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        with redis.Redis(port=self.port, socket_timeout=1.0) as client:
            while True:
                try:
                    client.ping()
                except redis.RedisError:  # not up yet, or still reading its file
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(LOOK_S)
                else:
                    return


@contextmanager
def store_server(folder: Path, *, fsync: str = "everysec") -> Iterator[StoreServer]:
    """Run a server inside the block. `fsync`: when data reaches its disk; `always` means before the answer."""
    folder.mkdir(exist_ok=True)
    server = StoreServer(folder, fsync=fsync)
    server.start()
    try:
        yield server
    finally:
        server.wake()
        server.stop()
