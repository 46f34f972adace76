"""Builds the service from its floors, and stops it in the right order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from importlib.metadata import version
from pathlib import Path

from starlette.types import ASGIApp

from app.doors import doors
from app.operations.collectors import Sources
from app.operations.metrics import Metrics
from app.operations.profiling import Profiler
from app.operations.readiness import Readiness, waiting_report
from app.operations.rereading import Rereading
from app.operations.tracing import traced
from app.routes import SecurityHeaders, application
from app.server.feed import Sips
from app.server.network import gate_of, patience_of, proxies_of, tls_of
from app.server.server import HEARTBEAT_S, Server, bind, server, start_listening
from app.server.start_server import StartServer
from app.service import Service, cancelled_by_signals
from app.setting_values import SettingsError
from app.settings import Settings
from app.setup.authentication import access_of
from app.setup.embedders import embedders_of
from app.setup.launcher import launched_engine
from app.setup.limits import TurnTokens, limiters_of
from app.setup.limits_file import LimitsFile, quotas_of
from app.setup.models import check_models, engine_of_file, with_names, with_translator
from app.setup.own_engines import own_engines
from app.setup.speech import audio_of, spoken_of
from app.setup.store import durability_of, look_at_store, store_client, store_url
from app.setup.tools import tool_box_of
from connections.admin.missed import Missed
from connections.authentication.standing import REFRESH_S
from connections.gate.cross_origin import CrossOrigin
from connections.http.refusals import Refusals
from connections.limits.bounds import Bounds
from connections.limits.meter import Meter
from connections.limits.weighing import Weighing
from connections.line.presence import Presence
from connections.line.registry import Registry
from connections.line.socket_door import HELLO_S
from connections.native.greeting import SERVER, Greeter, Offer
from connections.wire.facts import ServerFacts
from engine.door import Engine
from engine.durations import Durations
from sessions.errors import StoreDown
from sessions.filters.chain import NO_FILTERS, Filters
from sessions.filters.filter_file import FiltersUnusable, filters_from
from sessions.observer import Observer, Several
from sessions.service import Sessions
from sessions.store.redis.servers import AT_ONCE, replica_name
from sessions.store.redis.watched import StoreTally
from sessions.store.redis.writable import Writable
from sessions.turn.policy import Policy, ToolLimits


async def serve(settings: Settings) -> None:
    """Run the service until a signal ends it.

    Raises SettingsError, EmbeddedStoreFailed, StoreDown, and EngineError if the model can't be served.
    """
    check_models(settings)
    with bind(settings.host, settings.port) as listener, cancelled_by_signals():
        models = with_names(settings, engines_of(settings))
        starting = StartServer(
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
    gate = gate_of(settings, Refusals())
    return server(SecurityHeaders(gate(app)), patience=patience_of(settings), tls=tls_of(settings))


def engines_of(settings: Settings) -> Engine:
    """Return the engine that the settings name, local or upstream; several share one door. Raises SettingsError."""
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
    refusals, bounds = Refusals(), Bounds()
    tls, gate = tls_of(settings), gate_of(settings, refusals)
    limits = LimitsFile(settings)
    tools = tool_box_of(settings)
    registry = Registry(
        max_connections=settings.max_connections, max_per_client=settings.max_client_connections
    )
    metrics = Metrics()
    policy, tallies, lag = _policy(settings), {"requests": StoreTally(), "replies": StoreTally()}, Durations()
    async with (
        store_url(settings) as url,
        store_client(url, tallies["requests"]) as store,
        store_client(url, tallies["replies"], crowd=AT_ONCE) as lane,
        nullcontext(access_of(settings, store, refresh_s=refresh_s)) as access,
        embedders_of(settings) as embedders,
        limiters_of(settings, store, access, refusals, bounds) as limiters,
        traced(_observer(metrics, limiters.meter), version=version("midstream-server")) as observer,
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
            lane=lane,
            tools=tools,
            embedders=embedders,
        )
        readiness = Readiness(models=models, store=Writable(store, policy.durability), memory=sessions.memory)
        metrics.watch(
            Sources(
                models=models,
                connections=registry.statistics,
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
            presence = Presence(sessions=sessions, registry=registry, limiters=limiters)
            routes = doors(
                sessions=sessions,
                greeter=Greeter(models, _offer(settings)),
                access=access,
                presence=presence,
                limiters=limiters,
                audio=audio,
                spoken=spoken,
                hello_s=hello_s,
            )
            app = application(
                doors=routes,
                readiness=readiness,
                metrics=metrics,
                gate=lambda app: gate(Weighing(app, limiters.turns.guests)),
                shown=lambda answering, foreign: CrossOrigin(
                    answering, access.origins, refusals, method="GET, POST", refusal=foreign
                ),
                server=ServerFacts(SERVER, version("midstream-server")),
                refusals=refusals,
                missed=Missed(access, limiters).note,
                access=access,
            )
            yield Service(
                engine=models,
                sessions=sessions,
                rereading=Rereading(access, limits),
                presence=presence,
                readiness=readiness,
                server=server(
                    app,
                    patience=patience_of(settings),
                    bounds=bounds,
                    turns=Sips(limiters.turns.guests, proxies=proxies_of(settings)),
                    tls=tls,
                ),
                drain_s=settings.drain_s,
                lag=lag,
                profiler=_profiler(settings, models),
            )


def _profiler(settings: Settings, engines: Engine) -> Profiler:
    return Profiler(Path(settings.data_dir).expanduser() / "profiles", engines)


def _observer(metrics: Metrics, meter: Meter | None) -> Observer:
    """Return the observer of turns."""
    return metrics if meter is None else Several(metrics, TurnTokens(meter))


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
    except FiltersUnusable as error:
        raise SettingsError(f"MIDSTREAM_FILTERS (--filters): {error}") from error


def _offer(settings: Settings) -> Offer:
    return Offer(
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
