"""The chain of all filters of a service. They refuse messages and end replies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from sessions.errors import Filtered
from sessions.filters.filtered_reply import FilteredReply
from sessions.filters.interface import Filter

UNREAD = frozenset(("role", "tool_choice", "tool_name", "images"))
"""Fields without text that a client wrote: choices of a few words, names of listed tools, and bytes."""


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

    def reply(self) -> FilteredReply:
        """Return a reader of one reply from its first character on; a restarted reply takes a new one."""
        stages = (one.reply() for one in self._filters)
        return FilteredReply([stage for stage in stages if stage is not None])


NO_FILTERS = Filters()


def _texts(value: object) -> Iterator[str]:
    """Yield all texts of a value: every field of a struct counts that is neither listed above nor at its default."""
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
