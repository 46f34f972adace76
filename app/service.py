"""The service: built from its layers, run from the listening socket to the last closed connection, and stopped in the right order."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from functools import partial
from importlib.metadata import version
from typing import Any, TextIO

import structlog
from starlette.types import ASGIApp

from app.memory import keep_giving_back
from app.metrics import Metrics, Readiness, Sources, keep_measuring, waiting_report
from app.models import (
    check_models,
    embedders_of,
    engine_of_tables,
    launched_engine,
    own_engines,
    with_names,
    with_translator,
)
from app.parts import (
    ConfigReload,
    access_of,
    durability_of,
    limiters_of,
    look_at_store,
    quotas_of,
    store_client,
    store_url,
    tool_box_of,
    traced,
)
from app.routes import HeadersMiddleware, api_routes, application
from app.server import (
    Server,
    StartupServer,
    address,
    bind,
    client_filter_of,
    proxies_of,
    server,
    server_limits_of,
    start_listening,
    tls_of,
)
from app.settings import Settings, SettingsError, hinted
from app.speech import audio_of, spoken_of
from connections.authentication.access import REFRESH_S
from connections.http import RefusalCounters
from connections.http_protocol import ParseScheduler
from connections.limiters import BoundCounters
from connections.loop_scheduler import FairShareMiddleware
from connections.manager import ConnectionLifecycle, ConnectionManager
from connections.native.server_info import SERVER, AdvertisedSettings, ServerInfo
from connections.protocol.base import ServerFacts
from engine.api import Engine, EngineState
from engine.errors import EngineError
from engine.messages import ModelFacts
from sessions.errors import StoreDown
from sessions.filters.chain import NO_FILTERS
from sessions.filters.list_filter import FilterLists, FilterOptions, InvalidFilters, filters_from
from sessions.limits.bounds import HEARTBEAT_S, HELLO_S
from sessions.observer import CompositeObserver
from sessions.service import Sessions
from sessions.store.pool import AT_ONCE, Durations, StoreStats
from sessions.store.server_config import WriteProbe
from sessions.turn.policy import Policy, ToolLimits

_DISPLAY_S = 0.1
CLOSE_S = 3.0
LOOK_S = 1.0
"""How long the store may take to name the other replicas."""
DRAIN_NOTICE_S = 2.0
"""How long one of several replicas serves on while `/readyz` is 503, so that load balancers, which check each second, drop it."""
SWEEP_S = 0.25
"""How often connections whose replies have ended are closed during the drain."""
SWITCH_INTERVAL_S = 0.0005
"""After how long a thread that works on a long request lets the event loop continue. Python's 5 ms, in each of the loop's
iterations, would be a gap in everybody's text.
"""
SIGNAL_MERGE_S = 0.2
"""Signals within this many seconds count as one: `timeout` sends its signal to the process, and again to its group."""
_log = structlog.get_logger("midstream.service")


async def serve(settings: Settings) -> None:
    """Run the service until a signal ends it.

    Raises SettingsError, EmbeddedStoreFailed, StoreDown, and EngineError if the model can't be served.
    """
    check_models(settings)
    with bind(settings.host, settings.port) as listener, cancelled_by_signals():
        models = with_names(settings, engines_of(settings))
        starting = StartupServer(
            listener,
            server=partial(_start_server, settings),
            report=lambda why: waiting_report(models, why),
        )
        async with (
            models.running(),
            starting.until_ready() as failed,
            composed(settings, models, failed=failed) as service,
        ):
            await starting.end()
            start_listening(listener)
            await service.run(listener)


def _start_server(settings: Settings, app: ASGIApp) -> Server:
    client_filter = client_filter_of(settings, RefusalCounters())
    return server(
        HeadersMiddleware(client_filter(app)),
        server_limits=server_limits_of(settings),
        tls=tls_of(settings),
    )


def engines_of(settings: Settings) -> Engine:
    """Return the engine that the settings name, local or upstream; several share one interface. Raises SettingsError."""
    if (launched := launched_engine(settings)) is not None:
        return launched
    if settings.lists_models:
        return engine_of_tables(settings)
    return with_translator(settings, own_engines(settings))


@asynccontextmanager
async def composed(
    settings: Settings,
    engine: Engine,
    *,
    hello_s: float = HELLO_S,
    refresh_s: float = REFRESH_S,
    failed: Callable[[StoreDown], None] | None = None,
) -> AsyncIterator[Service]:
    """Yield the service for one engine, or for several models, once its store answers.

    `hello_s`: seconds that a connection has to send `hello`; `refresh_s`: seconds for `auth.refresh` after a token expired;
    `failed` is called each time the store does not answer.
    """
    models = with_names(settings, engine)
    refusals, bounds = RefusalCounters(), BoundCounters()
    tls, client_filter = tls_of(settings), client_filter_of(settings, refusals)
    tools = tool_box_of(settings)
    manager = ConnectionManager(
        max_connections=settings.max_connections,
        max_per_client=settings.max_client_connections,
        max_per_key=settings.limits.key_connections,
    )
    metrics = Metrics()
    policy, tallies, lag = _policy(settings), {"requests": StoreStats(), "replies": StoreStats()}, Durations()
    async with (
        store_url(settings) as url,
        store_client(url, tallies["requests"]) as store,
        store_client(url, tallies["replies"], heavy_slots=AT_ONCE) as priority_client,
        nullcontext(access_of(settings, store, refresh_s=refresh_s)) as access,
        embedders_of(settings) as embedders,
        limiters_of(settings, store, access, refusals, bounds) as limiters,
        traced(
            CompositeObserver(metrics, limiters.quota_limiter) if limiters.quota_limiter else metrics,
            version=version("midstream"),
        ) as observer,
    ):
        await look_at_store(settings, store, failed=failed)
        sessions = Sessions(
            client=store,
            engine=models,
            policy=policy,
            observer=observer,
            priority_client=priority_client,
            tools=tools,
            embedders=embedders,
        )
        readiness = Readiness(
            models=models, store=WriteProbe(store, policy.durability), memory=sessions.memory
        )
        metrics.watch(
            Sources(
                models=models,
                connections=manager.statistics,
                sessions=sessions.statistics,
                refusals=refusals,
                bounds=bounds,
                stores=tallies,
                lag=lag,
                is_draining=lambda: readiness.draining,
                version=version("midstream"),
            )
        )
        async with (
            tools.running(),
            sessions.running(alone=settings.redis_url is None),
            audio_of(settings) as audio,
            spoken_of(settings, sessions) as spoken,
        ):
            lifecycle = ConnectionLifecycle(sessions=sessions, manager=manager, limiters=limiters)
            routes = api_routes(
                sessions=sessions,
                server_info=ServerInfo(models, _advertised_settings(settings)),
                access=access,
                lifecycle=lifecycle,
                limiters=limiters,
                audio=audio,
                spoken=spoken,
                hello_s=hello_s,
            )
            app = application(
                api_routes=routes,
                readiness=readiness,
                metrics=metrics,
                client_filter=lambda app: client_filter(
                    FairShareMiddleware(app, limiters.scheduler.light_clients)
                ),
                server=ServerFacts(SERVER, version("midstream")),
                refusals=refusals,
                access=access,
            )
            yield Service(
                engine=models,
                sessions=sessions,
                config_reload=ConfigReload(settings, access, limiters),
                lifecycle=lifecycle,
                readiness=readiness,
                server=server(
                    app,
                    server_limits=server_limits_of(settings),
                    bounds=bounds,
                    scheduler=ParseScheduler(limiters.scheduler.light_clients, proxies=proxies_of(settings)),
                    tls=tls,
                ),
                drain_s=settings.drain_timeout,
                lag=lag,
            )


def _policy(settings: Settings) -> Policy:
    """Return the options of conversations. Raises SettingsError."""
    filters = NO_FILTERS
    if "filters" in settings.tables:
        try:
            filters = filters_from(settings.tables["filters"])
        except InvalidFilters as error:
            why = hinted(str(error), FilterOptions, FilterLists)
            raise SettingsError(f"{settings.config}: [filters]: {why}") from error
    # The bundled model was not trained to write titles.
    writes_titles = settings.titles == "model" or (settings.titles == "auto" and not settings.is_bundled)
    return Policy(
        ttl_s=settings.conversation_ttl,
        max_turns=settings.max_turns,
        max_queued=settings.max_queued,
        tools=ToolLimits(
            max_rounds=settings.max_tool_rounds,
            wait_s=settings.tool_wait_s,
            max_chars=settings.max_content_chars,
        ),
        system_prompt=settings.system_prompt or "",
        filters=filters,
        durability=durability_of(settings),
        unsupported_tools=settings.unsupported_tools,
        titles=writes_titles,
        sharing=settings.sharing,
        store_bytes=settings.store_memory,
    )


def _advertised_settings(settings: Settings) -> AdvertisedSettings:
    return AdvertisedSettings(
        server_version=version("midstream"),
        heartbeat_ms=int(HEARTBEAT_S * 1000),
        resume_ttl_s=int(settings.conversation_ttl),
        messages_per_minute=quotas_of(settings.limits).shown,
        max_content_chars=settings.max_content_chars,
        max_turns=settings.max_turns,
        max_queued=settings.max_queued,
        max_tool_rounds=settings.max_tool_rounds,
        suggestions=settings.suggested,
    )


class Service:
    """All parts of a running service, until SIGTERM, SIGINT or `stop`."""

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
        """`lag` records the lag of the event loop."""
        self._engine = engine
        self._sessions = sessions
        self._config_reload = config_reload
        self._lifecycle = lifecycle
        self._readiness = readiness
        self._server = server
        self._drain_s = drain_s
        self._lag = lag
        self._begun, self._hurried = asyncio.Event(), asyncio.Event()
        self._begun_at = 0.0
        self._failure: EngineError | None = None

    async def run(self, listener: socket.socket) -> None:
        """Serve until a signal. Raises EngineError if the engine fails before it has served."""
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
            await self._begun.wait()
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
        if not self._begun.is_set():
            self._begun_at = time.monotonic()
            self._begun.set()
        elif time.monotonic() - self._begun_at >= SIGNAL_MERGE_S:
            self._hurried.set()

    def _reload(self) -> None:
        self._config_reload.reload()
        self._server.reload()

    async def _start(self, url: str) -> None:
        """Show the engine's progress, then the address. An engine that fails to start stops the service."""
        display = StartDisplay()
        try:
            await display.follow(self._engine)
            facts = await self._engine.ready()
        except EngineError as failure:
            self._failure = failure
            self._begun.set()
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
                    await self._hurried.wait()
            await self._server.stop_listening()
        self._server.end_idle()
        self._lifecycle.announce_drain(
            drain_ms=int(self._drain_s * 1000), reason="The server is about to stop."
        )
        draining = asyncio.create_task(self._sessions.drain(self._drain_s))
        hurry = asyncio.create_task(self._hurried.wait())
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
        """Return whether other replicas of the service use the store. If not, this one keeps listening, to answer that it is about to stop."""
        with suppress(StoreDown, TimeoutError):
            async with asyncio.timeout(LOOK_S):
                return await self._sessions.has_other_replicas()
        return False


@contextmanager
def cancelled_by_signals() -> Iterator[None]:
    """Until `Service.run` takes over, let SIGTERM or SIGINT cancel this task, which ends the block."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    if task is None:
        raise RuntimeError("cancelled_by_signals is for tasks.")
    stopping, requested_at = False, 0.0

    def stop() -> None:
        """Cancel the task, and again at each later signal: something may have swallowed the cancellation."""
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


class StartDisplay:
    """Prints a line for each stage of the start."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream

    async def follow(self, engine: Engine) -> None:
        """Print the stages until the engine is ready or has failed."""
        shown = None
        while (status := engine.status).state in (EngineState.LOADING, EngineState.RESTARTING):
            if status.stage != shown:
                shown = status.stage
                self._stream.write(f"{shown or 'starting the engine'} ({status.progress:.0%})\n")
                self._stream.flush()
            await asyncio.sleep(_DISPLAY_S)

    def address(self, url: str, facts: ModelFacts) -> None:
        """Print the page's address, and where the model runs."""
        model = f"{facts.parameters / 1e6:,.1f}M parameters, {facts.dtype} on {facts.device}"
        if not facts.parameters:  # an upstream does not report them
            model = f"{facts.model} of {facts.device}"
        print(f"Midstream is ready: {url}   ({model}; Ctrl-C stops)", flush=True)  # noqa: T201 - the command's output
