"""A client of one conversation that reconnects; one ledger holds what it sees over all its connections."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, WebSocketException

from tests.chaos.event_checker import EventChecker, Frame

UNKNOWN_EPOCH = "none"
OPEN_S = 5.0
ANSWER_S = 20.0
PAGE = 200
KEPT = 500


class Lost(Exception):
    """The connection ended, or could not be opened."""


class Device:
    """A device with at most one connection at a time."""

    def __init__(self, client_id: str, conversation_id: str = "c", *, features: Sequence[str] = ()) -> None:
        self.client_id = client_id
        self.features = features
        self.event_checker = EventChecker(conversation_id)
        self.losses = 0
        self.history_seq = 0
        """Sequence number of the last event in the history that was read last."""
        self._heard: deque[Frame] = deque(maxlen=KEPT)
        self._socket: ClientConnection | None = None
        self._reading: asyncio.Task[None] | None = None
        self._answers: dict[str, asyncio.Future[Frame]] = {}
        self._news = asyncio.Event()

    @property
    def is_there(self) -> bool:
        """True if it is connected, as far as it knows."""
        return self._socket is not None

    async def come(self, url: str) -> None:
        """Connect, and read what it missed. Raises Lost."""
        try:
            self._socket = await connect(url, compression=None, open_timeout=OPEN_S, close_timeout=1.0)
        except (OSError, TimeoutError, InvalidHandshake) as error:
            raise Lost(str(error)) from error
        self._reading = asyncio.create_task(self._read(self._socket))
        await self.put(type="hello", client_id=self.client_id, features=list(self.features))
        position = {"epoch": self.event_checker.epoch or UNKNOWN_EPOCH, "after_seq": self.event_checker.seq}
        answer = await self.ask(type="resume", conversation_id=self.event_checker.conversation_id, **position)
        if answer["type"] != "error":
            return
        if answer["code"] != "not_found":
            await self.leave()
            raise Lost(answer["code"])
        self.event_checker.vanish()

    async def leave(self) -> None:
        """Cut the connection, if there is one."""
        if self._socket is not None and self._reading is not None:
            self._socket.transport.abort()
            await self._reading

    async def put(self, **frame: Any) -> None:
        """Send a frame. Raises Lost."""
        if self._socket is None:
            raise Lost("no connection")
        try:
            await self._socket.send(json.dumps(frame))
        except WebSocketException as error:
            raise Lost(str(error)) from error

    async def ask(self, **frame: Any) -> Frame:
        """Send a frame; return its answer. Raises Lost, also if no answer comes in time."""
        ref = uuid.uuid4().hex
        self._answers[ref] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(ANSWER_S):
                await self.put(**frame, ref=ref)
                return await self._answers[ref]
        except TimeoutError:
            await self.leave()
            raise Lost(f"{frame['type']} was not answered in {ANSWER_S:g} s") from None
        finally:
            del self._answers[ref]

    async def until(self, holds: Callable[[], bool], *, within_s: float = ANSWER_S) -> bool:
        """Read frames until `holds` returns True; return whether it did in time. Raises Lost."""
        try:
            async with asyncio.timeout(within_s):
                while not holds():
                    if self._socket is None:
                        raise Lost("the connection ended")
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return False
        return True

    async def history(self, *, leaf: str | None = None) -> list[Frame]:
        """Return all messages of the active branch, oldest first. `leaf` makes its branch the active one. Raises Lost."""
        messages: list[Frame] = []
        before = {} if leaf is None else {"leaf": leaf}
        while True:
            page = await self.ask(
                type="history", conversation_id=self.event_checker.conversation_id, limit=PAGE, **before
            )
            if page["type"] == "error":
                raise Lost(page["code"])
            messages, self.history_seq = page["messages"] + messages, page["seq"]
            if not page["has_more"]:
                return messages
            before = {"before": messages[0]["message_id"]}

    async def _read(self, socket: ClientConnection) -> None:
        try:
            while True:
                self._take(json.loads(await socket.recv()))
        except WebSocketException:
            self._gone()

    def received_lines(self) -> list[str]:
        """Return the newest received frames, one a line, to find out what went wrong."""
        return [f"{self.client_id}:", *(json.dumps(frame) for frame in self._heard)]

    def _take(self, frame: Frame) -> None:
        self._heard.append(frame)
        self.event_checker.take(frame)
        answer = self._answers.get(frame.get("ref", ""))
        if answer is not None and not answer.done():
            answer.set_result(frame)
        self._news.set()

    def _gone(self) -> None:
        self._socket = None
        self.losses += 1
        self.event_checker.left()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(Lost("the connection ended"))
        self._news.set()
