"""Moves conversations that version 0.1.0 kept for one client to the person, whose devices now share one history.

Old and new keys are in different slots of a cluster, so no script sees both. A conversation moves in steps: it is sealed
against writes; a copy is put beside its new place; the copy takes that place, once; the list names it; the old one is removed.
Each step may be repeated, by several replicas at once, and after a crash behind any of them.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Literal

import msgspec
from redis.asyncio import Redis

from sessions.errors import StoreDown
from sessions.records import Owner
from sessions.store.history.index import Index
from sessions.store.history.keys import Keys, now_ms
from sessions.store.ledger import Ledger
from sessions.store.ownership import Ownership
from sessions.store.redis.client import ADOPT, HAND_OVER, RESEAL, SEAL, run_script, store_errors

BATCH = 100
"""Conversations that are read from the old list at once."""
ATTEMPTS = 8
"""Attempts to place a copy; the second uses a new name."""
COPY_MS = 60_000
"""How long a copy is kept that never takes its place."""
MARK_MS = 3_600_000
"""How long the mark of an adoption is kept once all steps are done: longer than any replica stalls."""
COMING_MS = 30_000
"""How long a row of the list may precede its conversation: a message is listed first, then accepted."""
MAX_ID = 128


class _Sealed(msgspec.Struct, frozen=True):
    """A conversation that moves between its two owners. `goal`: its new id; `left_ms`: its remaining lifetime.

    `epoch`: tells it from another conversation that takes its name later.
    """

    goal: str
    left_ms: int
    epoch: bytes

    def mark(self, old: Keys, new: Keys) -> str:
        """The store's key for the mark that it was adopted."""
        origin = hashlib.sha256(old.conversation.encode() + self.epoch).hexdigest()
        return f"{new.conversation}:adopted:{origin[:16]}"


class Adoption:
    """Runs the steps in the store. Methods raise StoreDown."""

    def __init__(
        self, client: Redis, *, index: Index, ledger: Ledger, ownership: Ownership, ttl_s: float
    ) -> None:
        self._client = client
        self._index = index
        self._ledger = ledger
        self._ownership = ownership
        self._ttl_ms = int(ttl_s * 1000)

    async def has_any(self, former: Owner) -> bool:
        """Return whether anything is left under the old owner."""
        return bool(await self._index.newest(former, first=0, limit=1))

    async def adopt_all(self, former: Owner, person: Owner) -> tuple[int, int]:
        """Move all that can move, newest first; return how many moved and how many have to wait.

        A conversation waits while a turn of it runs, or while an older replica has connections attached to it.
        """
        adopted = waiting = 0
        while rows := await self._index.newest(former, first=waiting, limit=BATCH):
            for conversation_id, at_ms in rows:
                if await self._adopt(former, person, conversation_id, at_ms):
                    adopted += 1
                else:
                    waiting += 1
        if not waiting:
            await self._ledger.forget(str(former))
        return adopted, waiting

    async def _adopt(self, former: Owner, person: Owner, conversation_id: str, at_ms: int) -> bool:
        """Move one conversation; False if it has to wait."""
        old = Keys.of(former, conversation_id)
        match await self._seal(old, conversation_id):
            case "waits":
                return False
            case "gone" if at_ms > now_ms() - COMING_MS:
                return False
            case _Sealed() as sealed:
                await self._move(old, person, conversation_id, sealed, at_ms)
        await self._index.forget_as_of(former, conversation_id, at_ms)
        return True

    async def _move(
        self, old: Keys, person: Owner, conversation_id: str, sealed: _Sealed, at_ms: int
    ) -> None:
        place = await self._place(old, person, conversation_id, sealed)
        if place is not None:
            goal, mark = place
            await self._index.add(person, goal, at_ms)
            await run_script(self._client, HAND_OVER, old.pair(), [sealed.epoch])
            with store_errors():
                await self._client.pexpire(mark, MARK_MS)

    async def _seal(self, old: Keys, conversation_id: str) -> _Sealed | Literal["waits", "gone"]:
        dead: list[str] = []
        while True:
            answer = await run_script(self._client, SEAL, [old.conversation], [conversation_id, *dead])
            match answer:
                case None:
                    return "gone"
                case [b"sealed", goal, left_ms, epoch]:
                    return _Sealed(goal.decode(), left_ms if left_ms > 0 else self._ttl_ms, epoch)
                case [b"watched", names]:
                    watching = names.decode().split()
                    if any([await self._ownership.holds_lease(name) for name in watching]):
                        return "waits"
                    dead += watching
                case _:
                    return "waits"

    async def _place(
        self, old: Keys, person: Owner, conversation_id: str, sealed: _Sealed
    ) -> tuple[str, str] | None:
        """Put a copy into its place; return its id there and its mark, or None if all is done already."""
        goal = sealed.goal
        for _ in range(ATTEMPTS):
            with store_errors():
                content = await self._client.dump(old.conversation)
            if content is None:
                return None
            new = Keys.of(person, goal)
            mark = sealed.mark(old, new)
            copy = f"{mark}:copy"
            with store_errors():
                await self._client.restore(copy, COPY_MS, content, replace=True)
            keys = [*new.pair(), copy, mark]
            answer = await run_script(self._client, ADOPT, keys, [secrets.token_hex(8), sealed.left_ms])
            if answer == b"ok":
                return goal, mark
            if answer == b"taken":
                beside = [goal, _beside(conversation_id)]
                agreed: bytes | None = await run_script(self._client, RESEAL, [old.conversation], beside)
                if agreed is None:
                    return None
                goal = agreed.decode()
        raise StoreDown("There is no free name for an adopted conversation.")


def _beside(conversation_id: str) -> str:
    """Return another id for a conversation whose own is taken."""
    suffix = f"-{secrets.token_hex(4)}"
    return conversation_id[: MAX_ID - len(suffix)] + suffix
