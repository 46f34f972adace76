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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from llguidance import LLMatcher

from engine.grammar.compiling import Compiler, GrammarFault, why
from engine.grammar.source import Source

COMPILE_S = 0.25
"""Of a processor, to compile a grammar and to make its first mask."""
TOKEN_S = 0.02
"""Of a processor, for a token of a reply: what it does to the grammar, and the next mask."""
TOKENS = 48
"""So many are tried, whichever they are."""
MEMORY_BYTES = 64 * 2**20
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
        matcher = compiler.compiled(source).matcher
    except GrammarFault as fault:
        return str(fault)
    first = matcher.compute_bitmask()
    if matcher.is_error():
        return f"It allows nothing. {why(matcher)}"
    if clock() - began > COMPILE_S or _walk(matcher, first, clock) > TOKEN_S:
        return COSTLY
    if matcher.is_error():
        return why(matcher)
    return COSTLY if _peak_bytes() - memory > MEMORY_BYTES else ""


def _walk(matcher: LLMatcher, mask: bytes, clock: Callable[[], float]) -> float:
    """Write a reply of tokens at random, the same each time. Returns what the worst of them took."""
    random, worst = Random(0), 0.0
    for _ in range(TOKENS):
        if matcher.is_stopped() or worst > TOKEN_S:
            break
        token = _some_token(mask, random)
        began = clock()
        matcher.consume_token(token)
        mask = matcher.compute_bitmask()
        worst = max(worst, clock() - began)
    return worst


def _some_token(mask: bytes, random: Random) -> int:
    places = [place for place, byte in enumerate(mask) if byte]
    place = random.choice(places)
    return 8 * place + random.choice([bit for bit in range(8) if mask[place] >> bit & 1])


def _try_and_end(compiler: Compiler, source: Source, writing: int) -> None:
    try:
        _bound_memory()
        resource.setrlimit(resource.RLIMIT_CPU, (2, 2))
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
        most = pages * _PAGE + 4 * MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _peak_bytes() -> int:
    """The most memory that the process had so far; macOS counts bytes, others KiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
