"""On whose behalf the store is called: a key or an address, or a client if these are not known; and whether that is of a crowd.

Both are set when a request arrives, and inherited by all tasks that begin for it. Empty: the replica's own work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_asker: ContextVar[str] = ContextVar("midstream_asker", default="")
_of_a_crowd: ContextVar[bool] = ContextVar("midstream_of_a_crowd", default=False)


def asker() -> str:
    """Return the group that this task works for."""
    return _asker.get()


@contextmanager
def asking_for(group: str) -> Iterator[None]:
    """Within the block, calls and new tasks work for this group."""
    token = _asker.set(group)
    try:
        yield
    finally:
        _asker.reset(token)


def is_of_a_crowd() -> bool:
    """Return whether this task works for one of those who cause most of the recent work."""
    return _of_a_crowd.get()


def note_crowd(*, is_crowd: bool) -> None:
    """Set that for this task, and for those that it begins."""
    _of_a_crowd.set(is_crowd)
