"""The errors of the store's client, as errors of the sessions layer: an outage, or unusable data."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import redis.exceptions as errors
import structlog

from sessions.errors import StoreDown, StoreFault

AGAIN_S = 1.0
"""Pause before a store that did not answer is asked again."""
CLIENT_ERRORS = (errors.RedisError, errors.RedisClusterException, TimeoutError, OSError)
"""All errors of the client. A full disk, or too few replicas, are reported as generic ones."""

_LOST = "the handler is closed"
_WRITING = frozenset({"writelines", "drain"})
"""Attributes that the client misses on a connection whose writer is None, since another task found it lost."""
_PASSING = re.compile(
    r"(?:^|[\s-])(?:OOM|READONLY|LOADING|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|NOREPLICAS|UNBLOCKED|MISCONF|BUSY|NOAUTH|NOPERM|MOVED|ASK)\b"
)
"""Error codes of a server that takes no writes, or is away, for now. Older servers put a script's name before them."""
_IN_A_PIPELINE = re.compile(r"Command # \d+ \(.*\) of pipeline caused error: \(['\"]", re.DOTALL)
"""What the client writes before such an answer: the command may have words of users that look like a code."""
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
T = TypeVar("T")


@contextmanager
def store_errors() -> Iterator[None]:
    """Turn the client's errors into `StoreDown`, or into `StoreFault` if waiting does not help.

    It also restores cancellations that the client loses.

    In a cluster the client sends through `asyncio.wait_for`, which on Python 3.11 drops a cancellation that comes at the moment
    of success (bpo-37658): a loop around the store could not be ended. Writing to a connection that was just lost raises a
    RuntimeError of uvloop, or an AttributeError of the client, as when a cluster's node dies.
    """
    task = asyncio.current_task()
    cancels = task.cancelling() if task is not None else 0
    try:
        yield
    except CLIENT_ERRORS as error:
        _keep_cancellation(task, cancels)
        raise store_error_of(error) from error
    except (RuntimeError, AttributeError) as error:
        if not _is_lost(error):
            raise
        _keep_cancellation(task, cancels)
        raise StoreDown("The connection to the store was lost.") from error
    _keep_cancellation(task, cancels)


async def until_answered(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask the store until it answers, and return the answer. Raises StoreFault."""
    while True:
        try:
            return await ask()
        except StoreFault:
            raise
        except StoreDown:
            await asyncio.sleep(AGAIN_S)


def _is_lost(error: RuntimeError | AttributeError) -> bool:
    if isinstance(error, RuntimeError):
        return _LOST in str(error)
    return error.obj is None and error.name in _WRITING


def store_error_of(error: BaseException) -> StoreDown:
    """Return the error that a client's error stands for: an outage, or unusable data, which is logged with an incident number."""
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
