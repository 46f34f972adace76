"""One device's view of a conversation, checked frame by frame against the wire protocol's promises. Pure.

It outlives connections: `resume` brings what the device missed, which must fit what it saw before.
"""

from __future__ import annotations

import hashlib
from typing import Any

Frame = dict[str, Any]
SETTLED = ("done", "denied", "cancelled", "expired", "lost")


class Reply:
    """A turn as this device saw it. `done` is its end, once it has come."""

    def __init__(self) -> None:
        self.text = ""
        self.is_complete = True
        """True if this device received all of its text, from the beginning on."""
        self.done: Frame | None = None
        self.removed = False
        self.follows: str | None = None
        """The turn whose calls were settled before it."""
        self.gone = False
        """True if its conversation was reported as gone."""

    @property
    def is_over(self) -> bool:
        """True if its end came, or it left the history."""
        return self.done is not None or self.removed or self.gone


class EventChecker:
    """One conversation on one device. `faults` are the broken promises, in the order in which they were seen."""

    def __init__(self, conversation_id: str) -> None:
        self.conversation_id = conversation_id
        self.epoch: str | None = None
        self.seq = 0
        self.turns: dict[str, Reply] = {}
        self.calls: dict[str, Frame] = {}
        """Each call as it was sent, with the newest state."""
        self.faults: list[str] = []
        self.gaps = 0
        self.lost_ends = 0
        """Number of ends that the store lost: they were sent, and are gone in another epoch."""
        self._rewound = False
        self._follows = False
        self._journalled_here: set[str] = set()
        self.repeats: set[str] = set()
        """Turns that are being repeated now, out of order, after `accepted{duplicate}`."""

    def take(self, frame: Frame) -> None:
        """Enter a received frame."""
        if frame.get("conversation_id") != self.conversation_id:
            return
        match frame["type"]:
            case "accepted" if frame.get("duplicate"):
                self._repeated(frame)
            case "accepted" | "delta" | "reasoning" | "tool_call" | "tool_state" | "done" | "removed":
                self._journalled(frame)
            case "history":
                self._called([call for one in frame["messages"] for call in one.get("calls", ())])
            case "gap":
                self.gaps += 1
                self._rewound = frame["epoch"] != self.epoch
                self.epoch = frame["epoch"]
            case "snapshot":
                self._snapshot(frame)
            case "deleted":
                self.vanish()

    def vanish(self) -> None:
        """Note that this device learned that the conversation is gone; another one may begin under its id."""
        for turn in self.turns.values():
            turn.gone = True
        self.epoch, self.seq, self._follows = None, 0, False
        self.repeats.clear()

    def left(self) -> None:
        """Note that the connection is gone; the rest of turns that were only being repeated is no longer due."""
        for turn_id in self.repeats - self._journalled_here:
            if not self.turns[turn_id].is_over:
                del self.turns[turn_id]
        self.repeats.clear()

    def _journalled(self, frame: Frame) -> None:
        if frame["turn_id"] in self.repeats and (frame["seq"] <= self.seq or not self._follows):
            self._enter_repeat(self.turns[frame["turn_id"]], frame)
            return
        first = frame.get("first_seq", frame["seq"])
        if first != self.seq + 1 and self._follows:
            self._fault(f"{frame['type']} {first}..{frame['seq']} behind {self.seq}")
        self._follows, self.seq = True, frame["seq"]
        self._journalled_here.add(frame["turn_id"])
        if (turn := self.turns.get(frame["turn_id"])) is None:
            turn = self.turns[frame["turn_id"]] = Reply()
            turn.is_complete = frame["type"] == "accepted" or frame.get("off") == 0
        match frame["type"]:
            case "accepted":
                self.epoch = frame["epoch"]
                turn.follows = frame.get("follows")
            case "delta":
                self._delta(turn, frame)
            case "done":
                self._done(turn, frame)
            case "tool_call":
                self.calls[frame["call_id"]] = frame | {"state": "waiting"}
            case "tool_state":
                self._moved(frame)
            case "removed":
                turn.removed = True

    def _moved(self, frame: Frame) -> None:
        known = self.calls.setdefault(frame["call_id"], frame)
        if known["state"] in SETTLED and known["state"] != frame["state"]:
            self._fault(f"{frame['call_id']} was {known['state']}, and is {frame['state']}")
        known["state"] = frame["state"]

    def _called(self, calls: list[Frame]) -> None:
        """Enter the calls of the history or a snapshot."""
        for call in calls:
            self.calls[call["call_id"]] = self.calls.get(call["call_id"], {}) | call

    def _delta(self, turn: Reply, frame: Frame) -> None:
        if turn.done is not None:
            self._fault(f"text behind the end of {frame['turn_id']}")
        if not frame["text"]:
            self._fault(f"an empty delta of {frame['turn_id']}")
        if turn.is_complete and frame["off"] != len(turn.text):
            self._fault(f"text at {frame['off']} behind {len(turn.text)} of {frame['turn_id']}")
        turn.text += frame["text"]

    def _done(self, turn: Reply, frame: Frame) -> None:
        if turn.done is not None:
            self._fault(f"a second end of {frame['turn_id']}")
        turn.done = frame
        turn.removed = frame.get("removed", False)
        self._cancel_calls(frame)
        if not turn.is_complete:
            return
        kept = turn.text[: frame["chars"]]
        if hashlib.sha256(kept.encode()).hexdigest() != frame["text_sha256"]:
            self._fault(f"the end of {frame['turn_id']} is of another text than {kept!r}")
        turn.text = kept

    def _cancel_calls(self, done: Frame) -> None:
        """Cancel the open calls of a turn that ends for another reason than its calls; they get no event of their own."""
        if done.get("reason", "tools") != "tools":
            for call in self.calls.values():
                if call.get("turn_id") == done["turn_id"] and call["state"] not in SETTLED:
                    call["state"] = "cancelled"

    def _repeated(self, frame: Frame) -> None:
        """Enter a repeated `accepted`: the turn's text so far may follow, as one delta."""
        self.repeats.add(frame["turn_id"])
        if (turn := self.turns.get(frame["turn_id"])) is None:
            turn = self.turns[frame["turn_id"]] = Reply()
            turn.is_complete = False

    def _enter_repeat(self, turn: Reply, frame: Frame) -> None:
        """Enter text so far, or an end, of a turn that this device may have seen already."""
        turn.removed = turn.removed or frame.get("removed", False)
        match frame["type"]:
            case "delta" if not turn.is_complete and frame["off"] == 0:
                turn.text, turn.is_complete = frame["text"], True
            case "delta" if not self._follows:
                self._delta(turn, frame)
            case "done" if turn.done is None:
                self._done(turn, frame)
            case "done" if turn.done is not None and turn.done["text_sha256"] != frame["text_sha256"]:
                self._enter_other_done(turn, frame)

    def _enter_other_done(self, turn: Reply, done: Frame) -> None:
        """Enter another end of a turn. It is legitimate if the first one was unsaved and died with its replica."""
        if turn.done is not None and turn.done.get("saved", True):
            self._fault(f"the end of {done['turn_id']} was told otherwise before")
        else:
            self.lost_ends += 1
            turn.done, turn.is_complete = done, False

    def _snapshot(self, frame: Frame) -> None:
        self.epoch, self.seq, self._follows = frame["epoch"], frame["seq"], True
        self._called(frame.get("calls", []))
        for turn in self.turns.values():
            turn.is_complete = turn.is_complete and turn.done is not None
        if frame["turn_id"] is not None:
            running = self.turns.setdefault(frame["turn_id"], Reply())
            self._journalled_here.add(frame["turn_id"])
            running.text, running.is_complete = frame["text"], True
            if running.done is not None:
                self._runs_again(running)

    def _runs_again(self, turn: Reply) -> None:
        """Reopen a turn. Only a new epoch, in which the store lost data, may reopen one whose end was saved."""
        if not self._rewound and turn.done is not None and turn.done.get("saved", True):
            self._fault("a turn that had ended runs again")
        self.lost_ends += 1
        turn.done = None

    def _fault(self, what: str) -> None:
        self.faults.append(f"{self.conversation_id}: {what}")


def differences(event_checker: EventChecker, history: list[Frame]) -> list[str]:
    """Return the differences between a device's view and a whole history without hidden branches."""
    replies = {message["turn_id"]: message for message in history if message["role"] == "assistant"}
    found = [f"{one['turn_id']} has no end" for one in replies.values() if one["status"] == "running"]
    for turn_id, turn in event_checker.turns.items():
        kept = replies.get(turn_id)
        if turn.gone:
            continue
        if turn.removed:
            found += [f"{turn_id} was removed and is in the history"] if kept is not None else []
        elif turn.done is None:
            found.append(f"{turn_id} was never told to end")
        elif kept is None:
            found.append(f"{turn_id} is not in the history")
        elif turn.is_complete and turn.text != kept["content"]:
            found.append(f"{turn_id}: {turn.text!r} is {kept['content']!r} in the history")
    for call in (call for one in history for call in one.get("calls", ())):
        if call["state"] not in SETTLED:
            found.append(f"{call['call_id']} is {call['state']} for ever")
        received = event_checker.calls.get(call["call_id"], call)["state"]
        if received in SETTLED and received != call["state"]:
            found.append(f"{call['call_id']} was told as {received}, and is {call['state']} in the history")
    return [f"{event_checker.conversation_id}: {what}" for what in found]
