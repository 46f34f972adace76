"""Runs vLLM and everything that it starts, and leaves nothing of it behind: `python vllm_keeper.py GRACE_S COMMAND…`.

vLLM has several processes. If its server is killed, the others live on, with the memory of their GPUs. The keeper is a
process between the gateway and vLLM. The keeper ends vLLM on request (SIGTERM), and at once when the gateway ends in any
way, since its standard input closes then. On Linux every orphan of vLLM becomes a child of the keeper. This module imports
none of our packages.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

SIGNALLED = 128
"""An end by a signal is an exit code of this plus the signal's number, as in shells."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LINUX = sys.platform == "linux"
_GATEWAY = 0


class Keeper:
    """Waits for one of three things: vLLM's end, a request to end it, or the gateway's end."""

    def __init__(self, grace_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`grace_s`: how long vLLM has to end by itself after it was asked to."""
        self._grace_s = grace_s
        self._clock = clock
        self._deadline: float | None = None
        self._news, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the gateway's business
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._ask())
        self._process: subprocess.Popen[bytes] | None = None

    def keep(self, command: Sequence[str]) -> int:
        """Run a command to its end; return its exit code. Nothing that it started is left."""
        prctl = ctypes.CDLL(None, use_errno=True).prctl if _LINUX else None
        if prctl is not None:
            prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._process = subprocess.Popen(  # noqa: S603 - the gateway's command; no threads run here
            command,
            stdin=subprocess.DEVNULL,
            preexec_fn=None if prctl is None else lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509 - no threads
        )
        try:
            while self._process.poll() is None and self._wait():
                pass
        finally:
            self._process.kill()
            code = self._process.wait()
            _sweep()
        return code

    def _wait(self) -> bool:
        """Wait for news; return whether vLLM may live on."""
        left_s = None if self._deadline is None else self._deadline - self._clock()
        if left_s is not None and left_s <= 0:
            return False
        ready, _, _ = select.select([_GATEWAY, self._news], [], [], left_s)
        if self._news in ready:
            os.read(self._news, 4096)
        return not (_GATEWAY in ready and not os.read(_GATEWAY, 4096))

    def _ask(self) -> None:
        if self._deadline is None and self._process is not None:
            self._deadline = self._clock() + self._grace_s
            self._process.terminate()


def _sweep() -> None:
    """Kill the children of this process until none is left. On other systems than Linux the gateway kills the group."""
    while _LINUX and (left := _children()):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _children() -> list[int]:
    """Return the ids of this process's children; none if the kernel does not list them."""
    with suppress(OSError):
        return [int(pid) for pid in Path("/proc/thread-self/children").read_text(encoding="ascii").split()]
    return []


if __name__ == "__main__":
    ended = Keeper(float(sys.argv[1])).keep(sys.argv[2:])
    os._exit(ended if ended >= 0 else SIGNALLED - ended)
