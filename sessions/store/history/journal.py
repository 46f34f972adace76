"""Writes the events of running turns to the journal: those of all turns go out in one pipeline.

At most one pipeline is under way. Events that come meanwhile make the next one, so a slow store gets fewer, larger writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import redis.exceptions as errors
from redis.asyncio import Redis, RedisCluster

from sessions.errors import OwnershipLost, StoreDown
from sessions.store.redis.client import APPEND, load_scripts, queue_script, store_error_of, store_errors

AT_ONCE = 32
"""Turns that one call writes. The store serves nobody else meanwhile: less than a millisecond."""


class Entry(msgspec.Struct, frozen=True):
    """An encoded event, and what else it changes in the conversation (see `append.lua`)."""

    seq: int
    event: bytes
    patch: bytes = b""


class _Write(msgspec.Struct):
    keys: tuple[str, str]
    turn_id: str
    entries: Sequence[Entry]
    written: asyncio.Future[bool]
    on_written: Callable[[], None]


class Journal:
    """Appends events of all turns in one pipeline, while `run` runs."""

    def __init__(self, client: Redis, *, replica: str) -> None:
        self._client = client
        self._replica = replica
        self._waiting: list[_Write] = []
        self._wake = asyncio.Event()
        # in a cluster a script sees one conversation's keys only; elsewhere one call is cheaper than many
        self._at_once = 1 if isinstance(cast("object", client), RedisCluster) else AT_ONCE
        self.pipelines = 0
        self.bytes = 0

    def put_nowait(
        self,
        keys: tuple[str, str],
        turn_id: str,
        entries: Sequence[Entry],
        *,
        on_written: Callable[[], None] = lambda: None,
    ) -> asyncio.Future[bool]:
        """Append with the next pipeline; the future is done when the store has the entries.

        Its result is whether other replicas watch the conversation. It fails with StoreDown, or with OwnershipLost if the
        caller no longer owns the turn. Appending again is harmless, and so is cancelling the future. `on_written` is called as soon as
        it is done: a callback of its own would be called a turn of the event loop later.
        """
        self.bytes += sum(len(entry.event) for entry in entries)
        write = _Write(keys, turn_id, entries, asyncio.get_running_loop().create_future(), on_written)
        self._waiting.append(write)
        self._wake.set()
        return write.written

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            writes, self._waiting = self._waiting, []
            try:
                answers = await self._execute(writes)
            except StoreDown as trouble:
                answers = [trouble] * len(writes)
            for write, answer in zip(writes, answers, strict=True):
                if not write.written.done():  # its turn still waits
                    self._resolve(write, answer)
                    write.on_written()

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
        calls = [writes[start : start + self._at_once] for start in range(0, len(writes), self._at_once)]
        for call in calls:
            keys = [key for write in call for key in write.keys]
            queue_script(
                pipe, APPEND, keys, [self._replica, *(part for write in call for part in _parts(write))]
            )
        answers = await pipe.execute(raise_on_error=False)
        return [
            one
            for call, answer in zip(calls, answers, strict=True)
            for one in (answer if isinstance(answer, list) else [answer] * len(call))
        ]

    @staticmethod
    def _resolve(write: _Write, answer: Any) -> None:
        match answer:
            case b"ok":
                write.written.set_result(False)
            case bytes() if answer.startswith(b"ok "):
                write.written.set_result(True)
            case b"lost" | b"behind":
                write.written.set_exception(OwnershipLost(write.turn_id))
            case StoreDown():
                write.written.set_exception(answer)
            case BaseException():
                write.written.set_exception(store_error_of(answer))
            case _:
                write.written.set_exception(store_error_of(ValueError(f"an answer of {len(answer)} bytes")))


def _parts(write: _Write) -> list[str | bytes | int]:
    parts: list[str | bytes | int] = [write.turn_id, len(write.entries)]
    for entry in write.entries:
        parts += (entry.seq, entry.event, entry.patch)
    return parts
