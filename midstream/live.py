"""The replies whose end is still to come, and how far their conversations were seen. Knows nothing of connections."""

from __future__ import annotations

from typing import Any

from midstream.errors import ClientError
from midstream.journal import Position
from midstream.reply import Ask, Reply

Frame = dict[str, Any]


class LiveReplies:
    """Takes the frames of the server, and gives each to its reply."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._sending: dict[str, Frame] = {}  # by client_msg_id
        self._begun: dict[str, Reply] = {}  # likewise: whole replies may come before their sender looks
        self._replies: dict[str, Reply] = {}  # by turn
        self._positions: dict[str, Position] = {}  # by conversation

    @property
    def positions(self) -> dict[str, Position]:
        """The conversations of replies that are being written."""
        return dict(self._positions)

    def of(self, conversation_id: str) -> list[Reply]:
        """The replies that are being written in a conversation, oldest first."""
        return [r for r in self._replies.values() if r.accepted["conversation_id"] == conversation_id]

    def expect(self, frame: Frame) -> None:
        """A message is about to be sent."""
        self._sending[frame["client_msg_id"]] = frame

    def begun(self, client_msg_id: str) -> Reply:
        """The reply of a message that was accepted."""
        return self._begun[client_msg_id]

    def settle(self, client_msg_id: str) -> None:
        """Its sender knows what became of a message."""
        self._sending.pop(client_msg_id, None)
        self._begun.pop(client_msg_id, None)

    def take(self, frame: Frame) -> None:
        """Takes a frame; those of others' replies count as seen, no more."""
        kind, place = frame["type"], frame.get("conversation_id", "")
        if kind == "accepted":
            self._accept(frame)
        if position := self._positions.get(place):
            position.take(frame)
        if kind in ("status", "delta", "done") and (reply := self._replies.get(frame["turn_id"])):
            reply.take(frame)
            if kind == "done":
                self._forget(reply)

    def fail(self, reply: Reply, error: ClientError) -> None:
        """A reply can't be read further."""
        reply.take(error)
        self._forget(reply)

    def fail_all(self, error: ClientError) -> None:
        """No reply can be read further."""
        for reply in list(self._replies.values()):
            self.fail(reply, error)

    def _accept(self, frame: Frame) -> None:
        sent = self._sending.get(frame.get("ref", ""))
        if sent is None:
            return
        reply = self._replies.get(frame["turn_id"]) or Reply(self._ask, frame, sent=sent)
        self._replies[reply.turn_id] = self._begun[frame["ref"]] = reply
        self._positions.setdefault(frame["conversation_id"], Position(frame["epoch"], frame["seq"]))

    def _forget(self, reply: Reply) -> None:
        del self._replies[reply.turn_id]
        place = reply.accepted["conversation_id"]
        if not self.of(place):
            self._positions.pop(place, None)
