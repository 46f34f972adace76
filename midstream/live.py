"""The unfinished replies, and the positions in their conversations. Knows nothing of connections."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from midstream.errors import ClientError
from midstream.reply import Reply, Server
from midstream.spoken import SpokenConversation, SpokenReply

Frame = dict[str, Any]
TURN_FRAMES = frozenset({"status", "delta", "reasoning", "tool_call", "tool_state", "done"})
EVENTS = frozenset({"accepted", "delta", "reasoning", "source", "tool_call", "tool_state", "done", "removed"})
_ALWAYS = EVENTS | {"status", "gap", "snapshot", "deleted"}
_ANSWERS = frozenset({"history", "resumed"})
"""Answers: only those to the follower's requests, and a history that nobody asked for (of a new active branch)."""


@dataclass(slots=True)
class Position:
    """A place in a conversation's journal, where a new connection resumes: an epoch and its last seen seq.

    `holed`: whether earlier events were missed.
    """

    epoch: str
    seq: int
    holed: bool = False

    def take(self, frame: Frame) -> None:
        """Note an event; frames without a seq are not events, and events may be repeated."""
        if (seq := frame.get("seq")) is None:
            return
        self.holed |= (frame.get("first_seq") or seq) > self.seq + 1
        self.seq = max(self.seq, seq)


class LiveReplies:
    """Passes each frame of the server to its reply."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._sending: dict[str, Frame] = {}  # by client_msg_id
        self._begun: dict[
            str, Reply
        ] = {}  # by client_msg_id: whole replies may come before their sender looks
        self._replies: dict[str, Reply] = {}  # by turn
        self._positions: dict[str, Position] = {}  # by conversation
        self._rejoining: set[str] = set()  # refs of requested histories
        self._followers: list[Follower] = []
        self._spoken: SpokenConversation | None = None

    @property
    def has_any(self) -> bool:
        """Return whether a reply is unfinished."""
        return bool(self._replies)

    @property
    def positions(self) -> dict[str, Position]:
        """Return the conversations that are followed, and those of unfinished replies."""
        positions = dict(self._positions)
        for follower in self._followers:
            conversation_id, seen = follower.conversation_id, follower.position
            known = positions.get(conversation_id)
            if seen is not None and (known is None or (known.epoch == seen.epoch and seen.seq < known.seq)):
                positions[conversation_id] = seen
        return positions

    @property
    def spoken(self) -> SpokenConversation | None:
        """The conversation that is spoken."""
        return self._spoken

    def of(self, conversation_id: str) -> list[Reply]:
        """Return the unfinished replies of a conversation, oldest first."""
        return [r for r in self._replies.values() if r.accepted["conversation_id"] == conversation_id]

    def seen(self, conversation_id: str) -> Frame:
        """Return what was read of the reply that runs in a conversation, as fields of a message that interrupts it."""
        running = next((reply for reply in self.of(conversation_id) if reply.done is None), None)
        if running is None:
            return {}
        return {"seen_off": running.off + len(running.text), "seen_turn_id": running.turn_id}

    def expect(self, frame: Frame) -> None:
        """Note a message that is about to be sent."""
        self._sending[frame["client_msg_id"]] = frame

    def begun(self, client_msg_id: str) -> Reply:
        """Return the reply of an accepted message."""
        return self._begun[client_msg_id]

    def settle(self, client_msg_id: str) -> None:
        """Note that a message's sender knows its outcome."""
        self._sending.pop(client_msg_id, None)
        self._begun.pop(client_msg_id, None)

    @contextmanager
    def rejoining(self) -> Iterator[str]:
        """Return a `ref` for a history, which may have an unfinished reply."""
        ref = uuid.uuid4().hex
        self._rejoining.add(ref)
        try:
            yield ref
        finally:
            self._rejoining.discard(ref)

    @contextmanager
    def following(self, conversation_id: str) -> Iterator[Follower]:
        """Return a follower of a conversation."""
        follower = Follower(conversation_id, uuid.uuid4().hex)
        self._followers.append(follower)
        try:
            yield follower
        finally:
            self._followers.remove(follower)

    @contextmanager
    def speaking(self, spoken: SpokenConversation) -> Iterator[None]:
        """Pass a conversation what is said in it. A connection speaks in one at a time: raises ClientError."""
        if self._spoken is not None:
            raise ClientError("this connection speaks in a conversation already")
        self._spoken = spoken
        try:
            yield
        finally:
            self._spoken = None

    def lost(self) -> None:
        """The connection is lost; another one may come."""
        if self._spoken is not None:
            self._spoken.lost()

    def rejoined(self, page: Frame) -> Reply | None:
        """Return the unfinished reply of such a history, or None."""
        unfinished = _unfinished(page)
        return self._replies.get(unfinished["turn_id"]) if unfinished else None

    def take(self, frame: Frame) -> None:
        """Take a frame; those of other clients' replies only count as seen."""
        kind, conversation_id = frame["type"], frame.get("conversation_id", "")
        if kind == "accepted":
            self._accept(frame)
            self._follow(frame)
        if kind == "history" and frame.get("ref") in self._rejoining:
            self._take_up(frame)
        if position := self._positions.get(conversation_id):
            position.take(frame)
        for follower in self._followers:
            if follower.conversation_id == conversation_id:
                follower.take(frame)
        turn_id = frame["turn_id"] if kind in TURN_FRAMES else frame.get("turn_id")
        reply = self._replies.get(turn_id or "")
        if self._spoken is not None:
            self._spoken.take_frame(frame, reply)
        if kind in TURN_FRAMES and reply is not None:
            reply.take(frame)
            if kind == "done" and frame["reason"] != "tools":
                self._forget(reply)

    def fail(self, reply: Reply, error: ClientError) -> None:
        """Fail a reply: it can't be read further."""
        reply.take(error)
        self._forget(reply)

    def fail_in(self, conversation_id: str, error: ClientError) -> None:
        """Fail all of a conversation."""
        for reply in self.of(conversation_id):
            self.fail(reply, error)
        for follower in self._followers:
            if follower.conversation_id == conversation_id:
                follower.fail(error)

    def fail_all(self, error: ClientError) -> None:
        """Fail everything."""
        for reply in list(self._replies.values()):
            self.fail(reply, error)
        for follower in self._followers:
            follower.fail(error)
        if self._spoken is not None:
            self._spoken.fail(error)

    def _accept(self, frame: Frame) -> None:
        sent = self._sending.get(frame.get("ref", ""))
        if sent is None:
            self._accept_spoken(frame)
            return
        reply = self._replies.get(frame["turn_id"]) or Reply(self._server, frame, sent=sent)
        self._replies[reply.turn_id] = self._begun[frame["ref"]] = reply
        self._positions.setdefault(frame["conversation_id"], Position(frame["epoch"], frame["seq"]))

    def _accept_spoken(self, frame: Frame) -> None:
        """Begin the reply to what was said here; whoever said it is told by a `ref`."""
        if (
            "ref" in frame
            and self._speaks_in(frame["conversation_id"])
            and frame["turn_id"] not in self._replies
        ):
            self._replies[frame["turn_id"]] = SpokenReply(self._server, frame)
            self._positions.setdefault(frame["conversation_id"], Position(frame["epoch"], frame["seq"]))

    def _speaks_in(self, conversation_id: str) -> bool:
        return self._spoken is not None and self._spoken.conversation_id == conversation_id

    def _follow(self, frame: Frame) -> None:
        """Begin the reply of a turn that follows the calls of a reply read here."""
        before = self._replies.get(frame.get("follows", ""))
        if before is None or frame["turn_id"] in self._replies:
            return
        reply = self._replies[frame["turn_id"]] = Reply(self._server, frame, sent=None)
        before.take(reply)
        self._forget(before)

    def _take_up(self, page: Frame) -> None:
        """Take up the unfinished reply of a page: its frames are taken from here on."""
        message = _unfinished(page)
        if message is None or message["turn_id"] in self._replies:
            return
        ids = {"conversation_id": page["conversation_id"], "turn_id": message["turn_id"]}
        accepted = ids | {
            "message_id": message["parent_id"],
            "epoch": page["epoch"],
            "seq": page["seq"],
        }
        spoken = self._speaks_in(page["conversation_id"])
        reply = SpokenReply(self._server, accepted) if spoken else Reply(self._server, accepted, sent=None)
        self._replies[message["turn_id"]] = reply
        reply.begin_with(message)
        self._positions.setdefault(page["conversation_id"], Position(page["epoch"], page["seq"]))

    def _forget(self, reply: Reply) -> None:
        del self._replies[reply.turn_id]
        conversation_id = reply.accepted["conversation_id"]
        if not self.of(conversation_id):
            self._positions.pop(conversation_id, None)


def _unfinished(page: Frame) -> Frame | None:
    """Return the reply of a page that runs, or whose calls are open; queued messages may follow it."""
    return next((message for message in reversed(page["messages"]) if _is_unfinished(message)), None)


def _is_unfinished(message: Frame) -> bool:
    is_calling = any(call["state"] in ("waiting", "running") for call in message.get("calls", ()))
    return message["status"] == "running" or is_calling


class Follower:
    """Takes the frames of a conversation, without repetitions."""

    def __init__(self, conversation_id: str, ref: str) -> None:
        self.conversation_id = conversation_id
        self.ref = ref
        self.position: Position | None = None
        self._is_begun = False
        self._frames: asyncio.Queue[Frame | ClientError] = asyncio.Queue()

    async def next(self) -> Frame:
        """Return the next frame. Raises what ended the conversation for this client."""
        frame = await self._frames.get()
        if isinstance(frame, ClientError):
            raise frame
        return frame

    def begin(self, epoch: str, after_seq: int) -> None:
        """Note that everything up to here was seen before."""
        self.position = Position(epoch, after_seq)

    def take(self, frame: Frame) -> None:
        """Take a frame. Frames before the answer to the request are skipped: the answer has them, or they come again."""
        kind, ref = frame["type"], frame.get("ref")
        self._is_begun |= ref == self.ref
        if not self._is_begun or (kind not in _ALWAYS and not (kind in _ANSWERS and ref in (None, self.ref))):
            return
        if kind in {"history", "snapshot"}:
            self.begin(frame["epoch"], frame["seq"])
        elif kind in EVENTS and not self._is_next(frame):
            return
        self._frames.put_nowait(frame)

    def _is_next(self, event: Frame) -> bool:
        """Return whether an event follows the last one. One behind a gap does not: it comes again, with what is missing."""
        position, seq = self.position, event["seq"]
        first = event.get("first_seq") or seq
        if position is None or seq <= position.seq or first > position.seq + 1:
            return False
        position.seq = seq
        return True

    def fail(self, error: ClientError) -> None:
        """End: nothing more comes."""
        self._frames.put_nowait(error)
