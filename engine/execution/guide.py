"""Where replies are in their grammars: which tokens may come next, and the threads that compute the masks."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache, partial

import torch
from llguidance import LLExecutor, LLMatcher
from torch import Tensor

from engine.grammar import GrammarCompiler, GrammarError, GrammarSource, Vocabulary, why
from engine.messages import ErrorCode

log = logging.getLogger(__name__)


class Guide:
    """Holds one reply to its grammar. It stays with the reply, from slot to slot and through the queue.

    `mask`: one bit for each token that may come next, lowest ids in the lowest bits, (words,) of int32. `blocked`: why the
    reply gets no token now; None if its mask is made.
    """

    def __init__(
        self, compiler: GrammarCompiler, source: GrammarSource, masks: TokenMasks, *, min_tokens: int = 0
    ) -> None:
        """Take a grammar. `min_tokens`: the reply ends no sooner, unless it can't continue."""
        self.blocked: SpanFailure | Deferred | None = Deferred.LATE
        self.mask: Tensor | None = None
        self.begun = False
        self._compiler = compiler
        self._source = source
        self._masks = masks
        self._min_tokens = min_tokens
        self._tokens = 0
        self._matcher: LLMatcher | None = None

    @property
    def ends(self) -> Collection[int]:
        """The tokens that end the reply."""
        return self._compiler.vocabulary.ends

    def close(self) -> None:
        """Release everything, since the reply has ended. Only the thread that requests masks may call this."""
        matcher, self._matcher = self._matcher, None
        self.mask = None
        # While the guide is LATE another thread may use the matcher.
        if matcher is not None and self.blocked is not Deferred.LATE:
            self._compiler.keep(self._source, matcher)
        self.blocked = Deferred.COMPLETE

    def begin(self) -> None:
        """Compile the grammar, and find out what may come first."""
        try:
            self._matcher = matcher = self._compiler.matcher(self._source)
        except GrammarError as fault:
            self.mark_failed(f"The grammar can't be followed: {fault}")
        else:
            self._compute_mask(matcher)

    def advance(self, token: int, worker: _MatcherWorker) -> None:
        """Take the token that was chosen, and find out what may come next."""
        matcher = self._matcher
        if matcher is None:
            return
        if not worker.consume(matcher, token):
            self._fail(matcher)
        elif matcher.is_stopped():
            self.blocked = Deferred.COMPLETE
        else:
            self._tokens += 1
            self._compute_mask(matcher)

    def mark_failed(self, why: str, code: ErrorCode = ErrorCode.BAD_PARAMS) -> None:
        """Note that the reply can't continue, and whose fault that is."""
        self.blocked = SpanFailure(why, code, valid=True)

    def _compute_mask(self, matcher: LLMatcher) -> None:
        mask = torch.empty_like(self._masks.allowed)
        matcher.unsafe_compute_mask_ptr(mask.data_ptr(), mask.nbytes)
        if matcher.is_error():
            self._fail(matcher)
            return
        mask &= self._masks.allowed
        if not mask.any():
            self.mark_failed("The grammar allows only control tokens here.")
            return
        if self._tokens < self._min_tokens and (not_ending := mask & self._masks.unended).any():
            mask = not_ending
        self.mask, self.blocked = mask, None

    def _fail(self, matcher: LLMatcher) -> None:
        self.mark_failed(f"The grammar can't be followed any further: {why(matcher)}")


class Deferred(Enum):
    """Why a span that samples gave no token, though nothing is wrong."""

    LATE = auto()
    """Its grammar's mask is not made yet. The same span may give a token in the next step."""
    COMPLETE = auto()
    """Its grammar allows no further token, so the reply is at its end."""


@dataclass(frozen=True, slots=True)
class SpanFailure:
    """Why a span gave no token, in words for its requester. `valid`: its keys and values are valid all the same."""

    message: str
    code: ErrorCode = ErrorCode.INTERNAL
    valid: bool = False


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """The tokens that a reply may have anywhere, and those that don't end it; each (words,) of int32."""

    allowed: Tensor
    unended: Tensor


class MaskWorkers:
    """Advances guides. Only the step loop's thread calls the methods; the work is done by other threads."""

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
        if not guide.begun:
            guide.begun = True
            self._beginnings.submit(self._do, guide, guide.begin)

    def advance(self, guide: Guide, token: int) -> None:
        """Tell a guide which token was chosen. `look_ahead` begins to make its next mask."""
        guide.blocked = Deferred.LATE
        self._requested.append((guide, token))

    def look_ahead(self) -> None:
        """Begin to make the masks of the guides that were given a token."""
        requested, self._requested = self._requested, deque()
        for _ in range(min(self._threads, len(requested))):
            self._pool.submit(self._work, requested)

    def wait(self, guides: Collection[Guide], seconds: float, *, first_s: float = 0.0) -> None:
        """Wait up to `seconds` until all masks are there, after up to `first_s` seconds for the first one."""
        with self._done:
            if first_s:
                self._done.wait_for(
                    lambda: any(guide.blocked is not Deferred.LATE for guide in guides), first_s
                )
            self._done.wait_for(lambda: all(guide.blocked is not Deferred.LATE for guide in guides), seconds)

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
            guide.mark_failed("The reply's grammar could not be followed.", ErrorCode.INTERNAL)
        with self._done:
            self._done.notify_all()

    def _worker(self) -> _MatcherWorker:
        """Return this thread's own worker."""
        if not hasattr(self._own, "hands"):
            self._own.hands = _MatcherWorker(self._compiler.vocabulary)
        hands: _MatcherWorker = self._own.hands
        return hands


BITS = 32
"""Tokens in a word of a mask."""

MOST_THREADS = 8


def mask_of(tokens: Collection[int], size: int) -> Tensor:
    """Return a mask of these tokens of a vocabulary."""
    bits = torch.zeros(-(-size // BITS) * BITS, dtype=torch.bool)
    bits[list(tokens)] = True
    powers = torch.tensor([1 << bit for bit in range(BITS)], dtype=torch.int64)
    return (bits.view(-1, BITS) * powers).sum(dim=1).to(torch.int32)


@cache
def _most_of_bytes() -> Tensor:
    """Return each byte's limits on its eight tokens' scores, infinite or -inf, (256, 8): a lookup is faster than filling."""
    allowed = (torch.arange(256).unsqueeze(1) >> torch.arange(8)) & 1 == 1
    return torch.where(allowed, torch.inf, -torch.inf)


def masked(scores: Tensor, masks: Tensor) -> Tensor:
    """Return rows of scores, (rows, vocabulary) of float32, with -inf for tokens that their masks, (rows, words), leave out.

    The given scores stay as they are. A row with NaN anywhere stays unusable.
    """
    if scores.device.type == "cpu":
        most = torch.embedding(_most_of_bytes(), masks.view(torch.uint8).int())
        most = most.view(len(masks), -1)[:, : scores.shape[1]]
        return torch.minimum(scores, most, out=most)
    places = torch.arange(8, dtype=torch.uint8, device=masks.device)
    bits = (masks.view(torch.uint8).unsqueeze(-1) >> places) & 1
    return scores.masked_fill(bits.view(len(masks), -1)[:, : scores.shape[1]] == 0, -torch.inf)


class _MatcherWorker:
    """Advances matchers without Python's lock, which one token of a large grammar would hold for 100 ms.

    llguidance releases the lock when it advances several matchers at once. So each is advanced with a broken one, at no cost.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._executor = LLExecutor(1)
        self._broken = LLMatcher(vocabulary.tokens, "", log_level=0)

    def consume(self, matcher: LLMatcher, token: int) -> bool:
        """Take a token. False: it may not come here."""
        taken, _ = self._executor.consume_token_par([(matcher, token), (self._broken, 0)])
        return taken
