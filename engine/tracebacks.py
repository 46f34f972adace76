"""Formats exceptions for the log: places and types, but no values. Pure; for the gateway and the engine's process."""

from __future__ import annotations

import traceback
from collections.abc import Iterator


def without_values(error: BaseException, *, shown: tuple[type[BaseException], ...] = (OSError,)) -> str:
    """Return the traceback of an exception, with its causes and the exceptions of a group.

    Messages are left out, except those of the types in `shown`, since a message often quotes a value, which a person
    may have written.
    """
    return "\n".join(_lines(error, shown, set()))


def _lines(error: BaseException, shown: tuple[type[BaseException], ...], seen: set[int]) -> Iterator[str]:
    seen.add(id(error))
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and id(before) not in seen:
        yield from _lines(before, shown, seen)
        yield "It was followed by:"
    yield "Traceback (most recent call last):"
    for frame in traceback.format_tb(error.__traceback__):
        yield frame.rstrip("\n")
    yield _name(error, shown)
    for number, inner in enumerate(
        error.exceptions if isinstance(error, BaseExceptionGroup) else (), start=1
    ):
        yield f"Exception {number} of the group:"
        yield from (f"  {line}" for line in _lines(inner, shown, seen))


def _name(error: BaseException, shown: tuple[type[BaseException], ...]) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{name}: {error}" if isinstance(error, shown) else name
