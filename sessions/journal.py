"""Writes running turns' events to the journal: what all turns have at a moment goes out in one pipeline.

At most one pipeline is under way; what comes meanwhile makes the next one, so a slow store means fewer, larger writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import redis.exceptions as errors
from redis.asyncio import Redis

from sessions.errors import OwnershipLost, StoreDown
from sessions.store import APPEND, load_scripts, store_errors


class Entry(msgspec.Struct, frozen=True):
    """One journalled event, coded."""

    seq: int
    event: bytes


class _Write(msgspec.Struct):
    keys: tuple[str, str]
    turn_id: str
    entries: Sequence[Entry]
    written: asyncio.Future[None]


class Journal:
    """Appends with one pipeline for all turns. `run` must be running for appends to be written."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._waiting: list[_Write] = []
        self._wake = asyncio.Event()
        self.pipelines = 0

    def put_nowait(
        self, keys: tuple[str, str], turn_id: str, entries: Sequence[Entry]
    ) -> asyncio.Future[None]:
        """Appends with the next pipeline; the future tells when the entries are in the store.

        It fails with StoreDown, and with OwnershipLost where the turn is no longer the caller's. Repeating an append
        is harmless, cancelling the future is too.
        """
        write = _Write(keys, turn_id, entries, asyncio.get_running_loop().create_future())
        self._waiting.append(write)
        self._wake.set()
        return write.written

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            writes, self._waiting = self._waiting, []
            try:
                answers = await self._execute(writes)
            except StoreDown as trouble:
                answers = [trouble] * len(writes)
            for write, answer in zip(writes, answers, strict=True):
                self._resolve(write, answer)

    async def _execute(self, writes: Sequence[_Write]) -> list[Any]:
        self.pipelines += 1
        with store_errors():
            answers = await self._pipeline(writes)
            if any(isinstance(answer, errors.NoScriptError) for answer in answers):
                await load_scripts(self._client)
                answers = await self._pipeline(writes)
            return answers

    async def _pipeline(self, writes: Sequence[_Write]) -> list[Any]:
        pipe = self._client.pipeline(transaction=False)
        for write in writes:
            pairs = [part for entry in write.entries for part in (entry.seq, entry.event)]
            pipe.evalsha(APPEND.sha, 2, *write.keys, write.turn_id, *pairs)
        return await pipe.execute(raise_on_error=False)

    @staticmethod
    def _resolve(write: _Write, answer: Any) -> None:
        if write.written.done():  # its turn stopped waiting
            return
        match answer:
            case b"ok":
                write.written.set_result(None)
            case b"lost":
                write.written.set_exception(OwnershipLost(write.turn_id))
            case StoreDown():
                write.written.set_exception(answer)
            case _:
                write.written.set_exception(StoreDown(f"The store refused the journal: {answer}"))
