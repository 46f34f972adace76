"""The Redis client as all of sessions uses it: timeouts, retries, scripts, and one error for its troubles.

Retries make a write happen twice; that is safe here because every write is a Lua script that recognises its own repetition.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis.exceptions as errors
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff

from sessions.errors import StoreDown

LUA = Path(__file__).parent / "lua"
SOCKET_TIMEOUT_S = 5.0
TROUBLES = (errors.RedisError, TimeoutError, OSError)
"""All that the client raises: a full disk or too few replicas come as answers that no other type of error has."""


class Script:
    """A Lua script by its SHA-1; `parts` are files put together in order."""

    def __init__(self, *parts: str) -> None:
        self.source = "\n".join((LUA / f"{part}.lua").read_text() for part in parts)
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()


ACCEPT = Script("accept")
APPEND = Script("append")
FINISH = Script("take_out", "finish")
REMOVE = Script("take_out", "remove")
WITHDRAW = Script("take_out", "withdraw")
BRANCH = Script("branch")
SCRIPTS = (ACCEPT, APPEND, FINISH, REMOVE, WITHDRAW, BRANCH)


def connect(url: str) -> Redis:
    """A client for `redis://`, `rediss://` or `unix://` URLs; it connects on first use."""
    pool = BlockingConnectionPool.from_url(
        url,
        timeout=1,
        max_connections=32,
        socket_timeout=SOCKET_TIMEOUT_S,
        socket_connect_timeout=2.0,
        health_check_interval=15,
        retry=Retry(ExponentialBackoff(base=0.05, cap=0.5), retries=2),
    )
    return Redis.from_pool(pool)


@contextmanager
def store_errors() -> Iterator[None]:
    """Turns the client's many troubles into `StoreDown`, and keeps cancellations that the client loses.

    The client sends through `asyncio.wait_for`, which on Python 3.11 drops a cancellation that comes in the moment
    of its success (bpo-37658): a loop around the store could then not be ended.
    """
    task = asyncio.current_task()
    cancels = task.cancelling() if task is not None else 0
    try:
        yield
    except TROUBLES as error:
        _keep_cancellation(task, cancels)
        raise StoreDown(f"The store refuses or does not answer ({type(error).__name__}).") from error
    _keep_cancellation(task, cancels)


def _keep_cancellation(task: asyncio.Task[Any] | None, before: int) -> None:
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError


async def run_script(
    client: Redis, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int]
) -> Any:
    """Runs a script by its hash; loads it where the server does not know it (a fresh or restarted one).

    Raises StoreDown.
    """
    with store_errors():
        try:
            return await client.evalsha(script.sha, len(keys), *keys, *args)
        except errors.NoScriptError:
            return await client.eval(script.source, len(keys), *keys, *args)


async def load_scripts(client: Redis) -> None:
    """Makes every script known to the server, so that pipelines may name them by hash. Raises StoreDown."""
    with store_errors():
        for script in SCRIPTS:
            await client.script_load(script.source)
