"""The lines that are typed at a terminal, or come from a file, without the event loop waiting for them."""

from __future__ import annotations

import asyncio
import codecs
import os
import threading
from collections.abc import Iterator
from contextlib import suppress

_READ_BYTES = 64 * 1024


def typed_lines(source: int) -> asyncio.Queue[str]:
    """Lines as they are typed; an empty one is the end of the input.

    A thread reads them: a terminal that is made non-blocking for the event loop is so for standard output too,
    and a file can't be waited for at all.
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
    """Lines with their ends. A terminal that is gone is the end of its input."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    rest = ""
    with suppress(OSError):
        while piece := os.read(source, _READ_BYTES):
            *whole, rest = (rest + decoder.decode(piece)).split("\n")
            yield from (f"{line}\n" for line in whole)
    if rest:
        yield rest
