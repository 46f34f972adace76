"""Asks all other replicas a question; the layer above answers it for this one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from sessions.errors import StoreDown
from sessions.records import Owner
from sessions.replicas.rpc import PeerRequest, RefusedElsewhere, ReplicaGone, Rpc, RpcResponse
from sessions.store.ownership import Ownership

PATIENCE_S = 3.0
"""How long to wait for another replica: one of an older version never answers."""
_NOBODYS = Owner("", "")
AnswerPeer = Callable[[str], str]


class GatheredAnswers(msgspec.Struct, frozen=True):
    """The replicas' answers by name, this one's first; and the names of living replicas that did not answer."""

    answers: tuple[tuple[str, str], ...]
    silent: tuple[str, ...] = ()


class ScatterGather:
    """Asks other replicas, and answers them."""

    def __init__(self, rpc: Rpc, ownership: Ownership) -> None:
        self._rpc = rpc
        self._ownership = ownership
        self._answer_peer: AnswerPeer | None = None

    def answered_by(self, answer_peer: AnswerPeer) -> None:
        """Set what answers questions. It is synchronous, and no question makes it raise."""
        self._answer_peer = answer_peer

    def respond(self, body: str) -> str:
        """Return this replica's answer; empty if there is no layer above."""
        return "" if self._answer_peer is None else self._answer_peer(body)

    async def ask_all(self, body: str) -> GatheredAnswers:
        """Return every replica's answer. Raises StoreDown if the replicas are not known."""
        others = await self._ownership.others()
        here = (self._ownership.replica, self.respond(body))
        answers = await asyncio.gather(*(self._request(replica, body) for replica in others))
        answered = [(name, answer) for name, answer in zip(others, answers, strict=True) if answer]
        silent = [name for name, answer in zip(others, answers, strict=True) if answer is None]
        return GatheredAnswers((here, *answered), tuple(silent))

    async def _request(self, replica: str, body: str) -> str | None:
        """Return the answer; empty if the replica is gone, None if it does not answer."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer: RpcResponse = await self._rpc.ask(replica, _NOBODYS, "", PeerRequest(body=body))
        except ReplicaGone:
            return ""
        except (StoreDown, RefusedElsewhere, TimeoutError):
            return None
        return answer.body or None
