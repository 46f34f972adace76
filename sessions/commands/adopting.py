"""Moves the conversations that version 0.1.0 kept for each client to the person, when the client connects and afterwards."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec
import structlog

from sessions.conversation.guarding import Tasks
from sessions.errors import StoreDown
from sessions.records import Client, Owner
from sessions.store.adoption import Adoption

LOOK_S = 0.25
"""How long a connecting client waits to know whether it has any."""
PATIENCE_S = 0.5
"""How long a connecting client waits for its conversations; the newest come first."""
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""Pauses between retries for conversations that have to wait; after the last one, the client's next connection retries."""
AT_ONCE = 2
"""Clients whose conversations move at the same time: each has one conversation in memory."""

_log = structlog.get_logger("midstream.adoption")


class _UnderWay(msgspec.Struct, frozen=True, eq=False):
    task: asyncio.Task[None]
    looked: asyncio.Event


class Adopter:
    """Moves conversations in the background. One move a client at a time."""

    def __init__(self, adoption: Adoption, tasks: Tasks) -> None:
        self._tasks = tasks
        self._adoption = adoption
        self._under_way: dict[Owner, _UnderWay] = {}
        self._room = asyncio.Semaphore(AT_ONCE)

    async def adopt(self, person: Owner, client: Client) -> None:
        """Begin, and wait a moment: usually all idle conversations have moved by then."""
        former = Owner(client.principal, client.client_id)
        if former == person:
            return
        if await self._may_have_any(former):
            under_way = self._begin(former, person)
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    await under_way.looked.wait()

    async def _may_have_any(self, former: Owner) -> bool:
        """Return whether anything has to move; if the store does not answer in time, that is found out later."""
        if former in self._under_way:
            return True
        try:
            async with asyncio.timeout(LOOK_S):
                return await self._adoption.has_any(former)
        except (StoreDown, TimeoutError):
            return True

    def stop(self) -> None:
        """End all moves; they continue when their clients connect again."""
        for under_way in self._under_way.values():
            under_way.task.cancel()

    def _begin(self, former: Owner, person: Owner) -> _UnderWay:
        if (known := self._under_way.get(former)) is not None:
            return known
        looked = asyncio.Event()
        task = self._tasks.begin(self._adopt(former, person, looked))
        task.add_done_callback(lambda _: self._under_way.pop(former))
        self._under_way[former] = begun = _UnderWay(task, looked)
        return begun

    async def _adopt(self, former: Owner, person: Owner, looked: asyncio.Event) -> None:
        try:
            for pause in (*PAUSES_S, None):
                done = await self._look(former, person)
                looked.set()
                if done or pause is None:
                    return
                await asyncio.sleep(pause)
        except Exception:  # noqa: BLE001 - a task's boundary: the client is served without its old conversations
            _log.exception("adoption failed")
        finally:
            looked.set()

    async def _look(self, former: Owner, person: Owner) -> bool:
        """Return whether nothing is left."""
        try:
            async with self._room:
                adopted, waiting = await self._adoption.adopt_all(former, person)
        except StoreDown as trouble:
            _log.warning("conversations not adopted so far", why=str(trouble))
            return False
        if adopted or waiting:
            _log.info("conversations adopted", adopted=adopted, waiting=waiting, principal=person.principal)
        return not waiting
