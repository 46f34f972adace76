"""Tries a grammar in a process of its own, so that one that takes too much time or memory harms nobody.

Limits in llguidance for everything that a schema can make grow would be better. It lacks some (the states of a
`multipleOf`, the items of an object with thousands of properties), so a grammar's cost is measured before it is used.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Protocol

from llguidance import LLMatcher

from engine.grammar.compiler import GrammarCompiler, GrammarError, why
from engine.grammar.source import GrammarSource

COMPILE_S = 0.25
"""CPU seconds to compile a grammar and to make its first mask."""
TOKEN_S = 0.1
"""CPU seconds for each token of a reply: to take it, and to make the next mask."""
WHOLE_S = 0.5
"""CPU seconds for the whole trial. Its process is killed then."""
WALKS = ("{", "[", "", "")
"""What the replies of a trial prefer: to open an object or a list wherever they may, or random tokens only."""
TOKENS = 16
"""The length of each of these replies."""
MEMORY_BYTES = 32 * 2**20
"""The most memory of a matcher. Each running reply may have one."""
TIMEOUT_S = 10.0
"""Seconds until a trial is given up on a machine without a CPU to spare."""
NICENESS = 5
"""Trials have a lower priority than whatever computes replies."""
HURRIED_S = 0.01
"""How long a trial is waited for while others wait for prompts. Most trials take less."""
OTHERS_HURRIED_S = 0.001
"""How long the trial of another grammar is waited for then."""
UNTOLD = 16
"""The most outcomes that are kept until somebody asks for them."""

COSTLY = (
    "It takes too much time or memory to compile: it is too large, or it can be matched in too many ways."
)

_PAGE = resource.getpagesize()


class TrialPostponed(Exception):
    """The caller has other work to do. The trial goes on; call again for its outcome."""


class JobSignals(Protocol):
    """What the caller of a trial may learn while it waits."""

    hurried: bool
    """Others wait for prompts, so the caller should not wait long for a trial."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when there is something to learn."""
        ...

    def stops(self) -> bool:
        """Read what has come, and return whether nobody waits for the trial any more."""
        ...


class GrammarTrials:
    """Runs one trial at a time, in a process of its own that goes on while the caller does other work. For one thread."""

    def __init__(self, compiler: GrammarCompiler, signals: JobSignals) -> None:
        """Take a compiler, and what tells the caller to stop waiting."""
        self._compiler = compiler
        self._signals = signals
        self._running: _Running | None = None
        self._untold: OrderedDict[bytes, str] = OrderedDict()

    def __call__(self, source: GrammarSource) -> str:
        """Return what is wrong with a grammar, or an empty string. Raises TrialPostponed.

        If a trial of another grammar still runs, its end comes first. Others are hardly kept waiting for that: many grammars in
        a row would each take their while.
        """
        digest = source.digest
        if self._running is not None and self._running.digest != digest:
            other = self._running.digest
            self._untold[other] = self._outcome(self._running, hurried_s=OTHERS_HURRIED_S)
            if len(self._untold) > UNTOLD:
                self._untold.popitem(last=False)
        if digest in self._untold:
            return self._untold.pop(digest)
        if self._running is None:
            self._running = _Running(self._compiler, source)
        return self._outcome(self._running, hurried_s=HURRIED_S)

    def _outcome(self, running: _Running, *, hurried_s: float) -> str:
        began = time.monotonic()
        while (outcome := running.outcome()) is None:
            waits_s = running.until - time.monotonic()
            if self._signals.stops():
                raise TrialPostponed
            if self._signals.hurried:
                waits_s = min(waits_s, began + hurried_s - time.monotonic())
                if waits_s <= 0:
                    raise TrialPostponed
            select.select([running.fileno(), self._signals.fileno()], [], [], max(0.0, waits_s))
        running.end()
        self._running = None
        return outcome


def trial(compiler: GrammarCompiler, source: GrammarSource) -> str:
    """Return what is wrong with a grammar, or an empty string. Forks, so the process must have one thread only."""
    running = _Running(compiler, source)
    try:
        while (outcome := running.outcome()) is None:
            select.select([running], [], [], max(0.0, running.until - time.monotonic()))
        return outcome
    finally:
        running.end()


class _Running:
    """A fork of this process that tries a grammar. `until`: when it is killed, by the monotonic clock."""

    def __init__(self, compiler: GrammarCompiler, source: GrammarSource) -> None:
        self.digest = source.digest
        self.until = time.monotonic() + TIMEOUT_S
        self._output = b""
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # about forks of processes with threads: this one's are idle
            self._child = os.fork()
        if not self._child:
            _try_and_end(compiler, source, writing)
        os.close(writing)

    def fileno(self) -> int:
        return self._reading

    def outcome(self) -> str | None:
        """Return its outcome; None while it runs."""
        with suppress(BlockingIOError):
            while some := os.read(self._reading, 65_536):
                self._output += some
            return self._output[1:].decode() if self._output else COSTLY
        return COSTLY if time.monotonic() >= self.until else None

    def end(self) -> None:
        os.close(self._reading)
        with suppress(ProcessLookupError):
            os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)


def judge(compiler: GrammarCompiler, source: GrammarSource) -> str:
    """Try a grammar in this process, and return what is wrong with it. Its cost is known only afterwards."""
    clock, memory = time.process_time, _peak_bytes()
    began = clock()
    try:
        matcher = compiler.matcher(source)
    except GrammarError as fault:
        return str(fault)
    matcher.compute_bitmask()
    if matcher.is_error():
        return f"It allows nothing. {why(matcher)}"
    if clock() - began > COMPILE_S or _worst_token(compiler, matcher, clock) > TOKEN_S:
        return COSTLY
    if matcher.is_error():
        return why(matcher)
    return COSTLY if _peak_bytes() - memory > MEMORY_BYTES else ""


def _worst_token(compiler: GrammarCompiler, matcher: LLMatcher, clock: Callable[[], float]) -> float:
    """Return the seconds that the slowest token of the trial's replies took."""
    random, worst = Random(0), 0.0
    for opening in WALKS:
        preferred = compiler.vocabulary.tokens.tokenize_str(opening)
        written = 0
        while written < TOKENS and worst <= TOKEN_S and not matcher.is_stopped():
            token = _some_token(matcher.compute_bitmask(), preferred, random)
            began = clock()
            matcher.consume_token(token)
            matcher.compute_bitmask()
            worst, written = max(worst, clock() - began), written + 1
        matcher.rollback(written)
    return worst


def _some_token(mask: bytes, preferred: Sequence[int], random: Random) -> int:
    for token in preferred:
        if mask[token // 8] >> token % 8 & 1:
            return token
    place = random.choice([place for place, byte in enumerate(mask) if byte])
    return 8 * place + random.choice([bit for bit in range(8) if mask[place] >> bit & 1])


def _try_and_end(compiler: GrammarCompiler, source: GrammarSource, writing: int) -> None:
    try:
        os.nice(NICENESS)
        _bound_memory()
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, WHOLE_S)
        os.write(writing, b"!" + judge(compiler, source).encode())
    finally:
        os._exit(0)


def _bound_memory() -> None:
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * _PAGE + 8 * MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _peak_bytes() -> int:
    """Return the peak memory of the process so far. macOS counts bytes, other systems KiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
