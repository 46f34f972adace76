"""Tells attached connections once that a conversation was deleted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from sessions.errors import NotFound
from sessions.events import Deleted
from sessions.turn.live_turn import Subscriber


class Deletion:
    """The deletion of one conversation. `known`: the epoch whose deletion was published."""

    __slots__ = ("_asked", "known")

    def __init__(self) -> None:
        self.known = ""
        self._asked: list[tuple[Subscriber, str | None]] = []

    @contextmanager
    def asked_by(self, subscriber: Subscriber, ref: str | None) -> Iterator[None]:
        """Note a requester, which is told with its ref, even if another one was faster."""
        self._asked.append(asked := (subscriber, ref))
        try:
            yield
        except NotFound:
            if asked in self._asked:
                raise
        finally:
            if asked in self._asked:
                self._asked.remove(asked)

    def tell(self, epoch: str, told: Deleted, attached: set[Subscriber]) -> bool:
        """Tell attached connections and requesters; False if that was done before."""
        if epoch == self.known:
            return False
        self.known = epoch
        asked, self._asked = self._asked, []
        others = attached - {subscriber for subscriber, _ in asked}
        for subscriber, ref in [*asked, *((other, None) for other in others)]:
            subscriber.publish(told if ref is None else msgspec.structs.replace(told, ref=ref))
        return True
