"""The running service, from the listening socket to the last closed connection, its start display, and the event loop's lag."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

import structlog

from app.operations.memory import keep_giving_back
from app.operations.metrics import keep_measuring
from app.operations.readiness import Readiness
from app.server.server import Server, address
from app.setup.config_reload import ConfigReload
from connections.manager import ConnectionLifecycle
from engine.api import Engine, EngineState, EngineStatus
from engine.errors import EngineError
from engine.messages import ModelFacts
from sessions.errors import StoreDown
from sessions.observer import Durations
from sessions.service import Sessions

_WIDTH = 24
_DISPLAY_S = 0.1


class StartDisplay:
    """Shows one growing line on a terminal, else one line a stage."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._shown = ""

    async def follow(self, engine: Engine) -> None:
        """Show the progress until the engine is ready or has failed."""
        while (status := engine.status).state in (EngineState.LOADING, EngineState.RESTARTING):
            self._show(status)
            await asyncio.sleep(_DISPLAY_S)
        if self._shown and self._stream.isatty():
            self._stream.write("\r\033[K")

    def address(self, url: str, facts: ModelFacts) -> None:
        """Print the page's address, and where the model runs."""
        model = f"{facts.parameters / 1e6:,.1f}M parameters, {facts.dtype} on {facts.device}"
        if not facts.parameters:  # an upstream does not report them
            model = f"{facts.model} of {facts.device}"
        print(f"Midstream is ready: {url}   ({model}; Ctrl-C stops)", flush=True)  # noqa: T201 - the command's output

    def _show(self, status: EngineStatus) -> None:
        stage = status.stage or "starting the engine"
        if self._stream.isatty():
            filled = round(status.progress * _WIDTH)
            bar = "█" * filled + "░" * (_WIDTH - filled)
            self._stream.write(f"\r\033[K{bar} {status.progress:4.0%}  {stage}")
        elif stage != self._shown:
            self._stream.write(f"{stage} ({status.progress:.0%})\n")
        self._shown = stage
        self._stream.flush()


CLOSE_S = 3.0
LOOK_S = 1.0
"""How long the store may take to name the other replicas."""
DRAIN_NOTICE_S = 2.0
"""How long a replica among others goes on serving while `/readyz` is 503: load balancers that look at it each second leave it out."""
SWEEP_S = 0.25
"""How often connections whose replies have ended are closed during the drain."""
SWITCH_INTERVAL_S = 0.0005
"""After how long a thread that works on a long request lets the event loop go on. Python's 5 ms, at each of the loop's turns,
would be a gap in everybody's text.
"""

SIGNAL_MERGE_S = 0.2
"""Signals within so many seconds are one: `timeout` sends its own to the process, and again to its group."""

_log = structlog.get_logger("midstream.service")


class StopSignals:
    """What signals ask for: `begun` by the first, `hurried` by a later one."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.hurried = asyncio.Event()
        self._begun_at = 0.0

    def request(self) -> None:
        """Handle one signal."""
        if not self.begun.is_set():
            self._begun_at = time.monotonic()
            self.begun.set()
        elif time.monotonic() - self._begun_at >= SIGNAL_MERGE_S:
            self.hurried.set()


@contextmanager
def cancelled_by_signals() -> Iterator[None]:
    """Inside the block, until `Service.run` takes over, the first SIGTERM or SIGINT cancels the task and ends the block."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    if task is None:
        raise RuntimeError("cancelled_by_signals is for tasks.")
    stopping, requested_at = False, 0.0

    def stop() -> None:
        """Cancel the task, and again at each later signal: something may have lost the cancellation."""
        nonlocal stopping, requested_at
        if not stopping:
            _log.info("stopped during startup")
        if not stopping or time.monotonic() - requested_at >= SIGNAL_MERGE_S:
            stopping, requested_at = True, time.monotonic()
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        yield
    except asyncio.CancelledError:
        if not stopping:
            raise
        while task.uncancel():
            pass
        _log.info("stopped")


class Service:
    """All parts, running, until SIGTERM, SIGINT or `stop`."""

    def __init__(
        self,
        *,
        engine: Engine,
        sessions: Sessions,
        config_reload: ConfigReload,
        lifecycle: ConnectionLifecycle,
        readiness: Readiness,
        server: Server,
        drain_s: float,
        lag: Durations,
    ) -> None:
        """`lag`: is given the lag of the event loop."""
        self._engine = engine
        self._sessions = sessions
        self._config_reload = config_reload
        self._lifecycle = lifecycle
        self._readiness = readiness
        self._server = server
        self._drain_s = drain_s
        self._lag = lag
        self._stopping = StopSignals()
        self._failure: EngineError | None = None

    async def run(self, listener: socket.socket) -> None:
        """Serve until a signal. Raises EngineError if the engine fails before it first served."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._server.serve(sockets=[listener]))
            starting = tasks.create_task(self._start(address(listener, scheme=self._server.scheme)))
            watching = tasks.create_task(self._config_reload.watch())
            trimming = tasks.create_task(keep_giving_back(self._lifecycle.forget))
            measuring = tasks.create_task(keep_measuring(self._lag))
            await self._stopping.begun.wait()
            starting.cancel()
            watching.cancel()
            trimming.cancel()
            await self._drain()
            self._server.end()
            measuring.cancel()
        if self._failure is not None:
            raise self._failure
        _log.info("stopped")

    def stop(self) -> None:
        """Handle a signal: the first call drains, the second ends running replies at once."""
        self._stopping.request()

    def _reload(self) -> None:
        self._config_reload.reload()
        self._server.reload()

    async def _start(self, url: str) -> None:
        """Show the loading, then the address. An engine that fails to start stops the service."""
        display = StartDisplay()
        try:
            await display.follow(self._engine)
            facts = await self._engine.ready()
        except EngineError as failure:
            self._failure = failure
            self._stopping.begun.set()
            return
        display.address(url, facts)
        _log.info("ready", url=url, model=facts.model, device=facts.device, dtype=facts.dtype)

    async def _drain(self) -> None:
        self._readiness.draining = True
        if self._failure is None:
            _log.info(
                "stopping; a second Ctrl-C or signal ends running replies at once", drain_s=self._drain_s
            )
        self._server.keep_no_connection()
        if await self._others_serve():
            with suppress(TimeoutError):
                async with asyncio.timeout(min(DRAIN_NOTICE_S, self._drain_s)):
                    await self._stopping.hurried.wait()
            await self._server.stop_listening()
        self._server.end_idle()
        self._lifecycle.announce_drain(
            drain_ms=int(self._drain_s * 1000), reason="The server is about to stop."
        )
        draining = asyncio.create_task(self._sessions.drain(self._drain_s))
        hurry = asyncio.create_task(self._stopping.hurried.wait())
        ended: set[asyncio.Task[Any]] = set()
        while not ended:
            ended, _ = await asyncio.wait(
                (draining, hurry), timeout=SWEEP_S, return_when=asyncio.FIRST_COMPLETED
            )
            self._lifecycle.close_idle()
        hurry.cancel()
        if not draining.done():
            draining.cancel()
            await self._sessions.drain(0.0)
        await self._lifecycle.shut_all(within_s=CLOSE_S)

    async def _others_serve(self) -> bool:
        """Return whether other replicas of the service use the store. Alone, this one answers that it is about to stop."""
        with suppress(StoreDown, TimeoutError):
            async with asyncio.timeout(LOOK_S):
                return await self._sessions.has_other_replicas()
        return False
