"""Tries a grammar in a process of its own: what it takes too long for, or too much memory, harms nobody, nor do others wait.

A limit of llguidance's for each thing that a schema can make grow would be better; it has none for some (the states of a
`multipleOf`, items of an object with thousands of properties). So what a grammar takes is measured before it is used.
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

from engine.grammar.compiling import Compiler, GrammarFault, why
from engine.grammar.source import Source

COMPILE_S = 0.25
"""Of a processor, to compile a grammar and to make its first mask."""
TOKEN_S = 0.1
"""Of a processor, for a token of a reply: what it does to the grammar, and the next mask."""
WHOLE_S = 0.5
"""Of a processor, for all that is tried: the process ends then, wherever it is."""
WALKS = ("{", "[", "", "")
TOKENS = 16
"""Replies that are begun, so long: each of tokens at random, or of what opens an object or a list where that may come."""
MEMORY_BYTES = 32 * 2**20
"""Of a matcher. As many replies as run have one each."""
TIMEOUT_S = 10.0
"""On a machine that has no processor to spare."""
NICENESS = 5
"""A trial goes behind whatever computes replies."""
HURRIED_S = 0.01
"""So long is waited for a trial where others wait for prompts: most take less."""
UNTOLD = 16
"""Outcomes that nobody has asked for yet."""

COSTLY = (
    "It takes too long to compile, or too much memory: it is too large, or too many ways lead through it."
)

_PAGE = resource.getpagesize()


class SetAside(Exception):
    """The one who asked is wanted elsewhere. The trial goes on; ask again for what became of it."""


class Said(Protocol):
    """What the one who asked says meanwhile."""

    hurried: bool
    """Others wait: nobody should wait for a trial."""

    def fileno(self) -> int:
        """Return the descriptor on which something comes."""
        ...

    def stops(self) -> bool:
        """Return whether nobody waits for the trial any more, after whatever came."""
        ...


class Trials:
    """One trial at a time, in a process of its own. It goes on while this one does something else. For one thread."""

    def __init__(self, compiler: Compiler, said: Said) -> None:
        """Take what compiles, and what the one who asks says while he waits."""
        self._compiler = compiler
        self._said = said
        self._running: _Running | None = None
        self._untold: OrderedDict[bytes, str] = OrderedDict()

    def __call__(self, source: Source) -> str:
        """Return what is wrong with a grammar, empty: nothing. Raises SetAside.

        A trial of another grammar that still runs is waited for first.
        """
        digest = source.digest
        if self._running is not None and self._running.digest != digest:
            other = self._running.digest
            self._untold[other] = self._outcome(self._running)
            if len(self._untold) > UNTOLD:
                self._untold.popitem(last=False)
        if digest in self._untold:
            return self._untold.pop(digest)
        if self._running is None:
            self._running = _Running(self._compiler, source)
        return self._outcome(self._running)

    def _outcome(self, running: _Running) -> str:
        began = time.monotonic()
        while (told := running.told()) is None:
            waits_s = running.until - time.monotonic()
            if self._said.stops():
                raise SetAside
            if self._said.hurried:
                waits_s = min(waits_s, began + HURRIED_S - time.monotonic())
                if waits_s <= 0:
                    raise SetAside
            select.select([running.fileno(), self._said.fileno()], [], [], max(0.0, waits_s))
        running.end()
        self._running = None
        return told


def trial(compiler: Compiler, source: Source) -> str:
    """Return what is wrong with a grammar, empty: nothing. For a process with one thread, which is copied for it."""
    running = _Running(compiler, source)
    try:
        while (told := running.told()) is None:
            select.select([running], [], [], max(0.0, running.until - time.monotonic()))
        return told
    finally:
        running.end()


class _Running:
    """A copy of this process that tries a grammar. `until`: when it is ended, by the monotonic clock."""

    def __init__(self, compiler: Compiler, source: Source) -> None:
        self.digest = source.digest
        self.until = time.monotonic() + TIMEOUT_S
        self._told = b""
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # of copies of processes with threads: this one's are idle
            self._child = os.fork()
        if not self._child:
            _try_and_end(compiler, source, writing)
        os.close(writing)

    def fileno(self) -> int:
        return self._reading

    def told(self) -> str | None:
        """Return what came of it; None: it runs."""
        with suppress(BlockingIOError):
            while some := os.read(self._reading, 65_536):
                self._told += some
            return self._told[1:].decode() if self._told else COSTLY
        return COSTLY if time.monotonic() >= self.until else None

    def end(self) -> None:
        os.close(self._reading)
        with suppress(ProcessLookupError):
            os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)


def judge(compiler: Compiler, source: Source) -> str:
    """Return what is wrong with a grammar, here and now; what it takes is looked at behind it."""
    clock, memory = time.process_time, _peak_bytes()
    began = clock()
    try:
        matcher = compiler.matcher(source)
    except GrammarFault as fault:
        return str(fault)
    matcher.compute_bitmask()
    if matcher.is_error():
        return f"It allows nothing. {why(matcher)}"
    if clock() - began > COMPILE_S or _worst_token(compiler, matcher, clock) > TOKEN_S:
        return COSTLY
    if matcher.is_error():
        return why(matcher)
    return COSTLY if _peak_bytes() - memory > MEMORY_BYTES else ""


def _worst_token(compiler: Compiler, matcher: LLMatcher, clock: Callable[[], float]) -> float:
    """Return the seconds that the worst token of some replies took."""
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


def _try_and_end(compiler: Compiler, source: Source, writing: int) -> None:
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
    """The most memory that the process had so far; macOS counts bytes, others KiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
