"""Asks all replicas the same, in words that the floor above knows: it says here what this one answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from sessions.errors import StoreDown
from sessions.records import Owner
from sessions.replicas.rpc import Answer, AskAbove, OwnerGone, RefusedElsewhere, Rpc
from sessions.store.ownership import Ownership

PATIENCE_S = 3.0
"""How long another replica has to answer: one of an older version never does."""
_NOBODYS = Owner("", "")
Hear = Callable[[str], str]


class Gathered(msgspec.Struct, frozen=True):
    """What replicas answered, this one first, by their names; and the names of those that live and did not answer."""

    answers: tuple[tuple[str, str], ...]
    silent: tuple[str, ...] = ()


class Gathering:
    """Asks, and is asked."""

    def __init__(self, rpc: Rpc, ownership: Ownership) -> None:
        self._rpc = rpc
        self._ownership = ownership
        self._hear: Hear | None = None

    def answered_by(self, hear: Hear) -> None:
        """What is asked is answered by this, from now on. Synchronous, and raises nothing that a peer could cause."""
        self._hear = hear

    def hear(self, body: str) -> str:
        """The answer of this replica; empty where there is no floor above."""
        return "" if self._hear is None else self._hear(body)

    async def ask_all(self, body: str) -> Gathered:
        """What every replica answers. Raises StoreDown where nobody knows which replicas there are."""
        others = await self._ownership.others()
        here = (self._ownership.replica, self.hear(body))
        answers = await asyncio.gather(*(self._ask(replica, body) for replica in others))
        told = [(name, answer) for name, answer in zip(others, answers, strict=True) if answer]
        silent = [name for name, answer in zip(others, answers, strict=True) if answer is None]
        return Gathered((here, *told), tuple(silent))

    async def _ask(self, replica: str, body: str) -> str | None:
        """The answer; empty where the replica is gone, None where it says nothing."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer: Answer = await self._rpc.ask(replica, _NOBODYS, "", AskAbove(body=body))
        except OwnerGone:
            return ""
        except (StoreDown, RefusedElsewhere, TimeoutError):
            return None
        return answer.body or None
