"""A real server as a process of its own, for tests that talk to it over the network."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route

READY_S = 120.0


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """`midstream serve`, or another module, with a data folder of its own; it keeps its port over restarts."""

    def __init__(
        self,
        folder: Path,
        environ: Mapping[str, str] | None = None,
        *,
        command: Sequence[str] = ("app", "serve"),
        python: str = sys.executable,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self.port = free_port()
        self.url = f"{'https' if trust else 'http'}://127.0.0.1:{self.port}"
        self.ws_url = f"{'wss' if trust else 'ws'}://127.0.0.1:{self.port}/v1/ws"
        self._trust = trust
        self.log = folder / "server.log"
        self._command = (python, "-m", *command)
        self._environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MIDSTREAM_")},
            "HF_HUB_OFFLINE": "1",
            "MIDSTREAM_PORT": str(self.port),
            "MIDSTREAM_DATA_DIR": str(folder / "data"),
            "MIDSTREAM_LOG_FORMAT": "json",
            "MIDSTREAM_DRAIN_TIMEOUT": "1s",
            "MIDSTREAM_SPEECH": "off",
            "MIDSTREAM_CHARS_PER_S": "0",
            **(environ or {}),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> None:
        """Starts the process, and waits until it is ready."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, env=self._environ, stdout=log, stderr=log)
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Waits until `/readyz` is green."""
        assert self.process is not None
        wait_ready(self.process, f"{self.url}/readyz", self.log, within_s=READY_S, trust=self._trust)

    def is_ready(self) -> bool:
        """Whether `/readyz` is green."""
        return is_ready(f"{self.url}/readyz", self._trust)

    def stop(self) -> int:
        """Ends the process as an operator does; gives its exit code."""
        return self.end(signal.SIGTERM)

    def kill(self) -> int:
        """Ends the process without a chance to say goodbye."""
        return self.end(signal.SIGKILL)

    def end(self, number: signal.Signals) -> int:
        """Sends a signal and waits for the end."""
        self.send(number)
        assert self.process is not None
        return self.process.wait(timeout=60)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def restart(self) -> None:
        """Stops and starts it again, on the same port and data."""
        self.stop()
        self.start()

    def bring_back(self) -> None:
        """Starts it again where it has ended, or ends at this moment; waits until it is ready."""
        if self.process is None or self.process.poll() is not None:
            self.start()
            return
        try:
            self.wait_ready()
        except AssertionError:
            if self.process.poll() is None:
                raise
            self.start()

    def engine_pid(self) -> int:
        """The process id of the engine that runs now."""
        assert self.process is not None
        pid = child_of(self.process.pid, "engine.process")
        assert pid is not None, "no engine runs"
        return pid

    @contextmanager
    def engine_held(self) -> Iterator[None]:
        """Inside the block the engine makes no step: a reply can't be over before the test is where it wants to be."""
        pid = self.engine_pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def wait_ready(
    process: subprocess.Popen[bytes], url: str, log: Path, *, within_s: float, trust: ssl.SSLContext | None = None
) -> None:  # fmt: skip
    """Wait until a server answers at a URL. AssertionError, with its log, if it ends or takes too long."""
    deadline = time.monotonic() + within_s
    while not is_ready(url, trust):
        if process.poll() is not None or time.monotonic() > deadline:
            why = "ended at its start" if process.poll() is not None else f"is not ready in {within_s:g} s"
            raise AssertionError(f"the server {why}:\n{log.read_text(errors='replace')}")
        time.sleep(0.05)  # polling a process has no event to wait for


def is_ready(url: str, trust: ssl.SSLContext | None = None) -> bool:
    """Return whether a server answers at a URL with 200."""
    try:
        with urllib.request.urlopen(url, timeout=5, context=trust) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in _proc(task).split()]


def child_of(pid: int, pattern: str) -> int | None:
    """A child whose command matches, if there is one."""
    found = (child for child in children_of(pid) if re.search(pattern, command_of(child)))
    return next(found, None)


def command_of(pid: int) -> str:
    """A process's command with its arguments; empty where it ended."""
    return _proc(Path(f"/proc/{pid}/cmdline")).replace("\0", " ").strip()


def _proc(file: Path) -> str:
    """What the system says there; it ends with its process, also while it is read."""
    try:
        return file.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@contextmanager
def serving(
    folder: Path,
    environ: Mapping[str, str] | None = None,
    *,
    command: Sequence[str] = ("app", "serve"),
    python: str = sys.executable,
    trust: ssl.SSLContext | None = None,
) -> Iterator[ServerProcess]:
    """A server that runs inside the block; it speaks TLS where it is asked with `trust`."""
    server = ServerProcess(folder, environ, command=command, python=python, trust=trust)
    try:
        server.start()
        yield server
    finally:
        if server.process is not None and server.process.poll() is None:
            server.stop()


@contextmanager
def app_in_thread(*routes: Route) -> Iterator[int]:
    """An app of the test that runs inside the block, in a thread; gives its port."""
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_config=None, lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()
