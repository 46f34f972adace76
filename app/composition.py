"""Puts the service together from its floors, and takes it apart in the right order."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path

from redis.asyncio import Redis

from app.metrics import Metrics
from app.readiness import Readiness
from app.routes import application
from app.server import HEARTBEAT_S, listen, server
from app.service import Service
from app.settings import Settings, SettingsError
from connections.endpoint import HELLO_S, Endpoint
from connections.greeting import Offer
from connections.registry import Registry
from engine.client import EngineClient
from engine.door import Engine
from engine.fleet import EngineFleet
from engine.options import EngineOptions, ForwardOptions, spread
from sessions.embedded import embedded_store
from sessions.policy import Policy
from sessions.service import Sessions
from sessions.store import connect


async def serve(settings: Settings) -> None:
    """Runs the service until a signal ends it.

    Raises SettingsError, EmbeddedStoreFailed, StoreDown, and EngineError where the model can't be served.
    """
    with listen(settings.host, settings.port) as listener:
        async with engines_of(settings).running() as engine, composed(settings, engine) as service:
            await service.run(listener)


def engines_of(settings: Settings) -> EngineClient | EngineFleet:
    """The engine that the settings ask for, or all of them behind one door."""
    options = EngineOptions(
        model=settings.model_path,
        dtype=settings.dtype,
        max_batch=settings.max_batch,
        kv_bytes=settings.kv_bytes,
        forward=ForwardOptions(
            attn=settings.attn,
            compile=settings.compile,
            quantize=settings.quantize,
            tensor_parallel=settings.tensor_parallel,
        ),
    )
    placed = spread(options, devices=settings.devices, each=settings.engines, cores=_cores())
    return EngineClient(placed[0]) if len(placed) == 1 else EngineFleet(placed)


@asynccontextmanager
async def composed(settings: Settings, engine: Engine, *, hello_s: float = HELLO_S) -> AsyncIterator[Service]:
    """The service over any engine, with its store. `hello_s`: how long a connection has for its `hello`."""
    metrics = Metrics()
    registry = Registry(
        max_connections=settings.max_connections, max_per_client=settings.max_client_connections
    )
    async with _store_url(settings) as url, _store_client(url) as store:
        sessions = Sessions(
            client=store,
            engine=engine,
            policy=Policy(
                ttl_s=settings.conversation_ttl_s,
                max_turns=settings.max_turns,
                system_prompt=settings.system_prompt or "",
            ),
            observer=metrics,
        )
        async with sessions.running(alone=settings.redis_url is None):
            endpoint = Endpoint(
                sessions=sessions,
                registry=registry,
                engine=engine,
                offer=_offer(settings),
                allowed_origins=frozenset(settings.allowed_origins),
                hello_s=hello_s,
            )
            readiness = Readiness(engine=engine, store=store)
            metrics.watch(engine=engine, connections=registry.statistics, sessions=sessions.statistics)
            app = application(websocket=endpoint.accept, readiness=readiness, metrics=metrics)
            yield Service(
                engine=engine,
                sessions=sessions,
                endpoint=endpoint,
                readiness=readiness,
                server=server(app),
                drain_s=settings.drain_s,
            )


def _cores() -> int:
    """How many cores this process may use; where the system does not tell, how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _store_url(settings: Settings) -> AbstractAsyncContextManager[str]:
    if settings.redis_url is not None:
        return nullcontext(settings.redis_url)
    return embedded_store(Path(settings.data_dir).expanduser())


def _store_client(url: str) -> Redis:
    try:
        return connect(url)
    except ValueError as error:
        raise SettingsError(f"MIDSTREAM_REDIS_URL (--redis-url): {error}.") from None


def _offer(settings: Settings) -> Offer:
    return Offer(
        model=settings.model_name,
        server_version=version("midstream"),
        heartbeat_ms=int(HEARTBEAT_S * 1000),
        resume_ttl_s=int(settings.conversation_ttl_s),
        max_content_chars=settings.max_content_chars,
        max_turns=settings.max_turns,
    )
