"""A running reply: its text, reasoning, tool calls and status; and a live translation, whose source grows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

from midstream.server_connection import ClientError, Frame, Refused

CallState = Literal["waiting", "running", "done", "denied", "cancelled", "expired", "lost"]
"""`waiting` and `running` are open; all other states are final."""

_OPEN = frozenset({"waiting", "running"})


@dataclass(slots=True, kw_only=True)
class Call:
    """A call of a tool, as far as it is known. `args` is the text of a JSON object, `args_sha256` the hash of that text.

    `where` says who runs it: `client` or `server`. `needs` is `approval` if somebody has to allow it. `off` is the length of
    the reply's text before the call; `expires_at` is in Unix milliseconds. `content`, or else `error`, is its result. `progress`
    (0 to 1) and `message` are the server's progress.
    """

    call_id: str
    index: int
    name: str
    args: str
    args_sha256: str
    where: Literal["client", "server"]
    needs: Literal["none", "approval"]
    off: int
    expires_at: int | None = None
    state: CallState = "waiting"
    content: str | None = None
    error: str | None = None
    progress: float | None = None
    message: str = ""

    @classmethod
    def of(cls, frame: Frame) -> Call:
        """Read a call from a `tool_call` frame, or from a reply in the history."""
        fields = {name: frame[name] for name in cls.__slots__ if frame.get(name) is not None}
        return cls(**fields)

    @property
    def arguments(self) -> dict[str, Any]:
        """The parsed arguments."""
        read: dict[str, Any] = json.loads(self.args)
        return read

    @property
    def is_open(self) -> bool:
        """Whether the call is not settled yet."""
        return self.state in _OPEN

    @property
    def needs_decision(self) -> bool:
        """Whether somebody has to allow or deny it."""
        return self.state == "waiting" and self.needs == "approval"

    def take(self, frame: Frame) -> None:
        """Take the call's new state from a `tool_state` frame."""
        self.state = frame["state"]
        self.content, self.error = frame.get("content"), frame.get("error")
        self.args = frame.get("args", self.args)
        self.args_sha256 = frame.get("args_sha256", self.args_sha256)

    def note(self, status: Frame) -> None:
        """Take the server's progress."""
        self.progress, self.message = status.get("progress"), status.get("message", "")

    def cancel(self) -> None:
        """Mark an open call as cancelled: its turn has ended, so no answer will come."""
        if self.is_open:
            self.state = "cancelled"


class Server(Protocol):
    """What a reply needs of the client."""

    async def request(self, frame: Frame) -> Frame:
        """Send a frame and return its answer. Raises Refused, Disconnected."""

    async def notify(self, frame: Frame) -> None:
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


class Reply:
    """A running reply. Iterate it for its text; `text`, `reasoning`, `calls`, `status` and `done` hold what came so far.

    It outlives lost connections: missed events come after a reconnection. A reply that called tools has `done["reason"] ==
    "tools"`; once its calls are settled another one follows: see `following`. If the reply continues a cut message, `text` has
    what follows the message's first `off` code points.
    """

    def __init__(self, server: Server, accepted: Frame, *, sent: Frame | None) -> None:
        self.accepted = accepted
        self.sent = sent
        self.text = ""
        self.reasoning = ""
        self.calls: list[Call] = []
        self.off = 0
        self._seq = 0  # of the last event that was read
        self._thought_off = 0  # where the reasoning begins
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

    @property
    def _ids(self) -> Frame:
        """The fields that name its turn in a frame."""
        return {"conversation_id": self.accepted["conversation_id"], "turn_id": self.turn_id}

    async def cancel(self, *, rollback: bool = False) -> Frame:
        """Stop the reply, or its calls; what this client received counts as seen. Return the `cancelled` frame."""
        frame = {"type": "cancel", "mode": "rollback" if rollback else "keep"} | self._ids
        seen = {} if self.done else {"seen_off": self.off + len(self.text)}
        return await self._server.request(frame | seen)

    async def ack(self) -> None:
        """Acknowledge all that was read so far; it counts for `usage.acked_tokens`."""
        ids = {"conversation_id": self.accepted["conversation_id"]}
        await self._server.notify({"type": "ack", "seq": self._seq} | ids)

    async def wait(self) -> Frame:
        """Read to the end; return `done`. Raises Disconnected, ClientError."""
        async for _ in self:
            pass
        return cast("Frame", self.done)

    async def following(self) -> Reply | None:
        """Wait until its calls are settled; return the reply that follows them, or None if none follows.

        Raises Disconnected, ClientError.
        """
        while self._follower is None and (self.done is None or self.done["reason"] == "tools"):
            await self._step()
        return self._follower

    def take(self, frame: Frame | ClientError | Reply) -> None:
        """Take a frame of this turn, the reply that follows its calls, or a failure."""
        self._frames.put_nowait(frame)

    def begin_with(self, message: Frame) -> None:
        """Take what the history has of a reply that began before this client attached."""
        self.text, self.reasoning = message["content"], message.get("reasoning", "")
        self.calls = [Call.of(call) for call in message.get("calls", ())]
        if message["status"] != "running":
            self.done = {"reason": "tools", "message_id": message["message_id"], "chars": len(self.text)}

    def __aiter__(self) -> AsyncIterator[str]:
        return self._texts()

    async def events(self) -> AsyncIterator[Event]:
        """Read to the end; yield text and, between its pieces, every `Status`, `Reasoning`, and new or changed `Call`.

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
        self._seq = frame.get("seq", self._seq)
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
                    self._thought_off = frame["off"]
                new = _new(frame, self._thought_off + len(self.reasoning))
                self.reasoning += new
                return Reasoning(new) if new else None
            case _:
                if "continues" in self.accepted and not self.text:
                    self.off = frame["off"]
                new = _new(frame, self.off + len(self.text))
                self.text += new
                return new or None

    def _end(self, done: Frame) -> None:
        """Cut the reply to what is kept. Unless it ended with calls to be settled, its calls are cancelled."""
        self.done = done
        self.text = self.text[: max(0, done["chars"] - self.off)]
        kept = done.get("reasoning_chars", 0) - self._thought_off
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
        """Return the call with its new state. Raises ClientError if it is not known."""
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


class Interpretation:
    """A live translation. Iterate it for its text, which is never revised. `reply` has what came so far.

    `append` adds to the source. Words end with a space: an unfinished word is not translated.
    """

    def __init__(self, server: Server, reply: Reply, source: str = "") -> None:
        """Begin with the reply, or continue one whose source is known."""
        self.reply = reply
        self.source = source
        self._server = server

    async def append(self, text: str, *, final: bool = False) -> Frame:
        """Add to the source; return the `source_ack` frame. A lost connection duplicates nothing.

        Refused text is not part of the source, and may be sent again. Raises Refused, Disconnected.
        """
        ids = {"conversation_id": self.reply.accepted["conversation_id"], "turn_id": self.reply.turn_id}
        frame = {"type": "source", "off": len(self.source), "text": text, "final": final}
        before, self.source = self.source, self.source + text
        try:
            return await self._server.request(frame | ids)
        except Refused:
            self.source = before
            raise

    async def finish(self) -> Frame:
        """End the source, read the translation to its end, and return `done`. Raises Refused, Disconnected, ClientError."""
        await self.append("", final=True)
        return await self.reply.wait()

    async def cancel(self) -> Frame:
        """Stop it; what was read is kept. Return the `cancelled` frame."""
        return await self.reply.cancel()

    def __aiter__(self) -> AsyncIterator[str]:
        return self.reply.__aiter__()
