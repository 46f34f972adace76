"""A connection of the tests: it keeps what it is given, and the test says how much of a turn's text left the house."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

from sessions.events import Accepted, Delta, Done, Event, Reasoning, Removed, SourceText, ToolCall, ToolState
from sessions.turn.turn import SentOffsets

E = TypeVar("E", bound=Event)
WAIT_S = 60.0


class Recorder:
    """A `sessions.conversation.conversation.Subscriber`. All text counts as handed at once, unless `set_sent` said otherwise."""

    def __init__(self) -> None:
        self.closed = False
        self.events: list[Event] = []
        self.withdrawn: dict[str, int] = {}
        self._held: dict[str, int] = {}
        self._sent: dict[str, SentOffsets] = {}
        self._news = asyncio.Event()

    def publish(self, event: Event, made_at: float | None = None, sent: SentOffsets | None = None) -> None:
        self.events.append(event)
        if sent is not None and isinstance(event, Delta | Reasoning):
            self._report(event, sent)
        self._news.set()

    def understands(self, event: Event) -> bool:
        return True

    def _report(self, text: Delta | Reasoning, sent: SentOffsets) -> None:
        end = text.off + len(text.text)
        if isinstance(text, Reasoning):
            sent.reasoning = max(sent.reasoning, end)
        else:
            sent.text = max(sent.text, min(end, self._held.get(text.turn_id, end)))
            self._sent[text.turn_id] = sent

    def withdraw(self, turn_id: str, chars: int, reasoning_off: int) -> None:
        self.withdrawn[turn_id] = chars

    def set_sent(self, turn_id: str, chars: int) -> None:
        """From here on, that much of a turn counts as handed to the transport."""
        self._held[turn_id] = chars
        if (sent := self._sent.get(turn_id)) is not None:
            sent.text = chars

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def text(self, turn_id: str) -> str:
        return "".join(delta.text for delta in self.of(Delta) if delta.turn_id == turn_id)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def next(self, kind: type[E], *, count: int = 1) -> E:
        """Waits until so many events of a kind have come; gives the last of those."""
        await self.until(lambda: len(self.of(kind)) >= count)
        return self.of(kind)[count - 1]

    async def wait_for_text(self, text: str) -> None:
        """Waits until the newest turn's text is this."""
        await self.until(lambda: bool(self.of(Accepted)) and self.text(self.of(Accepted)[-1].turn_id) == text)


def seqs(events: Sequence[Event]) -> list[tuple[int, int]]:
    """What each journalled event covers: from its first seq to its last."""
    spans = []
    for event in events:
        match event:
            case Delta() | Reasoning():
                spans.append((event.first_seq, event.seq))
            case Done() | Removed() | SourceText() | ToolCall() | ToolState():
                spans.append((event.first_seq or event.seq, event.seq))
            case Accepted():
                spans.append((event.seq, event.seq))
    return spans


def continuous(events: Sequence[Event]) -> bool:
    """Whether the seqs have neither a hole nor a repetition."""
    spans = seqs(events)
    return all(after[0] == before[1] + 1 for before, after in pairwise(spans))
