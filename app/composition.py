"""Builds the service from its layers, and stops it in the right order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from importlib.metadata import version
from pathlib import Path

from starlette.types import ASGIApp

from app.operations.collectors import Sources
from app.operations.metrics import Metrics
from app.operations.readiness import Readiness, waiting_report
from app.operations.tracing import traced
from app.routes import SecurityHeadersMiddleware, api_routes, application
from app.server.network import client_filter_of, proxies_of, server_limits_of, tls_of
from app.server.server import Server, StartupServer, bind, server, start_listening
from app.server.throttled_reader import ParseScheduler
from app.service import Service, cancelled_by_signals
from app.settings import Settings, SettingsError
from app.setup.authentication import access_of
from app.setup.config_reload import ConfigReload, LimitsFile, quotas_of
from app.setup.limits import limiters_of
from app.setup.models import (
    check_models,
    embedders_of,
    engine_of_file,
    launched_engine,
    own_engines,
    with_names,
    with_translator,
)
from app.setup.speech import audio_of, spoken_of
from app.setup.store import durability_of, look_at_store, store_client, store_url
from app.setup.tools import tool_box_of
from connections.api.admin.audit import UnknownAdminPaths
from connections.authentication.session_validity import REFRESH_S
from connections.http.refusal_counters import RefusalCounters
from connections.limiters import BoundCounters
from connections.loop_scheduler import FairShareMiddleware
from connections.manager import ConnectionLifecycle, ConnectionManager
from connections.middleware.origins import CorsMiddleware
from connections.native.server_info import SERVER, AdvertisedSettings, ServerInfo
from connections.protocol.server_info import ServerFacts
from engine.api import Engine
from engine.durations import Durations
from sessions.errors import StoreDown
from sessions.filters.chain import NO_FILTERS, Filters
from sessions.filters.filter_file import InvalidFilterFile, filters_from
from sessions.limits.bounds import HEARTBEAT_S, HELLO_S
from sessions.limits.quotas import QuotaLimiter
from sessions.observer import CompositeObserver, Observer
from sessions.service import Sessions
from sessions.store.redis.pool import AT_ONCE, StoreStats
from sessions.store.redis.server_config import WriteProbe
from sessions.store.redis.servers import replica_name
from sessions.turn.policy import Policy, ToolLimits


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
        SecurityHeadersMiddleware(client_filter(app)),
        server_limits=server_limits_of(settings),
        tls=tls_of(settings),
    )


def engines_of(settings: Settings) -> Engine:
    """Return the engine that the settings name, local or upstream; several share one interface. Raises SettingsError."""
    if (launched := launched_engine(settings)) is not None:
        return launched
    if settings.upstreams is not None:
        return engine_of_file(settings)
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
    """Return the service over one engine, or over several models, once its store answers.

    `hello_s`: seconds that a connection has to send `hello`; `refresh_s`: seconds for `auth.refresh` after its token expired;
    `failed`: called each time that the store does not answer.
    """
    models = with_names(settings, engine)
    refusals, bounds = RefusalCounters(), BoundCounters()
    tls, client_filter = tls_of(settings), client_filter_of(settings, refusals)
    limits = LimitsFile(settings)
    tools = tool_box_of(settings)
    manager = ConnectionManager(
        max_connections=settings.max_connections, max_per_client=settings.max_client_connections
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
        traced(_observer(metrics, limiters.quota_limiter), version=version("midstream-server")) as observer,
    ):
        limits.govern(limiters)
        await look_at_store(settings, store, failed=failed)
        replica = await replica_name(store)
        sessions = Sessions(
            client=store,
            engine=models,
            policy=policy,
            observer=observer,
            replica=replica,
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
                version=version("midstream-server"),
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
                    FairShareMiddleware(app, limiters.turns.light_clients)
                ),
                shown=lambda answering, foreign: CorsMiddleware(
                    answering, access.origins, refusals, method="GET, POST", refusal=foreign
                ),
                server=ServerFacts(SERVER, version("midstream-server")),
                refusals=refusals,
                on_not_found=UnknownAdminPaths(access, limiters).note,
                access=access,
            )
            yield Service(
                engine=models,
                sessions=sessions,
                config_reload=ConfigReload(access, limits),
                lifecycle=lifecycle,
                readiness=readiness,
                server=server(
                    app,
                    server_limits=server_limits_of(settings),
                    bounds=bounds,
                    turns=ParseScheduler(limiters.turns.light_clients, proxies=proxies_of(settings)),
                    tls=tls,
                ),
                drain_s=settings.drain_s,
                lag=lag,
            )


def _observer(metrics: Metrics, quota_limiter: QuotaLimiter | None) -> Observer:
    """Return the observer of turns."""
    return metrics if quota_limiter is None else CompositeObserver(metrics, quota_limiter)


def _policy(settings: Settings) -> Policy:
    """Return the options of conversations. Raises SettingsError."""
    return Policy(
        ttl_s=settings.conversation_ttl_s,
        max_turns=settings.max_turns,
        max_queued=settings.max_queued,
        tools=ToolLimits(
            max_rounds=settings.max_tool_rounds,
            wait_s=settings.tool_wait_s,
            max_chars=settings.max_content_chars,
        ),
        system_prompt=settings.system_prompt or "",
        filters=_filters(settings),
        durability=durability_of(settings),
        unsupported_tools=settings.unsupported_tools,
        titles=_model_writes_titles(settings),
        sharing=settings.sharing,
        store_bytes=settings.store_bytes,
    )


def _model_writes_titles(settings: Settings) -> bool:
    """Return whether the model writes titles: the bundled one has not learned to."""
    return settings.titles == "model" or (settings.titles == "auto" and not settings.is_bundled)


def _filters(settings: Settings) -> Filters:
    """Read the filter file. Raises SettingsError."""
    if settings.filters is None:
        return NO_FILTERS
    try:
        return filters_from(Path(settings.filters).expanduser())
    except InvalidFilterFile as error:
        raise SettingsError(f"MIDSTREAM_FILTERS (--filters): {error}") from error


def _advertised_settings(settings: Settings) -> AdvertisedSettings:
    return AdvertisedSettings(
        server_version=version("midstream-server"),
        heartbeat_ms=int(HEARTBEAT_S * 1000),
        resume_ttl_s=int(settings.conversation_ttl_s),
        messages_per_minute=quotas_of(settings).shown,
        max_content_chars=settings.max_content_chars,
        max_turns=settings.max_turns,
        max_queued=settings.max_queued,
        max_tool_rounds=settings.max_tool_rounds,
        suggestions=settings.suggested,
    )
