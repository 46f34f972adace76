"""Logs without content: lines on standard error, tracebacks without values, and text of others made printable."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any


def printable(text: str) -> str:
    """Return a text with control characters, line ends and invisible characters as escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def printable_lines(text: str) -> str:
    """Return the same with its line ends kept."""
    return "\n".join(map(printable, text.split("\n")))


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


SHOWN_ERRORS = (OSError, RuntimeError)
"""Errors whose messages hold only sizes, shapes and devices."""

log = logging.getLogger(__name__)


class Formatter(logging.Formatter):
    """Writes lines whose tracebacks hold no values."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        """See `logging.Formatter`."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name is logging's
        """See `logging.Formatter`."""
        return without_values(ei[1], shown=SHOWN_ERRORS)


def set_up() -> None:
    """Log to standard error, uncaught exceptions included."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Formatter("engine: %(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    sys.excepthook = _uncaught
    threading.excepthook = lambda trouble: _uncaught(
        trouble.exc_type, trouble.exc_value, trouble.exc_traceback
    )


def remove_library_handlers() -> None:
    """Tell what libraries log by our handler alone. Call it once they are imported: huggingface_hub brings a handler, too."""
    logging.getLogger("huggingface_hub").handlers.clear()


def _uncaught(kind: type[BaseException], error: BaseException | None, where: TracebackType | None) -> None:
    if error is not None and not isinstance(error, KeyboardInterrupt):
        log.critical("an uncaught exception", exc_info=(kind, error, where))
