"""For whom the store is asked at the moment: a key or an address, or a client where nobody can tell these apart.

Whoever takes a request in says so once; all tasks that are begun for it know it. Empty: for nobody, as what a replica does by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_asker: ContextVar[str] = ContextVar("midstream_asker", default="")


def asker() -> str:
    """Return for whom this task asks."""
    return _asker.get()


@contextmanager
def asking_for(group: str) -> Iterator[None]:
    """What is asked within the block, and by tasks that begin in it, is asked for this group."""
    token = _asker.set(group)
    try:
        yield
    finally:
        _asker.reset(token)
