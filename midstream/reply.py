"""A running reply: its text, reasoning, calls and status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol, cast

from midstream.calls import Call
from midstream.errors import ClientError

Frame = dict[str, Any]


class Server(Protocol):
    """What a reply needs of the client."""

    async def request(self, frame: Frame) -> Frame:
        """Send a frame and return its answer. Raises Refused, Disconnected."""

    async def tell(self, frame: Frame) -> None:
        """Send a frame that has no answer."""


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a reply. `state`: `queued`, `prefill`, `retrying`, `fallback`, `unsaved`, or a new one of a later server.

    `queue_position` (queued) counts from 1, the next to start; `progress` (prefill) is a share from 0 to 1.
    """

    state: str
    queue_position: int | None = None
    progress: float | None = None


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the model's reasoning, for clients with the feature `reasoning`."""

    text: str


Event = str | Status | Reasoning | Call


@dataclass(slots=True)
class _Read:
    """How far a reply was read: its last event, and the length of its reasoning."""

    seq: int = 0
    thought_off: int = 0


class Reply:
    """A running reply. Iterate it for its text; `text`, `reasoning`, `calls`, `status` and `done` hold what came so far.

    It outlives lost connections: missed events come after a reconnection. A reply that called tools has `done["reason"] ==
    "tools"`; once its calls are settled another one follows: see `following`. A reply that continues a cut message has the text
    after the first `off` code points.
    """

    def __init__(self, server: Server, accepted: Frame, *, sent: Frame | None) -> None:
        self.accepted = accepted
        self.sent = sent
        self.text = ""
        self.reasoning = ""
        self.calls: list[Call] = []
        self.off = 0
        self._read = _Read()
        self.status: Status | None = None
        self.done: Frame | None = None
        self._server = server
        self._follower: Reply | None = None
        self._frames: asyncio.Queue[Frame | ClientError | Reply] = asyncio.Queue()

    @property
    def turn_id(self) -> str:
        """The id of its turn."""
        return cast("str", self.accepted["turn_id"])

    @property
    def has_more(self) -> bool:
        """Whether something has come that is not read yet."""
        return not self._frames.empty()

    async def cancel(self, *, rollback: bool = False) -> Frame:
        """Stop the reply, or its calls; what this client received counts as seen. Return the `cancelled` frame."""
        frame = {"type": "cancel", "turn_id": self.turn_id, "mode": "rollback" if rollback else "keep"}
        ids = {"conversation_id": self.accepted["conversation_id"]}
        return await self._server.request(
            frame | ids | ({} if self.done else {"seen_off": self.off + len(self.text)})
        )

    async def ack(self) -> None:
        """Acknowledge all that was read so far; it counts for `usage.acked_tokens`."""
        ids = {"conversation_id": self.accepted["conversation_id"]}
        await self._server.tell({"type": "ack", "seq": self._read.seq} | ids)

    async def wait(self) -> Frame:
        """Read to the end; return `done`. Raises Disconnected, ClientError."""
        async for _ in self:
            pass
        return cast("Frame", self.done)

    async def following(self) -> Reply | None:
        """Wait until its calls are settled; return the reply that follows them, or None if it had no calls.

        Raises Disconnected, ClientError.
        """
        while self._follower is None and (self.done is None or self.done["reason"] == "tools"):
            await self._step()
        return self._follower

    def take(self, frame: Frame | ClientError | Reply) -> None:
        """Take a frame of this turn, the reply that follows its calls, or a failure."""
        self._frames.put_nowait(frame)

    def begin_with(self, message: Frame) -> None:
        """Take its part in the history: it began before this client attached."""
        self.text, self.reasoning = message["content"], message.get("reasoning", "")
        self.calls = [Call.of(call) for call in message.get("calls", ())]
        if message["status"] != "running":
            self.done = {"reason": "tools", "message_id": message["message_id"], "chars": len(self.text)}

    def __aiter__(self) -> AsyncIterator[str]:
        return self._texts()

    async def events(self) -> AsyncIterator[Event]:
        """Read to the end: yields text, and between it every `Status`, `Reasoning`, and new or changed `Call`.

        A reply with calls ends when all of them are settled, which the caller or others have to do. Raises Disconnected, ClientError.
        """
        while self.done is None or any(call.is_open for call in self.calls):
            if (event := await self._step()) is not None:
                yield event

    async def _texts(self) -> AsyncIterator[str]:
        while self.done is None:
            if isinstance(event := await self._step(), str):
                yield event

    async def _step(self) -> Event | None:
        """Take the next frame; return what it brings. Raises Disconnected, ClientError."""
        frame = await self._frames.get()
        if isinstance(frame, ClientError):
            raise frame
        if isinstance(frame, Reply):
            self._follower = frame
            return None
        self._read.seq = frame.get("seq", self._read.seq)
        return self._taken(frame)

    def _taken(self, frame: Frame) -> Event | None:
        match frame["type"]:
            case "done":
                self._end(frame)
                return None
            case "status":
                return self._noted(frame)
            case "tool_call":
                return self._called(frame)
            case "tool_state":
                return self._moved(frame)
            case "reasoning":
                if "continues" in self.accepted and not self.reasoning:
                    self._read.thought_off = frame["off"]
                new = _new(frame, self._read.thought_off + len(self.reasoning))
                self.reasoning += new
                return Reasoning(new) if new else None
            case _:
                if "continues" in self.accepted and not self.text:
                    self.off = frame["off"]
                new = _new(frame, self.off + len(self.text))
                self.text += new
                return new or None

    def _end(self, done: Frame) -> None:
        """Cut it to what is kept. Unless the reply ended by its calls, these are cancelled."""
        self.done = done
        self.text = self.text[: max(0, done["chars"] - self.off)]
        kept = done.get("reasoning_chars", 0) - self._read.thought_off
        self.reasoning = self.reasoning[: max(0, kept)]
        self.calls = [call for call in self.calls if call.off <= done["chars"]]
        if done["reason"] != "tools":
            for call in self.calls:
                call.cancel()

    def _noted(self, status: Frame) -> Event | None:
        if status["state"] != "tool":
            self.status = Status(status["state"], status.get("queue_position"), status.get("progress"))
            return self.status
        if (call := self._call(status.get("call_id"))) is not None:
            call.note(status)
        return call

    def _called(self, frame: Frame) -> Event | None:
        if self._call(frame["call_id"]) is not None:  # repeated after a reconnection
            return None
        self.calls.append(call := Call.of(frame))
        return call

    def _moved(self, frame: Frame) -> Event:
        """Raise ClientError if the call is not known."""
        if (call := self._call(frame["call_id"])) is None:
            raise ClientError("a call of the reply is missing")
        call.take(frame)
        return call

    def _call(self, call_id: str | None) -> Call | None:
        return next((call for call in self.calls if call.call_id == call_id), None)


def _new(piece: Frame, known: int) -> str:
    """Return the part of a piece after the `known` code points. Raises ClientError if a part between is missing."""
    if piece["off"] > known:
        raise ClientError("a part of the reply is missing")
    return cast("str", piece["text"][known - piece["off"] :])
