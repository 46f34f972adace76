"""Threads that make the masks of guided replies, beside the text, the messages and the next forward pass.

llguidance releases Python's lock meanwhile. If a mask is late, its reply skips the step, so no other reply is delayed.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from llguidance import LLExecutor, LLMatcher

from engine.grammar.compiler import GrammarCompiler
from engine.grammar.source import GrammarSource
from engine.grammar.vocabulary import Vocabulary
from engine.messages import ErrorCode
from engine.sampling.guide import Guide, GuideFailure, GuideState, TokenMasks, mask_of

MOST_THREADS = 8

log = logging.getLogger(__name__)


class MaskWorkers:
    """Moves guides on. Only the thread of the step loop calls it; the work is done by threads of its own."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        """Take a compiler for the model's tokens. No thread is started before there is work."""
        threads = max(2, min(MOST_THREADS, (os.cpu_count() or 1) // 2))
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="masks")
        self._beginnings = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._own = threading.local()
        self._done = threading.Condition()
        self._requested: deque[tuple[Guide, int]] = deque()
        self._compiler = compiler
        vocabulary = compiler.vocabulary
        self._ordinary = ~mask_of(vocabulary.controls, vocabulary.size)
        self._ends = mask_of(vocabulary.ends, vocabulary.size)

    def guide(self, source: GrammarSource, *, min_tokens: int = 0) -> Guide:
        """Return a guide for a reply that may wait for long. It holds no matcher yet."""
        named = mask_of(source.controls, self._compiler.vocabulary.size)
        masks = TokenMasks(self._ordinary | named | self._ends, ~self._ends)
        return Guide(self._compiler, source, masks, min_tokens=min_tokens)

    def begin(self, guide: Guide) -> None:
        """Have a guide's grammar compiled, and its first mask made, unless that was done before."""
        if guide.state is GuideState.NEW:
            guide.state = GuideState.WAITING
            self._beginnings.submit(self._do, guide, guide.begin)

    def advance(self, guide: Guide, token: int) -> None:
        """Tell a guide which token was chosen. `look_ahead` begins to make its next mask."""
        guide.state = GuideState.WAITING
        self._requested.append((guide, token))

    def look_ahead(self) -> None:
        """Begin to make the masks of the guides that were told a token."""
        requested, self._requested = self._requested, deque()
        for _ in range(min(self._threads, len(requested))):
            self._pool.submit(self._work, requested)

    def wait(self, guides: Collection[Guide], seconds: float, *, first_s: float = 0.0) -> None:
        """Wait up to `seconds` until all masks are there, after up to `first_s` seconds for the first one."""
        with self._done:
            if first_s:
                self._done.wait_for(
                    lambda: any(guide.state is not GuideState.WAITING for guide in guides), first_s
                )
            self._done.wait_for(
                lambda: all(guide.state is not GuideState.WAITING for guide in guides), seconds
            )

    def _work(self, requested: deque[tuple[Guide, int]]) -> None:
        """Do the work that no other thread has begun."""
        while True:
            try:
                guide, token = requested.popleft()
            except IndexError:
                return
            self._do(guide, partial(guide.advance, token, self._worker()))

    def _do(self, guide: Guide, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException:
            # The boundary of one reply's grammar: other masks must still be made, and somebody waits for this one.
            log.exception("computing a token mask failed")
            guide.mark_failed(GuideFailure("The reply's grammar could not be followed.", ErrorCode.INTERNAL))
        with self._done:
            self._done.notify_all()

    def _worker(self) -> _MatcherWorker:
        """Return the hands of this thread."""
        if not hasattr(self._own, "hands"):
            self._own.hands = _MatcherWorker(self._compiler.vocabulary)
        hands: _MatcherWorker = self._own.hands
        return hands


class _MatcherWorker:
    """Moves matchers on without holding Python's lock, which a token of a large grammar would do for 100 ms.

    llguidance releases the lock when it moves several matchers at once. So each is moved beside a broken one, which is free.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._executor = LLExecutor(1)
        self._broken = LLMatcher(vocabulary.tokens, "", log_level=0)

    def consume(self, matcher: LLMatcher, token: int) -> bool:
        """Take a token. False: it may not come here."""
        taken, _ = self._executor.consume_token_par([(matcher, token), (self._broken, 0)])
        return taken
