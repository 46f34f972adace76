"""One reply on its way through all filters, with the tokens that each part of its text cost. Does no I/O: what is long lets others work."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from engine.messages import ChosenToken
from engine.text.logprobs import LogprobQueue
from sessions.filters.filter_hook import ReplyFilter
from sessions.filters.slices import slices


class FilterBroken(Exception):
    """A filter passed text that it was not fed: a defect of the filter."""


class Released(msgspec.Struct, frozen=True):
    """Text that may leave now, none perhaps, and its tokens. `filtered`: the reply ends with it.

    `logprobs`, where they were asked for: the tokens of which all text has left by now.
    """

    text: str
    tokens: int
    filtered: bool = False
    logprobs: tuple[ChosenToken, ...] = ()


class FilteredReply:
    """Takes a reply's chunks and gives what may leave. Tokens count once the first character they made leaves.

    What is told of a token, its name above all, waits for its last character: none that is held back is told by it.
    Each filter reads what the one before it passed.
    """

    __slots__ = ("_logprobs", "_marks", "_stages", "_told", "_waiting")

    def __init__(self, stages: Sequence[ReplyFilter]) -> None:
        self._stages = stages
        self._waiting = ""
        self._marks: deque[tuple[int, int]] = deque()  # where chunks begin in what waits, and their tokens
        self._logprobs = LogprobQueue()
        self._told = 0  # of what comes next, so much is known already

    async def begin(self, text: str) -> None:
        """Takes the text of a reply that goes on, which was told: what begins in it is found. Raises FilterBroken."""
        if self._stages:
            self._told = len(text)
            async for part in slices(text):
                self.feed(part, 0)

    async def forbids(self, text: str) -> bool:
        """Takes a whole text, of which nothing leaves before all of it was read. Raises FilterBroken."""
        if self._stages:
            async for part in slices(text):
                if self.feed(part, 0).filtered:
                    return True
        return self.finish().filtered

    def feed(self, text: str, tokens: int, logprobs: Sequence[ChosenToken] = ()) -> Released:
        """Takes the reply's next text, whole characters. Raises FilterBroken."""
        if not self._stages:
            return Released(text, tokens, logprobs=tuple(logprobs))
        self._logprobs.put(logprobs)
        self._marks.append((len(self._waiting), tokens))
        self._waiting += text
        return self._release(*self._through(text, ends=False))

    def finish(self) -> Released:
        """The reply has no more text: gives what waited, or says that a filter ends it here. Raises FilterBroken."""
        return self._release(*self._through("", ends=True))

    def _through(self, text: str, *, ends: bool) -> tuple[str, bool]:
        filtered = False
        for stage in self._stages:
            passed = stage.feed(text)
            text = passed.text
            if (ends or filtered) and not passed.filtered:
                passed = stage.finish()
                text += passed.text
            filtered = filtered or passed.filtered
        return text, filtered

    def _release(self, text: str, filtered: bool) -> Released:  # noqa: FBT001 - a pair handed on
        if not self._waiting.startswith(text):
            raise FilterBroken("A filter passed text that is not the beginning of what it was fed.")
        self._waiting = self._waiting[len(text) :]
        tokens = 0
        while text and self._marks and self._marks[0][0] < len(text):
            tokens += self._marks.popleft()[1]
        self._marks = deque((max(0, start - len(text)), count) for start, count in self._marks)
        known = min(self._told, len(text))
        self._told -= known
        text = text[known:]
        return Released(text, tokens, filtered, self._logprobs.leave(text))
