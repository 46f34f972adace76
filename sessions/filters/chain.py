"""Filters of a service, and their chain: they refuse messages and end replies. Operators' own classes derive from `Filter`."""

from __future__ import annotations

from asyncio import sleep
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol

import msgspec

from engine.messages import ChosenToken
from engine.text.reply_text import LogprobQueue
from sessions.errors import Filtered


class Passed(msgspec.Struct, frozen=True):
    """The part of a reply that may leave now. `filtered`: the reply ends there."""

    text: str
    filtered: bool = False


class ReplyFilter(Protocol):
    """Reads one reply as it is written. It runs on the event loop: it never waits, and does little at a time.

    The joined output is always a prefix of the joined input.
    """

    def feed(self, text: str) -> Passed:
        """Take the next whole characters, possibly none; return what is known to be harmless."""
        ...

    def finish(self) -> Passed:
        """End the reply: return the rest, unless it is filtered."""
        ...


class Filter:
    """A filter that passes everything. Derive from it to refuse messages, to end replies, or both."""

    async def refuses(self, message: str) -> bool:  # noqa: ARG002 - for those who derive from it
        """Return whether to refuse a whole text for the prompt: a message, or a tool's name, description or schema.

        It may wait, as for a service that judges the text.
        """
        return False

    def reply(self) -> ReplyFilter | None:
        """Return a reader of one reply, or None if this filter does not read replies."""
        return None


SLICE_CHARS = 256
"""Characters of a slice: about a millisecond's work with common lists, so running replies are not delayed."""


async def slices(text: str) -> AsyncIterator[str]:
    """Yield a text slice by slice; other tasks run between them."""
    for start in range(0, len(text), SLICE_CHARS):
        if start:
            await sleep(0)
        yield text[start : start + SLICE_CHARS]


class FilterContractError(Exception):
    """A filter passed text that it was not fed: a defect of the filter."""


class ReleasedText(msgspec.Struct, frozen=True):
    """Text that may leave now, possibly empty, and its tokens. `filtered`: the reply ends with it.

    `logprobs`, if requested: the tokens whose whole text has left.
    """

    text: str
    tokens: int
    filtered: bool = False
    logprobs: tuple[ChosenToken, ...] = ()


class FilteredReply:
    """Takes a reply's chunks, and returns what may leave. A chunk's tokens count once its first character leaves.

    A token's log-probability, which names the token, waits for the token's last character: nothing that is held back is revealed.
    Each filter reads what the one before it passed.
    """

    __slots__ = ("_logprobs", "_marks", "_published", "_stages", "_waiting")

    def __init__(self, stages: Sequence[ReplyFilter]) -> None:
        self._stages = stages
        self._waiting = ""
        self._marks: deque[tuple[int, int]] = (
            deque()
        )  # where chunks begin in the waiting text, and their tokens
        self._logprobs = LogprobQueue()
        self._published = 0  # characters at the beginning that were published before

    async def begin(self, text: str) -> None:
        """Read the published text of a continued reply, since matches may begin in it. Raises FilterContractError."""
        self._published = len(text)
        async for part in slices(text):
            self.feed(part, 0)

    async def forbids(self, text: str) -> bool:
        """Return whether a filter ends this text, which is checked before any of it leaves. Raises FilterContractError."""
        async for part in slices(text):
            if self.feed(part, 0).filtered:
                return True
        return self.finish().filtered

    def feed(self, text: str, tokens: int, logprobs: Sequence[ChosenToken] = ()) -> ReleasedText:
        """Take the reply's next whole characters. Raises FilterContractError."""
        self._logprobs.put(logprobs)
        self._marks.append((len(self._waiting), tokens))
        self._waiting += text
        return self._release(*self._through(text, ends=False))

    def finish(self) -> ReleasedText:
        """End the reply: return the rest, unless a filter drops it. Raises FilterContractError."""
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

    def _release(self, text: str, filtered: bool) -> ReleasedText:  # noqa: FBT001 - a pair handed on
        if not self._waiting.startswith(text):
            raise FilterContractError("A filter passed text that is not the beginning of what it was fed.")
        self._waiting = self._waiting[len(text) :]
        tokens = 0
        while text and self._marks and self._marks[0][0] < len(text):
            tokens += self._marks.popleft()[1]
        self._marks = deque((max(0, start - len(text)), count) for start, count in self._marks)
        known = min(self._published, len(text))
        self._published -= known
        text = text[known:]
        return ReleasedText(text, tokens, filtered, self._logprobs.leave(text))


UNREAD = frozenset(("role", "tool_choice", "tool_name", "images"))
"""Fields without free text of a client: enumerations, names of listed tools, and bytes."""


class Filters:
    """A chain of filters."""

    def __init__(self, filters: Sequence[Filter] = ()) -> None:
        self._filters = tuple(filters)

    async def check(self, *values: object) -> None:
        """Check what a client sends for a prompt: texts, or structs with texts at any depth. Raises Filtered."""
        for text in filter(None, _texts(values) if self._filters else ()):
            for one in self._filters:
                if await one.refuses(text):
                    raise Filtered("A filter of this server refuses the message.")

    def reply(self) -> FilteredReply | None:
        """Return a reader of one reply from its first character on; None: no filter reads replies.

        A restarted reply takes a new one.
        """
        stages = [stage for one in self._filters if (stage := one.reply()) is not None]
        return FilteredReply(stages) if stages else None


NO_FILTERS = Filters()


def _texts(value: object) -> Iterator[str]:
    """Yield all texts of a value: every field of a struct counts unless it is in `UNREAD` or at its default."""
    match value:
        case str():
            yield value
            yield from _unescaped(value)
        case msgspec.Struct():
            for field in msgspec.structs.fields(value):
                content = getattr(value, field.name)
                if field.name not in UNREAD and content != field.default:
                    yield from _texts(content)
        case dict():
            for name, content in value.items():
                yield from _texts(name)
                yield from _texts(content)
        case list() | tuple():
            for item in value:
                yield from _texts(item)
        case int() | float() if not isinstance(value, bool):
            yield str(value)


def _unescaped(text: str) -> Iterator[str]:
    """Yield the texts of JSON with escapes, such as schemas and arguments, which chat templates show decoded."""
    if "\\" not in text or not text.lstrip().startswith(("{", "[")):
        return
    try:
        decoded = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return
    yield from _texts(decoded)
