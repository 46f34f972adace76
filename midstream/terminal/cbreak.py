"""A terminal whose keys are read by the chat, one by one."""

from __future__ import annotations

import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cbreak(fd: int) -> Iterator[None]:
    """Keys are neither echoed nor gathered into lines, but Ctrl-C is a signal still."""
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd, termios.TCSANOW)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)
