"""The Redis client as all of sessions uses it: timeouts, retries, scripts, and one error for its troubles.

Retries make a write happen twice; that is safe here because every write is a Lua script that recognises its own repetition.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis.exceptions as errors
import structlog
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from sessions.errors import StoreDown, StoreFault

LUA = Path(__file__).parent.parent / "lua"
TROUBLES = (errors.RedisError, errors.RedisClusterException, TimeoutError, OSError)
"""All that the client raises: a full disk or too few replicas come as answers that no other type of error has."""

_LOST = "the handler is closed"
_WRITING = frozenset({"writelines", "drain"})
"""What the client does with a connection's writer, which is None once another task has found the connection lost."""

_PASSING = re.compile(
    r"(?:^|[\s-])(?:OOM|READONLY|LOADING|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|NOREPLICAS|MISCONF|BUSY|NOAUTH|NOPERM|MOVED|ASK)\b"
)
"""Codes of answers that mean no writes, or no server, for now. Older servers put a script's name before them."""
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
    errors.NoScriptError,  # it was started again between getting the scripts and running one
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
FINISH = Script("tree", "take_out", "tell", "ends", "finish")
REMOVE = Script("tree", "take_out", "tell", "ends", "remove")
WITHDRAW = Script("tree", "take_out", "tell", "ends", "withdraw")
BRANCH = Script("tree", "calls", "branch")
ACTIVATE = Script("tree", "tell", "activate")
NOTE = Script("note")
COUNT_NOTE = Script("count_note")
RENAME = Script("rename")
SHARE = Script("share")
WATCH = Script("tell", "watchers", "watch")
LEAVE = Script("tell", "leave")
POST = Script("tell", "post")
COLLECT = Script("collect")
TOUCH = Script("touch")
SINCE = Script("calls", "since")
DELETE = Script("tell", "delete")
RENEW = Script("renew")
START = Script("start")
GO_ON = Script("go_on")
SEAL = Script("seal")
RESEAL = Script("reseal")
ADOPT = Script("adopt")
HAND_OVER = Script("hand_over")
FORGET = Script("forget")
COMPACT = Script("compact")
SCHEDULE = Script("schedule")
TAKE_DUE = Script("take_due")
SETTLE_DUE = Script("settle_due")
SCRIPTS = (
    *(ACCEPT, APPEND, FINISH, REMOVE, WITHDRAW, DELETE),
    *(BRANCH, ACTIVATE, NOTE, COUNT_NOTE, RENAME, SHARE, SINCE, RENEW, START, GO_ON),
    *(WATCH, LEAVE, POST, COLLECT, TOUCH),
    *(SEAL, RESEAL, ADOPT, HAND_OVER, FORGET),
    *(COMPACT, SCHEDULE, TAKE_DUE, SETTLE_DUE),
)


@contextmanager
def store_errors() -> Iterator[None]:
    """Turns the client's many troubles into `StoreDown`, or `StoreFault` where waiting does not help.

    It also keeps cancellations that the client loses.

    The client sends through `asyncio.wait_for`, which on Python 3.11 drops a cancellation that comes in the moment
    of its success (bpo-37658): a loop around the store could then not be ended. A connection that was lost a moment ago is
    a RuntimeError of uvloop's to whoever writes to it, or an AttributeError of the client's own, as when a cluster's node dies.
    """
    task = asyncio.current_task()
    cancels = task.cancelling() if task is not None else 0
    try:
        yield
    except TROUBLES as error:
        _keep_cancellation(task, cancels)
        raise trouble_of(error) from error
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


def trouble_of(error: BaseException) -> StoreDown:
    """What an error of the client means: an outage, or data that can't be used, which the log has with its number."""
    if isinstance(error, _OUTAGES) or _PASSING.search(str(error)):
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
