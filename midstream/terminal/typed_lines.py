"""Lines that are typed at a terminal, or read from a file, without blocking the event loop."""

from __future__ import annotations

import asyncio
import codecs
import os
import threading
from collections.abc import Iterator
from contextlib import suppress

_READ_BYTES = 64 * 1024


def typed_lines(source: int) -> asyncio.Queue[str]:
    """Return a queue of lines as they are typed; an empty one is the end of the input.

    A thread reads them. A terminal that is made non-blocking for the event loop is non-blocking for standard
    output, too; and a file can't be waited for at all.
    """
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        with suppress(RuntimeError):  # the loop is closed: the user left
            for line in _read(source):
                loop.call_soon_threadsafe(lines.put_nowait, line)
            loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=read, daemon=True, name="standard input").start()
    return lines


def _read(source: int) -> Iterator[str]:
    """Yield lines with their ends. A terminal that is gone ends its input."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    rest = ""
    with suppress(OSError):
        while piece := os.read(source, _READ_BYTES):
            *whole, rest = (rest + decoder.decode(piece)).split("\n")
            yield from (f"{line}\n" for line in whole)
    if rest:
        yield rest
