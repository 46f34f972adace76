"""Checks what the service has to reach: its store, and its upstreams."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from redis.asyncio import Redis
from redis.exceptions import RedisError

from app.doctor.findings import Finding, bad, good, poor, size
from app.setting_values import SettingsError, variable
from app.settings import Settings
from app.setup.models import file_of
from app.setup.store import durability_of
from engine.upstream.options import UpstreamOptions
from sessions.errors import StoreDown
from sessions.store.redis.embedded import EmbeddedStoreFailed, binary
from sessions.store.redis.server_config import checked_server_configs, config_warnings
from sessions.store.redis.servers import Durability, DurabilityUnsupported, connect

PATIENCE_S = 5.0
PINGS = 20
SLOW_S = 0.02
SKEW_S = 5.0
SLOW_SYNC_S = 0.01
SYNCS = "two or three"
"""Writes of the embedded store, one after the other, until a message is acknowledged."""
MIN_FREE_BYTES = 5 * 10**9
"""Bytes of free disk; with fewer the embedded store may run out."""


async def network(settings: Settings) -> AsyncIterator[Finding]:
    """Yield all findings."""
    if settings.redis_url is None:
        for finding in _embedded(settings):
            yield finding
    else:
        async for finding in _store(settings, settings.redis_url):
            yield finding
    if settings.upstreams is not None:
        try:
            upstreams = file_of(settings).upstream
        except SettingsError as error:
            yield bad("upstreams", str(error))
            return
        for finding in await asyncio.gather(*(_upstream(one) for one in upstreams)):
            yield finding


def _embedded(settings: Settings) -> Iterator[Finding]:
    folder = Path(settings.data_dir).expanduser()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        program = binary()
        sync_s = _sync_s(there)
        durability = durability_of(settings)
    except (EmbeddedStoreFailed, SettingsError) as error:
        yield bad("store", str(error))
        return
    except OSError as error:
        yield bad(
            "store", f"{there} can't be written ({error.strerror}).", "Choose another folder with --data-dir."
        )
        return
    free = shutil.disk_usage(there).free
    words = f"The embedded one ({Path(program).name}) in {folder}, {size(free)} are free there."
    if free < MIN_FREE_BYTES:
        yield poor("store", words, "Choose another folder with --data-dir, or free some.")
    else:
        yield good("store", words)
    yield _synced(durability, sync_s)


def _synced(durability: Durability, sync_s: float) -> Finding:
    took = f"The disk takes {1000 * sync_s:.1f} ms to sync."
    if durability is Durability.MEMORY:
        return poor(
            "durability",
            f"A power failure can lose the last two seconds of acknowledged messages. {took}",
            "Set --store-durability disk.",
        )
    words = f"What is acknowledged is on the disk. {took}"
    if sync_s > SLOW_SYNC_S:
        return poor("durability", words, f"Each message waits for {SYNCS} syncs: choose a faster disk.")
    return good("durability", words)


def _sync_s(folder: Path) -> float:
    """Return the median seconds of a sync in a folder. Raises OSError."""
    took = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(PINGS):
            file.write(bytes(1000))
            file.flush()
            begun = time.perf_counter()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - begun)
    return median(took)


async def _store(settings: Settings, url: str) -> AsyncIterator[Finding]:
    try:
        client = connect(url)
    except ValueError as error:
        yield bad("store", f"{error}.", "See MIDSTREAM_REDIS_URL in deploy/README.md.")
        return
    async with client:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await _ping(client)
        except (TimeoutError, RedisError, OSError, StoreDown) as error:
            why = "It does not answer" if isinstance(error, TimeoutError) else f"It can't be reached: {error}"
            yield bad("store", f"{why.rstrip('.')}.", "Check its address, its password, and firewalls.")
            return
        try:
            async for finding in _store_findings(settings, client):
                yield finding
        except (RedisError, OSError, StoreDown) as error:
            yield bad("store", f"It refuses what is asked: {error}.", "Check its ACL and its log.")


async def _store_findings(settings: Settings, client: Redis) -> AsyncIterator[Finding]:
    """Yield what a store that answers reports. Raises RedisError, StoreDown."""
    yield await _speed(client)
    yield await _clock(client)
    try:
        durability = durability_of(settings)
        found = await checked_server_configs(client, durability)
    except (SettingsError, DurabilityUnsupported) as error:
        yield bad("durability", str(error), "Choose another --store-durability, or another store.")
        return
    sentences = config_warnings(found, durability)
    for sentence in sentences:
        yield poor("durability", sentence)
    if not sentences:
        yield good("durability", f"As {durability.value} requires.")


async def _ping(client: Redis) -> None:
    pending: Any = client.ping()
    await pending


async def _speed(client: Redis) -> Finding:
    took = []
    for _ in range(PINGS):
        begun = time.perf_counter()
        await _ping(client)
        took.append(time.perf_counter() - begun)
    words = f"It answers in {1000 * median(took):.1f} ms, {1000 * max(took):.1f} ms at most."
    if median(took) > SLOW_S:
        return poor("store", words, "Each message waits for it several times: put it nearer.")
    return good("store", words)


async def _clock(client: Redis) -> Finding:
    pending: Any = client.time()
    reply: Any = await pending
    seconds, micros = next(iter(reply.values())) if isinstance(reply, dict) else reply
    skew = time.time() - (seconds + micros / 1e6)
    if abs(skew) > SKEW_S:
        return poor(
            "clock",
            f"This machine's is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the store's.",
            "Replicas use the store's clock. But times in logs, and the expiry of keys, will be wrong: set up NTP.",
        )
    return good("clock", f"{abs(skew):.1f} s from the store's.")


async def _upstream(upstream: UpstreamOptions) -> Finding:
    subject = f"upstream {upstream.name}"
    key = variable(upstream.key_variable) if upstream.key_variable is not None else None
    if upstream.key_variable is not None and key is None:
        return bad(
            subject,
            f"There is no API key: {upstream.key_variable} is not set.",
            f"Set {upstream.key_variable}.",
        )
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        async with httpx.AsyncClient(timeout=PATIENCE_S, verify=upstream.ca_file or True) as client:
            answer = await client.get(f"{upstream.url.rstrip('/')}/models", headers=headers)
            names = [str(one["id"]) for one in answer.json()["data"]] if answer.is_success else []
    except (httpx.HTTPError, OSError, ValueError, KeyError, TypeError) as error:
        return bad(
            subject,
            f"{upstream.url} can't be asked: {error or type(error).__name__}.",
            "Is it running there?",
        )
    if not answer.is_success:
        return bad(
            subject, f"{upstream.url} answers {answer.status_code}.", "Check its API key and its base path."
        )
    if upstream.model not in names:
        return poor(
            subject, f"It lists no {upstream.model}, but {', '.join(names[:5]) or 'nothing'}.", "Set `model`."
        )
    return good(subject, f"{upstream.url} serves {upstream.model}.")
