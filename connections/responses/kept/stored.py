"""The reply of a turn that is kept, for one reader: what happens in its conversation becomes pieces, which merge while the reader is late."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from engine.messages import ToolCall
from sessions import events
from sessions.errors import NotFound, Refused
from sessions.events import Accepted, Deleted, Delta, Done, Event, Gap, Reasoning, Snapshot, Status
from sessions.running.ephemeral_reply import MAX_WAITING_BYTES
from sessions.running.waiting_pieces import Piece, Text, Thought

_GONE = "The conversation was deleted while the response was written."


class _Waiting(msgspec.Struct):
    """A piece that waits. `off`: code points of the reply's text, or of its thoughts, before it."""

    piece: Piece
    off: int


class StoredReply:
    """A `Subscriber` that follows one turn. Iterate it for its pieces; `ended` is its end then.

    `turn_id`: the turn, empty until it is accepted where it is to follow the calls of another one, `follows`.
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
        self._taken = [0, 0]  # of its text, of its thoughts
        self._heard = [0, 0]
        self._news = asyncio.Event()

    @staticmethod
    def _nobody() -> None:
        """Whoever takes all at once is never late."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._end is not None

    @property
    def ended(self) -> Done:
        """The end. Raises RuntimeError where there is none yet."""
        if self._end is None or isinstance(self._end, Refused):
            raise RuntimeError("The reply goes on.")
        return self._end

    def publish(self, event: Event, made_at: float | None = None) -> None:  # noqa: ARG002 - nobody measures it here
        """Takes an event of the conversation."""
        match event:
            case Accepted() if event.turn_id == self.turn_id or (
                self.follows and event.follows == self.follows
            ):
                self.turn_id, self.model = event.turn_id, event.model or self.model
                self.accepted.set()
            case Delta() | Reasoning() if event.turn_id == self.turn_id:
                self._hear(event.text, event.off, is_thought=isinstance(event, Reasoning))
            case events.ToolCall() if event.turn_id == self.turn_id:
                call = ToolCall(event.call_id, event.name, event.args)
                self._waiting.append(_Waiting(call, event.off))
                self._news.set()
            case Status(state="fallback") if event.turn_id == self.turn_id:
                self.model = event.model or self.model
            case Snapshot() if event.turn_id == self.turn_id:
                self._catch_up(event)
            case Done() if event.turn_id == self.turn_id:
                self._end, self.model = event, event.model or self.model
                self._news.set()
            case Deleted():
                self._end = NotFound(_GONE)
                self.accepted.set()
                self._news.set()
            case Gap():
                return  # a snapshot follows
            case _:
                return

    def understands(self, event: Event) -> bool:  # noqa: ARG002 - all of them
        """Whatever happens in a conversation."""
        return True

    def handed(self, turn_id: str) -> int:
        """The furthest offset of the text that its reader took."""
        return self._taken[0] if turn_id == self.turn_id else 0

    def thought(self, turn_id: str) -> int:
        """The same of what was thought."""
        return self._taken[1] if turn_id == self.turn_id else 0

    def withdraw(self, turn_id: str, chars: int, thought: int) -> None:
        """Takes back what waits beyond the cut."""
        if turn_id == self.turn_id:
            left = [_left_of(waiting, chars, thought) for waiting in self._waiting]
            self._waiting = deque(one for one in left if one is not None)

    def get_nowait(self) -> Piece | None:
        """The oldest piece that waits, None where there is none. Raises StopAsyncIteration at the end, Refused where there is none."""
        if self._waiting:
            taken = self._waiting.popleft()
            if not isinstance(taken.piece, ToolCall):
                self._taken[isinstance(taken.piece, Thought)] = taken.off + len(taken.piece.text)
            return taken.piece
        if isinstance(self._end, Refused):
            raise self._end
        if self._end is not None:
            raise StopAsyncIteration
        return None

    def _hear(self, text: str, off: int, *, is_thought: bool) -> None:
        """Takes what is new of a text."""
        known = self._heard[is_thought]
        text = text[max(0, known - off) :]
        if not text:
            return
        self._heard[is_thought] = max(off, known) + len(text)
        last = self._waiting[-1] if self._waiting else None
        if last is not None and type(last.piece) is (Thought if is_thought else Text):
            last.piece = msgspec.structs.replace(last.piece, text=last.piece.text + text)
        else:
            piece = Thought(text) if is_thought else Text(text)
            self._waiting.append(_Waiting(piece, max(off, known)))
        self._news.set()
        if sum(self._heard) - sum(self._taken) > MAX_WAITING_BYTES // 4:
            self._waiting.clear()
            self.cut_off()

    def _catch_up(self, snapshot: Snapshot) -> None:
        """Takes what a reader who missed events is told of the reply so far."""
        self._hear(snapshot.reasoning, 0, is_thought=True)
        if not isinstance(snapshot.text, msgspec.UnsetType):
            self._hear(snapshot.text, 0, is_thought=False)

    def __aiter__(self) -> StoredReply:
        return self

    async def __anext__(self) -> Piece:
        while (piece := self.get_nowait()) is None:
            self._news.clear()
            await self._news.wait()
        return piece


def _left_of(waiting: _Waiting, chars: int, thought: int) -> _Waiting | None:
    """What is kept of a waiting piece; None: nothing."""
    piece = waiting.piece
    if isinstance(piece, ToolCall):
        return waiting if waiting.off <= chars else None
    kept = (thought if isinstance(piece, Thought) else chars) - waiting.off
    if kept <= 0:
        return None
    waiting.piece = msgspec.structs.replace(piece, text=piece.text[:kept])
    return waiting
