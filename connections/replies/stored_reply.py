"""The reply of a stored turn for one reader: events become pieces, which merge while the reader is late."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from connections.replies.server_calls import ServerCall
from engine.messages import ToolCall
from sessions import events
from sessions.errors import NotFound, Refused, StoreDown
from sessions.events import (
    Accepted,
    Deleted,
    Delta,
    Done,
    Event,
    Reason,
    Reasoning,
    Snapshot,
    Status,
    Usage,
)
from sessions.running.ephemeral_reply import MAX_WAITING_BYTES
from sessions.running.waiting_pieces import Piece, Text, Thought

_GONE = "The conversation was deleted while the response was written."
_LOST = "Some events of this reply were lost; read it again."


class _Waiting(msgspec.Struct):
    """A waiting piece. `off`: code points of text or reasoning before it, in the reply of `turn_id`."""

    piece: Piece | ServerCall
    off: int
    turn_id: str


class _Progress:
    """The progress of one turn. `before`: the end of the one before it. `calls`: by id; None for a client's call."""

    def __init__(self, before: Done | None = None) -> None:
        self.done: Done | None = None
        self.calls: dict[str, ServerCall | None] = {}
        self.heard = [0, 0]  # of its text and of its reasoning
        self.taken = [0, 0]
        self._before = before

    def end(self, done: Done) -> None:
        """Set its end; the tokens of the turns before it are added."""
        usage = done.usage if self._before is None else added(self._before.usage, done.usage)
        self.done = msgspec.structs.replace(done, usage=usage)

    @property
    def goes_on(self) -> bool:
        """Whether all of its calls need no client: another turn follows by itself."""
        return bool(self.calls) and all(
            call is not None and not call.is_asked for call in self.calls.values()
        )

    @property
    def is_still(self) -> bool:
        """Whether nothing happens without its client: all calls that the server ran have ended."""
        ran = (call for call in self.calls.values() if call is not None and not call.waits)
        return all(call.state.is_settled for call in ran)


class StoredReply:
    """A `Subscriber` that follows one turn, and the turns after it while the server runs all of their calls.

    Iterate it for its pieces; then `ended` is its end. If a call waits for the client, the reply ends; the
    client's answer begins another one. `turn_id`: the current turn; empty until it is accepted if it
    `follows` the calls of another one.
    """

    def __init__(self, *, turn_id: str = "", follows: str = "", model: str = "") -> None:
        self.turn_id = turn_id
        self.follows = follows
        self.model = model
        self.ignored: tuple[str, ...] = ()
        self.closed = False
        self.cut_off: Callable[[], None] = self._nobody
        self.accepted = asyncio.Event()
        self._end: Done | Refused | None = None
        self._waiting: deque[_Waiting] = deque()
        self._progress = _Progress()
        self._news = asyncio.Event()

    @staticmethod
    def _nobody() -> None:
        """Do nothing: a reader that takes all at once is never late."""

    @property
    def is_written(self) -> bool:
        """Whether a turn of it may still be written: its end was not published here."""
        return not isinstance(self._end, Done)

    def check(self) -> None:
        """Raise Refused if nothing more can be sent."""
        if isinstance(self._end, Refused):
            raise self._end

    @property
    def ended(self) -> Done:
        """The end, with the tokens of all turns. Raises RuntimeError if there is none yet."""
        if self._end is None or isinstance(self._end, Refused):
            raise RuntimeError("The reply goes on.")
        return self._end

    def publish(self, event: Event, made_at: float | None = None) -> None:  # noqa: ARG002 - nobody measures it here
        """Take an event of the conversation."""
        match event:
            case Accepted() if event.turn_id == self.turn_id or (
                self.follows and event.follows == self.follows
            ):
                self._begun(event)
            case Delta() | Reasoning() if event.turn_id == self.turn_id:
                self._hear(event.text, event.off, is_thought=isinstance(event, Reasoning))
            case events.ToolCall() if event.turn_id == self.turn_id:
                self._called(event)
            case events.ToolState() if event.turn_id == self.turn_id:
                self._moved(event)
            case Status(state="fallback") if event.turn_id == self.turn_id:
                self.model = event.model or self.model
            case Snapshot():
                self._catch_up(event)
            case Done() if self._is_ours(event):
                self._done(event)
            case Deleted():
                self._lose(NotFound(_GONE))
            case _:
                return  # a gap, too: a snapshot follows it

    def understands(self, event: Event) -> bool:  # noqa: ARG002 - all of them
        """Take all events of a conversation."""
        return True

    def handed(self, turn_id: str) -> int:
        """Return the furthest offset of the text that its reader took."""
        return self._progress.taken[0] if turn_id == self.turn_id else 0

    def thought(self, turn_id: str) -> int:
        """Return the furthest offset of the reasoning that its reader took."""
        return self._progress.taken[1] if turn_id == self.turn_id else 0

    def withdraw(self, turn_id: str, chars: int, thought: int) -> None:
        """Drop what waits beyond the cut."""
        left = [
            _left_of(waiting, chars, thought) if waiting.turn_id == turn_id else waiting
            for waiting in self._waiting
        ]
        self._waiting = deque(one for one in left if one is not None)

    def get_nowait(self) -> Piece | ServerCall | None:
        """Return the oldest waiting piece, or None. Raises StopAsyncIteration at the end, Refused if it was lost."""
        if self._waiting:
            taken = self._waiting.popleft()
            if isinstance(taken.piece, Text | Thought) and taken.turn_id == self.turn_id:
                self._progress.taken[isinstance(taken.piece, Thought)] = taken.off + len(taken.piece.text)
            return taken.piece
        self.check()
        if self._end is not None:
            raise StopAsyncIteration
        return None

    def _is_ours(self, done: Done) -> bool:
        """Return whether it is the end of the current turn, or of the following one, which could not run."""
        return done.turn_id == self.turn_id or (bool(self.follows) and done.follows == self.follows)

    def _lose(self, why: Refused) -> None:
        """End it without the end of its turn."""
        self._end = why
        self.accepted.set()
        self._news.set()

    def _begun(self, begun: Accepted | Done) -> None:
        self.turn_id, self.model = begun.turn_id, begun.model or self.model
        if self._progress.done is not None:
            self._progress = _Progress(self._progress.done)
        self.follows = ""
        self.accepted.set()

    def _hear(self, text: str, off: int, *, is_thought: bool) -> None:
        """Take the new part of a text."""
        heard = self._progress.heard
        known = heard[is_thought]
        text = text[max(0, known - off) :]
        if not text:
            return
        heard[is_thought] = max(off, known) + len(text)
        last = self._waiting[-1] if self._waiting else None
        kind = Thought if is_thought else Text
        if last is not None and isinstance(last.piece, kind) and last.turn_id == self.turn_id:
            last.piece = msgspec.structs.replace(last.piece, text=last.piece.text + text)
        else:
            self._put(kind(text), max(off, known))
        self._news.set()
        if sum(map(_size, self._waiting)) > MAX_WAITING_BYTES // 4:
            self._waiting.clear()
            self.cut_off()

    def _put(self, piece: Piece | ServerCall, off: int) -> None:
        self._waiting.append(_Waiting(piece, off, self.turn_id))
        self._news.set()

    def _called(self, call: events.ToolCall | events.ShownCall) -> None:
        if call.call_id in self._progress.calls:
            return
        if call.where == "client":
            self._progress.calls[call.call_id] = None
            self._put(ToolCall(call.call_id, call.name, call.args), call.off)
            return
        now = ServerCall.of(call)
        self._progress.calls[call.call_id] = now
        begun = msgspec.structs.replace(now, state=events.CallState.WAITING, output="", failed=False)
        self._put(begun, call.off)
        if now.state.is_settled:
            self._put(now, call.off)

    def _moved(self, moved: events.ToolState) -> None:
        call = self._progress.calls.get(moved.call_id)
        if call is None or call.state.is_settled:
            return
        self._progress.calls[moved.call_id] = call = call.after(moved)
        if call.state.is_settled and not call.is_asked:
            self._put(call, 0)
        self._look()

    def _catch_up(self, snapshot: Snapshot) -> None:
        """Take the reply so far from a snapshot, after a gap."""
        if snapshot.turn_id != self.turn_id:
            still_waits = not snapshot.turn_id and bool(snapshot.calls)
            if self.follows and not still_waits:  # the snapshot may be of another turn
                self._lose(StoreDown(_LOST))
            return
        self._hear(snapshot.reasoning, 0, is_thought=True)
        if not isinstance(snapshot.text, msgspec.UnsetType):
            self._hear(snapshot.text, 0, is_thought=False)
        for call in snapshot.calls:
            self._called(call)

    def _done(self, done: Done) -> None:
        if done.turn_id != self.turn_id:
            if (
                done.chars or done.reasoning_chars or done.open
            ):  # it was accepted, but that was not published here
                self._lose(StoreDown(_LOST))
                return
            self._begun(done)
        self.model = done.model or self.model
        self._progress.end(done)
        self._look()

    def _look(self) -> None:
        """End the reply once its turn has ended, unless the next turn, a part of it, follows without the client."""
        progress = self._progress
        if (done := progress.done) is None:
            return
        if done.reason is Reason.TOOLS and progress.goes_on:
            self.follows = self.turn_id
        elif done.reason is not Reason.TOOLS or progress.is_still:
            self._end = done
            self._news.set()

    def __aiter__(self) -> StoredReply:
        return self

    async def __anext__(self) -> Piece | ServerCall:
        while (piece := self.get_nowait()) is None:
            self._news.clear()
            await self._news.wait()
        return piece


def _size(waiting: _Waiting) -> int:
    """Code points of a waiting text, of any turn."""
    return len(waiting.piece.text) if isinstance(waiting.piece, Text | Thought) else 0


def _left_of(waiting: _Waiting, chars: int, thought: int) -> _Waiting | None:
    """Return what a cut keeps of a waiting piece; None: nothing."""
    piece = waiting.piece
    if not isinstance(piece, Text | Thought):
        return waiting if waiting.off <= chars else None
    kept = (thought if isinstance(piece, Thought) else chars) - waiting.off
    if kept <= 0:
        return None
    waiting.piece = msgspec.structs.replace(piece, text=piece.text[:kept])
    return waiting


def added(one: Usage, other: Usage) -> Usage:
    """Return the tokens of two turns that are one reply to their client."""
    return Usage(
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        cached_tokens=one.cached_tokens + other.cached_tokens,
        generated_tokens=one.generated_tokens + other.generated_tokens,
        sent_tokens=one.sent_tokens + other.sent_tokens,
        wasted_tokens=one.wasted_tokens + other.wasted_tokens,
        reasoning_tokens=one.reasoning_tokens + other.reasoning_tokens,
    )
