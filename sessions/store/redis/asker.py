"""On whose behalf the store is called: a key or an address, or a client if these are not known.

It is set once when a request arrives, and inherited by all tasks that begin for it. Empty: the replica's own work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_asker: ContextVar[str] = ContextVar("midstream_asker", default="")


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
