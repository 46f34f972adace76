"""On whose behalf the store is called: a key or an address, or a client if these are not known; and whether that is of a crowd.

The group is set once when a request arrives, and inherited by all tasks that begin for it. Empty: the replica's own work.
Whether it is of a crowd is asked anew each time, since it changes while a connection, or a long reply, lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

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


@contextmanager
def asking_for(group: str) -> Iterator[None]:
    """Within the block, calls and new tasks work for this group."""
    token = _asker.set(group)
    try:
        yield
    finally:
        _asker.reset(token)


@contextmanager
def crowding(is_crowd: IsCrowd) -> Iterator[None]:
    """Within the block, this tells of calls and new tasks whether they are of a crowd."""
    token = _is_crowd.set(is_crowd)
    try:
        yield
    finally:
        _is_crowd.reset(token)


@contextmanager
def for_everybody() -> Iterator[None]:
    """Within the block, work is the replica's own, whoever's request began it."""
    with asking_for(""), crowding(nobody):
        yield
