"""A client written from PROTOCOL.md, for developing the tests."""

from __future__ import annotations

import asyncio
import json
import secrets
from contextlib import suppress
from typing import Any

import websockets


class ChatError(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class Client:
    def __init__(self, url: str, client_id: str) -> None:
        self.url, self.client_id = url, client_id
        self.epoch, self.seq = "", 0
        self.socket: Any = None
        self.reader: Any = None
        self.turn_id: str | None = None
        self.text = ""
        self.limit: int | None = None
        self.reason: str | None = None
        self.past: list[tuple[str, str]] = []
        self.last: dict[str, Any] | None = None
        self.pending: dict[str, asyncio.Future[None]] = {}
        self.changed = asyncio.Condition()
        self.users: set[str] = set()

    async def open(self) -> None:
        self.socket = await websockets.connect(self.url)
        self.reader = asyncio.create_task(self._read(self.socket))
        await self._put(type="hello", client_id=self.client_id)
        if self.epoch:
            await self._put(type="resume", conversation_id="trip", epoch=self.epoch, after_seq=self.seq)
        if self.last is not None and self.last["client_msg_id"] in self.pending:
            await self._put(**self.last)

    async def reconnect(self) -> None:
        await self.close()
        await self.open()

    async def close(self) -> None:
        await self.socket.close()
        await self.reader

    async def drop(self) -> None:
        self.socket.transport.abort()

    async def send(self, text: str) -> None:
        self.last = {
            "type": "send",
            "client_msg_id": secrets.token_hex(8),
            "conversation_id": "trip",
            "content": text,
            "grace_s": 20,
        }
        await self.resend()

    async def resend(self) -> None:
        assert self.last is not None
        key = self.last["client_msg_id"]
        answer = self.pending.setdefault(key, asyncio.get_running_loop().create_future())
        with suppress(websockets.ConnectionClosed):
            await self._put(**self.last)
        await asyncio.shield(answer)

    async def wait(self) -> str:
        async with self.changed:
            await self.changed.wait_for(lambda: self.reason is not None)
        assert self.reason is not None
        return self.reason

    async def wait_for(self, characters: int) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.text) >= characters)

    async def stop(self, shown: int | None = None) -> str:
        if self.reason is None:
            self.limit = len(self.text) if shown is None else shown
            await self._put(type="cancel", turn_id=self.turn_id, seen_off=self.limit)
        return await self.wait()

    @property
    def reply(self) -> str:
        return self.text[: self.limit]

    @property
    def messages(self) -> list[tuple[str, str]]:
        return self.past + ([("assistant", self.reply)] if self.turn_id else [])

    async def _put(self, **frame: Any) -> None:
        await self.socket.send(json.dumps(frame))

    async def _read(self, socket: Any) -> None:
        with suppress(websockets.ConnectionClosed):
            async for raw in socket:
                frame = json.loads(raw)
                async with self.changed:
                    await self._take(frame)
                    self.changed.notify_all()

    async def _take(self, frame: dict[str, Any]) -> None:  # noqa: C901 - one branch for each frame
        if frame["type"] in ("accepted", "error") and (ref := frame.get("client_msg_id", frame.get("ref"))):
            answer = self.pending.pop(ref, None)
            if answer is not None and not answer.done():
                if frame["type"] == "error":
                    answer.set_exception(ChatError(frame["code"], frame["message"]))
                else:
                    answer.set_result(None)
        if frame["type"] not in ("accepted", "delta", "done", "removed"):
            return
        if frame["seq"] <= self.seq:
            return
        if self.epoch and frame.get("first_seq", frame["seq"]) > self.seq + 1:
            await self._put(type="resume", conversation_id="trip", epoch=self.epoch, after_seq=self.seq)
            return
        self.seq = frame["seq"]
        if frame["type"] == "accepted":
            self.epoch = frame["epoch"]
            if self.turn_id:
                self.past.append(("assistant", self.reply))
            assert self.last is not None
            self.past.append(("user", self.last["content"]))
            self.turn_id, self.text, self.limit, self.reason = frame["turn_id"], "", None, None
        elif frame["type"] == "delta":
            self.text = self.text[: frame["off"]] + frame["text"]
        elif frame["type"] == "done":
            self.limit, self.reason = frame["chars"], frame["reason"]
