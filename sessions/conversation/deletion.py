"""Who is told that a conversation was deleted: all who are attached, and once, however often the news come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from sessions.errors import NotFound
from sessions.events import Deleted
from sessions.turn.live_turn import Subscriber


class Deletion:
    """Of one conversation. `known`: the epoch whose deletion is no news any more."""

    __slots__ = ("_asked", "known")

    def __init__(self) -> None:
        self.known = ""
        self._asked: list[tuple[Subscriber, str | None]] = []

    @contextmanager
    def asked_by(self, subscriber: Subscriber, ref: str | None) -> Iterator[None]:
        """Somebody waits for it, who is told with a ref; it is answered then, also where another one was faster."""
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
        """Tells whoever is attached or asked for it; False where it was told before."""
        if epoch == self.known:
            return False
        self.known = epoch
        asked, self._asked = self._asked, []
        others = attached - {subscriber for subscriber, _ in asked}
        for subscriber, ref in [*asked, *((other, None) for other in others)]:
            subscriber.publish(told if ref is None else msgspec.structs.replace(told, ref=ref))
        return True
