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
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from sessions.errors import StoreDown

LUA = Path(__file__).parent / "lua"
TROUBLES = (errors.RedisError, errors.RedisClusterException, TimeoutError, OSError)
"""All that the client raises: a full disk or too few replicas come as answers that no other type of error has."""

_LOST = "the handler is closed"


class Script:
    """A Lua script by its SHA-1; `parts` are files put together in order."""

    def __init__(self, *parts: str) -> None:
        self.source = "\n".join((LUA / f"{part}.lua").read_text() for part in parts)
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()


ACCEPT = Script("tree", "tell", "watchers", "accept")
APPEND = Script("tree", "take_out", "tell", "append")
FINISH = Script("tree", "take_out", "tell", "finish")
REMOVE = Script("tree", "take_out", "tell", "remove")
WITHDRAW = Script("tree", "take_out", "tell", "withdraw")
BRANCH = Script("tree", "branch")
ACTIVATE = Script("tree", "tell", "activate")
RENAME = Script("rename")
WATCH = Script("tell", "watchers", "watch")
LEAVE = Script("tell", "leave")
POST = Script("tell", "post")
COLLECT = Script("collect")
TOUCH = Script("touch")
SINCE = Script("since")
DELETE = Script("tell", "delete")
RENEW = Script("renew")
START = Script("start")
SCRIPTS = (
    *(ACCEPT, APPEND, FINISH, REMOVE, WITHDRAW, DELETE),
    *(BRANCH, ACTIVATE, RENAME, SINCE, RENEW, START),
    *(WATCH, LEAVE, POST, COLLECT, TOUCH),
)


@contextmanager
def store_errors() -> Iterator[None]:
    """Turns the client's many troubles into `StoreDown`, and keeps cancellations that the client loses.

    The client sends through `asyncio.wait_for`, which on Python 3.11 drops a cancellation that comes in the moment
    of its success (bpo-37658): a loop around the store could then not be ended. A connection that was lost a moment ago is
    a RuntimeError of uvloop's to whoever writes to it.
    """
    task = asyncio.current_task()
    cancels = task.cancelling() if task is not None else 0
    try:
        yield
    except TROUBLES as error:
        _keep_cancellation(task, cancels)
        raise StoreDown(f"The store refuses or does not answer ({type(error).__name__}).") from error
    except RuntimeError as error:
        if _LOST not in str(error):
            raise
        _keep_cancellation(task, cancels)
        raise StoreDown("The connection to the store was lost.") from error
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


def queue_script(
    pipe: Pipeline, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int]
) -> None:
    """Adds a script to a pipeline, by its hash. A cluster's pipelines refuse `evalsha`, though they do what it does."""
    pipe.execute_command("EVALSHA", script.sha, len(keys), *keys, *args)


async def load_scripts(client: Redis) -> None:
    """Makes every script known to the server, or all masters of a cluster, so that pipelines may name them by hash. Raises StoreDown."""
    with store_errors():
        for script in SCRIPTS:
            await client.script_load(script.source)
