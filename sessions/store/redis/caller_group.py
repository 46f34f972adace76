"""On whose behalf the store is called: a key or an address, or a client if these are not known; and whether that is of a crowd.

The group is set once when a request arrives, and inherited by all tasks that begin for it. Empty: the replica's own work.
Whether it is of a crowd is asked anew each time, since it changes while a connection, or a long reply, lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
IsHeavy = Callable[[], bool]


def never_heavy() -> bool:
    """Return that it is of no crowd."""
    return False


_group: ContextVar[str] = ContextVar("midstream_asker", default="")
_is_heavy: ContextVar[IsHeavy] = ContextVar("midstream_is_crowd", default=never_heavy)


def caller_group() -> str:
    """Return the group that this task works for."""
    return _group.get()


def is_heavy_caller() -> bool:
    """Return whether this task works for one of those whose work holds up others now."""
    return _is_heavy.get()()


def on_behalf_of(group: str) -> AbstractContextManager[None]:
    """Within the block, calls and new tasks work for this group."""
    return _within(_group, group)


def with_heaviness(is_heavy: IsHeavy) -> AbstractContextManager[None]:
    """Within the block, this tells of calls and new tasks whether they are of a crowd."""
    return _within(_is_heavy, is_heavy)


@contextmanager
def as_service() -> Iterator[None]:
    """Within the block, work is the replica's own, whoever's request began it."""
    with on_behalf_of(""), with_heaviness(never_heavy):
        yield


@contextmanager
def _within(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
