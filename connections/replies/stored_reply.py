"""The reply of a turn that is kept, for one reader: what happens in its conversation becomes pieces, which merge while the reader is late."""

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
    """A piece that waits. `off`: code points of the reply's text, or of its thoughts, before it, in the reply of `turn_id`."""

    piece: Piece | ServerCall
    off: int
    turn_id: str


class _Progress:
    """How far one turn is. `before`: the end of the one that it follows. `calls`: by their ids; None: its client's."""

    def __init__(self, before: Done | None = None) -> None:
        self.done: Done | None = None
        self.calls: dict[str, ServerCall | None] = {}
        self.heard = [0, 0]  # of its text, of its thoughts
        self.taken = [0, 0]
        self._before = before

    def end(self, done: Done) -> None:
        """Its end; the tokens of the turns before it count."""
        usage = done.usage if self._before is None else added(self._before.usage, done.usage)
        self.done = msgspec.structs.replace(done, usage=usage)

    @property
    def goes_on(self) -> bool:
        """Whether nothing that it called needs its client: another turn follows by itself."""
        return bool(self.calls) and all(
            call is not None and not call.is_asked for call in self.calls.values()
        )

    @property
    def is_still(self) -> bool:
        """Whether nothing happens without its client: what the server ran is over."""
        ran = (call for call in self.calls.values() if call is not None and not call.waits)
        return all(call.state.is_settled for call in ran)


class StoredReply:
    """A `Subscriber` that follows one turn, and those behind it as long as the server runs all that they call.

    Iterate it for its pieces; `ended` is its end then. So where a call waits for its client, the reply ends; what the client says
    to that has another one.
    `turn_id`: the turn that is written, empty until it is accepted where it is to follow the calls of another one, `follows`.
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
        """Whoever takes all at once is never late."""

    @property
    def is_written(self) -> bool:
        """Whether a turn of it may still be written, though its reader hears no more: it was not told of the end."""
        return not isinstance(self._end, Done)

    def check(self) -> None:
        """Raises Refused where nothing of it can be told any more."""
        if isinstance(self._end, Refused):
            raise self._end

    @property
    def ended(self) -> Done:
        """The end, with the tokens of all turns. Raises RuntimeError where there is none yet."""
        if self._end is None or isinstance(self._end, Refused):
            raise RuntimeError("The reply goes on.")
        return self._end

    def publish(self, event: Event, made_at: float | None = None) -> None:  # noqa: ARG002 - nobody measures it here
        """Takes an event of the conversation."""
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
                return  # of a gap, too: a snapshot follows

    def understands(self, event: Event) -> bool:  # noqa: ARG002 - all of them
        """Whatever happens in a conversation."""
        return True

    def handed(self, turn_id: str) -> int:
        """The furthest offset of the text that its reader took."""
        return self._progress.taken[0] if turn_id == self.turn_id else 0

    def thought(self, turn_id: str) -> int:
        """The same of what was thought."""
        return self._progress.taken[1] if turn_id == self.turn_id else 0

    def withdraw(self, turn_id: str, chars: int, thought: int) -> None:
        """Takes back what waits beyond the cut."""
        left = [
            _left_of(waiting, chars, thought) if waiting.turn_id == turn_id else waiting
            for waiting in self._waiting
        ]
        self._waiting = deque(one for one in left if one is not None)

    def get_nowait(self) -> Piece | ServerCall | None:
        """The oldest piece that waits, None where there is none. Raises StopAsyncIteration at the end, Refused where there is none."""
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
        """Whether it is the end of the turn that is written; or of the one that was to follow, and never could."""
        return done.turn_id == self.turn_id or (bool(self.follows) and done.follows == self.follows)

    def _lose(self, why: Refused) -> None:
        """Ends it without the end of its turn."""
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
        """Takes what is new of a text."""
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
        """Takes what a reader who missed events is told of the reply so far."""
        if snapshot.turn_id != self.turn_id:
            still_waits = not snapshot.turn_id and bool(snapshot.calls)
            if self.follows and not still_waits:  # what it says may be of anybody's turn
                self._lose(StoreDown(_LOST))
            return
        self._hear(snapshot.reasoning, 0, is_thought=True)
        if not isinstance(snapshot.text, msgspec.UnsetType):
            self._hear(snapshot.text, 0, is_thought=False)
        for call in snapshot.calls:
            self._called(call)

    def _done(self, done: Done) -> None:
        if done.turn_id != self.turn_id:
            if done.chars or done.reasoning_chars or done.open:  # it was accepted, and nobody said so here
                self._lose(StoreDown(_LOST))
                return
            self._begun(done)
        self.model = done.model or self.model
        self._progress.end(done)
        self._look()

    def _look(self) -> None:
        """Ends the reply once its turn has, and nothing more happens without its client; else the next turn is a part of it."""
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
    """Code points of a text that waits, of whichever turn."""
    return len(waiting.piece.text) if isinstance(waiting.piece, Text | Thought) else 0


def _left_of(waiting: _Waiting, chars: int, thought: int) -> _Waiting | None:
    """What is kept of a waiting piece; None: nothing."""
    piece = waiting.piece
    if not isinstance(piece, Text | Thought):
        return waiting if waiting.off <= chars else None
    kept = (thought if isinstance(piece, Thought) else chars) - waiting.off
    if kept <= 0:
        return None
    waiting.piece = msgspec.structs.replace(piece, text=piece.text[:kept])
    return waiting


def added(one: Usage, other: Usage) -> Usage:
    """The tokens of two turns that are one reply to their client."""
    return Usage(
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        cached_tokens=one.cached_tokens + other.cached_tokens,
        generated_tokens=one.generated_tokens + other.generated_tokens,
        sent_tokens=one.sent_tokens + other.sent_tokens,
        wasted_tokens=one.wasted_tokens + other.wasted_tokens,
        reasoning_tokens=one.reasoning_tokens + other.reasoning_tokens,
    )
