"""Tells attached connections once that a conversation was deleted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from sessions.errors import NotFound
from sessions.events import Deleted
from sessions.turn.turn import Subscriber


class DeletionNotice:
    """The deletion of one conversation. `known`: the epoch whose deletion was published."""

    __slots__ = ("_requesters", "known")

    def __init__(self) -> None:
        self.known = ""
        self._requesters: list[tuple[Subscriber, str | None]] = []

    @contextmanager
    def requested_by(self, subscriber: Subscriber, ref: str | None) -> Iterator[None]:
        """Note a requester, which is told with its ref, even if another one was faster."""
        self._requesters.append(requester := (subscriber, ref))
        try:
            yield
        except NotFound:
            if requester in self._requesters:
                raise
        finally:
            if requester in self._requesters:
                self._requesters.remove(requester)

    def publish(self, epoch: str, event: Deleted, attached: set[Subscriber]) -> bool:
        """Tell attached connections and requesters; False if that was done before."""
        if epoch == self.known:
            return False
        self.known = epoch
        requesters, self._requesters = self._requesters, []
        others = attached - {subscriber for subscriber, _ in requesters}
        for subscriber, ref in [*requesters, *((other, None) for other in others)]:
            subscriber.publish(event if ref is None else msgspec.structs.replace(event, ref=ref))
        return True
