"""Tries a grammar in a process of its own: what it takes too long for, or too much memory, harms nobody.

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
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

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

COSTLY = (
    "It takes too long to compile, or too much memory: it is too large, or too many ways lead through it."
)

_PAGE = resource.getpagesize()


def trial(compiler: Compiler, source: Source) -> str:
    """Return what is wrong with a grammar, empty: nothing. For a process with one thread, which is copied for it."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # of copies of processes with threads: this one's are idle
        child = os.fork()
    if not child:
        _try_and_end(compiler, source, writing)
    os.close(writing)
    try:
        return _told(reading)
    finally:
        os.close(reading)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


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
        _bound_memory()
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, WHOLE_S)
        os.write(writing, b"!" + judge(compiler, source).encode())
    finally:
        os._exit(0)


def _told(reading: int) -> str:
    told, until = b"", time.monotonic() + TIMEOUT_S
    while select.select([reading], [], [], max(0.0, until - time.monotonic()))[0]:
        some = os.read(reading, 65_536)
        if not some:
            break
        told += some
    return told[1:].decode() if told else COSTLY


def _bound_memory() -> None:
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * _PAGE + 8 * MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _peak_bytes() -> int:
    """The most memory that the process had so far; macOS counts bytes, others KiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
