"""The Redis client of the sessions layer: timeouts, retries, scripts, and one error for outages.

A retry may repeat a write. That is safe: every write is a Lua script that recognises its own repetition.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis.exceptions as errors
import structlog
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from sessions.errors import StoreDown, StoreFault

LUA = Path(__file__).parent.parent / "lua"
CLIENT_ERRORS = (errors.RedisError, errors.RedisClusterException, TimeoutError, OSError)
"""All errors of the client. A full disk, or too few replicas, come as generic answers."""

_LOST = "the handler is closed"
_WRITING = frozenset({"writelines", "drain"})
"""The client's error for a connection whose writer is None, since another task found it lost."""

_PASSING = re.compile(
    r"(?:^|[\s-])(?:OOM|READONLY|LOADING|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|NOREPLICAS|UNBLOCKED|MISCONF|BUSY|NOAUTH|NOPERM|MOVED|ASK)\b"
)
"""Codes of answers that mean that the server takes no writes, or is away, for now. Older servers put a script's name before them."""
_IN_A_PIPELINE = re.compile(r"Command # \d+ \(.*\) of pipeline caused error: \(['\"]", re.DOTALL)
"""What the client writes before such an answer: the command has words of users, which may be like a code."""
_OUTAGES = (
    errors.ConnectionError,
    errors.TimeoutError,
    errors.ReadOnlyError,
    errors.OutOfMemoryError,
    errors.ClusterError,
    errors.ClusterDownError,
    errors.MasterDownError,
    errors.TryAgainError,
    errors.AskError,
    errors.NoPermissionError,
    errors.NoScriptError,  # the server restarted between loading the scripts and running one
    errors.RedisClusterException,
    TimeoutError,
    OSError,
)

_log = structlog.get_logger("midstream.store")


class Script:
    """A Lua script by its SHA-1; `parts` are files put together in order."""

    def __init__(self, *parts: str) -> None:
        self.source = "\n".join((LUA / f"{part}.lua").read_text() for part in parts)
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()


ACCEPT = Script("tree", "tell", "watchers", "ends", "accept")
APPEND = Script("tree", "take_out", "tell", "ends", "append")
FINISH = Script("tree", "take_out", "tell", "ends", "ledger", "weigh", "finish")
REMOVE = Script("tree", "take_out", "tell", "ends", "ledger", "weigh", "remove")
WITHDRAW = Script("tree", "take_out", "tell", "ends", "withdraw")
BRANCH = Script("tree", "calls", "branch")
ACTIVATE = Script("tree", "tell", "activate")
NOTE = Script("ledger", "weigh", "note")
COUNT_NOTE = Script("count_note")
DESCRIBE = Script("ledger", "weigh", "describe")
RENAME = Script("rename")
SHARE = Script("share")
WATCH = Script("tell", "watchers", "watch")
LEAVE = Script("tell", "leave")
POST = Script("tell", "post")
COLLECT = Script("collect")
TOUCH = Script("ledger", "touch")
SINCE = Script("calls", "since")
DELETE = Script("tell", "ledger", "weigh", "delete")
RENEW = Script("renew")
START = Script("start")
GO_ON = Script("go_on")
KEEP_IMAGE = Script("ledger", "weigh", "keep_image")
ADMIT = Script("ledger", "admit")
CHARGE = Script("ledger", "charge")
PUT = Script("put")
ENROLL = Script("enroll")
COMPACT = Script("compact")
SCHEDULE = Script("schedule")
TAKE_DUE = Script("take_due")
SETTLE_DUE = Script("settle_due")
SCRIPTS = (
    *(ACCEPT, APPEND, FINISH, REMOVE, WITHDRAW, DELETE),
    *(BRANCH, ACTIVATE, NOTE, COUNT_NOTE, DESCRIBE, RENAME, SHARE, SINCE, RENEW, START, GO_ON),
    *(WATCH, LEAVE, POST, COLLECT, TOUCH, KEEP_IMAGE, ADMIT, CHARGE, PUT, ENROLL),
    *(COMPACT, SCHEDULE, TAKE_DUE, SETTLE_DUE),
)


@contextmanager
def store_errors() -> Iterator[None]:
    """Turn the client's errors into `StoreDown`, or into `StoreFault` if waiting does not help.

    It also restores cancellations that the client loses.

    In a cluster the client sends through `asyncio.wait_for`. On Python 3.11 that drops a cancellation at the moment of its
    success (bpo-37658), so a loop around the store could not be ended. Writing to a connection that was just lost raises a
    RuntimeError of uvloop, or an AttributeError of the client, as when a cluster's node dies.
    """
    task = asyncio.current_task()
    cancels = task.cancelling() if task is not None else 0
    try:
        yield
    except CLIENT_ERRORS as error:
        _keep_cancellation(task, cancels)
        raise store_error_of(error) from error
    except RuntimeError as error:
        if _LOST not in str(error):
            raise
        _keep_cancellation(task, cancels)
        raise StoreDown("The connection to the store was lost.") from error
    except AttributeError as error:
        if error.obj is not None or error.name not in _WRITING:
            raise
        _keep_cancellation(task, cancels)
        raise StoreDown("The connection to the store was lost.") from error
    _keep_cancellation(task, cancels)


def store_error_of(error: BaseException) -> StoreDown:
    """Return the error that a client's error stands for: an outage, or unusable data, which is logged with a number."""
    if isinstance(error, _OUTAGES) or _PASSING.search(_IN_A_PIPELINE.sub("", str(error))):
        return StoreDown(f"The store refuses or does not answer ({type(error).__name__}).")
    incident = secrets.token_hex(4)
    _log.error(
        "the store's data can't be used",
        incident=incident,
        error=type(error).__name__,
        answer=str(error)[:200],
    )
    return StoreFault(incident=incident)


def _keep_cancellation(task: asyncio.Task[Any] | None, before: int) -> None:
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError


async def run_script(
    client: Redis, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int]
) -> Any:
    """Run a script by its hash; load it first if the server does not know it.

    Raises StoreDown.
    """
    with store_errors():
        try:
            return await client.evalsha(script.sha, len(keys), *keys, *args)
        except errors.NoScriptError:
            return await client.eval(script.source, len(keys), *keys, *args)


async def pipelined(client: Redis, queue: Callable[[Pipeline], None]) -> list[Any]:
    """Send what is queued, for any slots of a cluster, in one round trip. Each command must be harmless when repeated.

    Raises StoreDown.
    """
    with store_errors():
        try:
            return await _queued(client, queue).execute()
        except errors.NoScriptError:
            await load_scripts(client)
            return await _queued(client, queue).execute()


def _queued(client: Redis, queue: Callable[[Pipeline], None]) -> Pipeline:
    pipe = client.pipeline(transaction=False)
    queue(pipe)
    return pipe


def queue_script(
    pipe: Pipeline, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int]
) -> None:
    """Add a script to a pipeline, by its hash. A cluster's pipeline has no `evalsha`, but executes the command."""
    pipe.execute_command("EVALSHA", script.sha, len(keys), *keys, *args)


async def load_scripts(client: Redis) -> None:
    """Load every script into the server, or all masters of a cluster, so that pipelines can use hashes. Raises StoreDown."""
    with store_errors():
        for script in SCRIPTS:
            await client.script_load(script.source)
