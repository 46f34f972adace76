"""The log of the engine's process: lines on standard error, without any content."""

from __future__ import annotations

import logging
import sys
import threading
from types import TracebackType
from typing import Any

from engine.printable import printable
from engine.tracebacks import without_values

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
