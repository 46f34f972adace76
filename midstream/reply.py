"""A reply that is being written: its text, what the model thinks and calls, and what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol, cast

from midstream.calls import Call
from midstream.errors import ClientError

Frame = dict[str, Any]


class Server(Protocol):
    """What a reply asks of the server."""

    async def request(self, frame: Frame) -> Frame:
        """Sends a frame and gives its answer. Raises Refused, Disconnected."""

    async def tell(self, frame: Frame) -> None:
        """Sends a frame that has no answer."""


@dataclass(frozen=True, slots=True)
class Status:
    """Where a reply stands. `state`: `queued`, `prefill`, `retrying`, `fallback`, `unsaved`, or a word of a later server.

    `queue_position` (queued) counts from 1, the next to start; `progress` (prefill) is a share from 0 to 1.
    """

    state: str
    queue_position: int | None = None
    progress: float | None = None


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of what the model thinks aloud beside its reply; told to clients that name the feature."""

    text: str


Event = str | Status | Reasoning | Call


@dataclass(slots=True)
class _Read:
    """How far a reply was read: to which event, and from where on its reasoning is new."""

    seq: int = 0
    thought_off: int = 0


class Reply:
    """A reply that is being written. Iterating gives its text; `text`, `reasoning`, `calls`, `status` and `done` hold what came so far.

    It outlives lost connections: what was missed comes when the client is back. A reply that called tools has
    `done["reason"] == "tools"`, and once its calls are settled another one follows by itself: see `following`.
    One that goes on with a message that was cut has what comes behind the first `off` code points of that.
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
        """The turn that writes it."""
        return cast("str", self.accepted["turn_id"])

    @property
    def has_more(self) -> bool:
        """Whether something has come that was not read yet."""
        return not self._frames.empty()

    async def cancel(self, *, rollback: bool = False) -> Frame:
        """Stops the reply, or its calls; what this client received is what it has seen. Gives the `cancelled` frame."""
        frame = {"type": "cancel", "turn_id": self.turn_id, "mode": "rollback" if rollback else "keep"}
        place = {"conversation_id": self.accepted["conversation_id"]}
        return await self._server.request(
            frame | place | ({} if self.done else {"seen_off": self.off + len(self.text)})
        )

    async def ack(self) -> None:
        """Tells the server that all that was read so far has come; it counts for `usage.acked_tokens`."""
        place = {"conversation_id": self.accepted["conversation_id"]}
        await self._server.tell({"type": "ack", "seq": self._read.seq} | place)

    async def wait(self) -> Frame:
        """Reads to the end; gives `done`. Raises Disconnected, ClientError."""
        async for _ in self:
            pass
        return cast("Frame", self.done)

    async def following(self) -> Reply | None:
        """Waits until its calls are settled; gives the reply that follows them, or None where it called nobody.

        Raises Disconnected, ClientError.
        """
        while self._follower is None and (self.done is None or self.done["reason"] == "tools"):
            await self._step()
        return self._follower

    def take(self, frame: Frame | ClientError | Reply) -> None:
        """Takes a frame of this turn, the reply that follows its calls, or what keeps it from being read further."""
        self._frames.put_nowait(frame)

    def begin_with(self, message: Frame) -> None:
        """Takes what the history has of it: it began before this client came."""
        self.text, self.reasoning = message["content"], message.get("reasoning", "")
        self.calls = [Call.of(call) for call in message.get("calls", ())]
        if message["status"] != "running":
            self.done = {"reason": "tools", "message_id": message["message_id"], "chars": len(self.text)}

    def __aiter__(self) -> AsyncIterator[str]:
        return self._texts()

    async def events(self) -> AsyncIterator[Event]:
        """Reads to the end: text as it comes, and between it every `Status`, `Reasoning`, and `Call` that is told or moves.

        Of a reply that calls the end is when all of its calls are settled; somebody has to settle them meanwhile.
        Raises Disconnected, ClientError.
        """
        while self.done is None or any(call.is_open for call in self.calls):
            if (event := await self._step()) is not None:
                yield event

    async def _texts(self) -> AsyncIterator[str]:
        while self.done is None:
            if isinstance(event := await self._step(), str):
                yield event

    async def _step(self) -> Event | None:
        """Takes the next frame; gives what there is to tell of it. Raises Disconnected, ClientError."""
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
        """Cuts it to what is kept. Calls of a reply that ends otherwise than by them are cancelled."""
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
        if self._call(frame["call_id"]) is not None:  # told again after a reconnect
            return None
        self.calls.append(call := Call.of(frame))
        return call

    def _moved(self, frame: Frame) -> Event:
        """Raises ClientError where the call was not told."""
        if (call := self._call(frame["call_id"])) is None:
            raise ClientError("a call of the reply is missing")
        call.take(frame)
        return call

    def _call(self, call_id: str | None) -> Call | None:
        return next((call for call in self.calls if call.call_id == call_id), None)


def _new(piece: Frame, known: int) -> str:
    """The part of a piece behind the `known` code points. Raises ClientError where a part between is missing."""
    if piece["off"] > known:
        raise ClientError("a part of the reply is missing")
    return cast("str", piece["text"][known - piece["off"] :])
