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
IsCrowd = Callable[[], bool]


def nobody() -> bool:
    """Return that it is of no crowd."""
    return False


_asker: ContextVar[str] = ContextVar("midstream_asker", default="")
_is_crowd: ContextVar[IsCrowd] = ContextVar("midstream_is_crowd", default=nobody)


def asker() -> str:
    """Return the group that this task works for."""
    return _asker.get()


def is_of_a_crowd() -> bool:
    """Return whether this task works for one of those whose work holds up others now."""
    return _is_crowd.get()()


def asking_for(group: str) -> AbstractContextManager[None]:
    """Within the block, calls and new tasks work for this group."""
    return _within(_asker, group)


def crowding(is_crowd: IsCrowd) -> AbstractContextManager[None]:
    """Within the block, this tells of calls and new tasks whether they are of a crowd."""
    return _within(_is_crowd, is_crowd)


@contextmanager
def for_everybody() -> Iterator[None]:
    """Within the block, work is the replica's own, whoever's request began it."""
    with asking_for(""), crowding(nobody):
        yield


@contextmanager
def _within(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
