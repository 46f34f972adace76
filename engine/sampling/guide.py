"""One reply's way through its grammar: which tokens may come next. Knows no threads and no other reply."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import Protocol

import torch
from llguidance import LLMatcher
from torch import Tensor

from engine.grammar.compiler import GrammarCompiler, GrammarError, why
from engine.grammar.source import GrammarSource
from engine.messages import ErrorCode

BITS = 32
"""Tokens in a word of a mask."""

FEW = 1024
"""Up to so many tokens are listed beside their mask. Most places of a grammar allow fewer."""


class GuideState(Enum):
    """Where a reply is in its grammar."""

    NEW = auto()
    """Nothing was done yet, and no matcher is held."""
    WAITING = auto()
    """The next mask is not made yet."""
    READY = auto()
    COMPLETE = auto()
    """Nothing can follow, since the reply is all that its grammar allows."""
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class GuideFailure:
    """Why a reply can't go on in its grammar, and whose fault that is."""

    message: str
    code: ErrorCode


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """The tokens that a reply may have anywhere, and those that don't end it; each (words,) of int32."""

    allowed: Tensor
    unended: Tensor


class MatcherWorker(Protocol):
    """Moves matchers on."""

    def consume(self, matcher: LLMatcher, token: int) -> bool:
        """Take a token. False: it may not come here."""
        ...


class Guide:
    """Holds one reply to its grammar. It stays with the reply, from slot to slot and through the queue.

    `mask`: one bit for each token that may come next, lowest ids in the lowest bits, (words,) of int32; set while READY.
    `few`: the same tokens in ascending order, (tokens,) of int64, if they are few.
    """

    def __init__(
        self, compiler: GrammarCompiler, source: GrammarSource, masks: TokenMasks, *, min_tokens: int = 0
    ) -> None:
        """Take a grammar. `min_tokens`: the reply ends no sooner, unless it can't go on."""
        self.state = GuideState.NEW
        self.mask: Tensor | None = None
        self.few: Tensor | None = None
        self.fault: GuideFailure | None = None
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
        """Release everything, since the reply has ended. Only the thread that asks for masks may call it."""
        matcher, self._matcher = self._matcher, None
        self.mask = self.few = None
        # While it is WAITING another thread may use the matcher.
        if matcher is not None and self.state is not GuideState.WAITING:
            self._compiler.keep(self._source, matcher)
        self.state = GuideState.COMPLETE

    def begin(self) -> None:
        """Compile the grammar, and find out what may come first."""
        try:
            self._matcher = matcher = self._compiler.matcher(self._source)
        except GrammarError as fault:
            self.mark_failed(GuideFailure(f"The grammar can't be followed: {fault}", ErrorCode.BAD_PARAMS))
        else:
            self._compute_mask(matcher)

    def advance(self, token: int, worker: MatcherWorker) -> None:
        """Take the token that was chosen, and find out what may come next."""
        matcher = self._matcher
        if matcher is None:
            return
        if not worker.consume(matcher, token):
            self._fail(matcher)
        elif matcher.is_stopped():
            self.state = GuideState.COMPLETE
        else:
            self._tokens += 1
            self._compute_mask(matcher)

    def mark_failed(self, fault: GuideFailure) -> None:
        """Note that the reply can't go on."""
        self.fault, self.state = fault, GuideState.FAILED

    def _compute_mask(self, matcher: LLMatcher) -> None:
        mask = torch.empty_like(self._masks.allowed)
        matcher.unsafe_compute_mask_ptr(mask.data_ptr(), mask.nbytes)
        if matcher.is_error():
            self._fail(matcher)
            return
        mask &= self._masks.allowed
        if not mask.any():
            self.mark_failed(
                GuideFailure("The grammar allows only control tokens here.", ErrorCode.BAD_PARAMS)
            )
            return
        if self._tokens < self._min_tokens and (not_ending := mask & self._masks.unended).any():
            mask = not_ending
        self.few = _few(mask)
        self.mask, self.state = mask, GuideState.READY

    def _fail(self, matcher: LLMatcher) -> None:
        self.mark_failed(
            GuideFailure(f"The grammar can't be followed any further: {why(matcher)}", ErrorCode.BAD_PARAMS)
        )


def mask_of(tokens: Collection[int], size: int) -> Tensor:
    """Return a mask of these tokens of a vocabulary."""
    bits = torch.zeros(-(-size // BITS) * BITS, dtype=torch.bool)
    bits[list(tokens)] = True
    powers = torch.tensor([1 << bit for bit in range(BITS)], dtype=torch.int64)
    return (bits.view(-1, BITS) * powers).sum(dim=1).to(torch.int32)


def _few(mask: Tensor) -> Tensor | None:
    """Return the tokens of a mask in ascending order; None if they are more than `FEW`."""
    words = mask.nonzero().squeeze(1)
    if len(words) > FEW:
        return None
    bits = (mask[words].unsqueeze(1) >> torch.arange(BITS, dtype=torch.int32)) & 1
    rows, places = bits.nonzero(as_tuple=True)
    return words[rows] * BITS + places if len(rows) <= FEW else None


@cache
def _most_of_bytes() -> Tensor:
    """Return the highest scores of the eight tokens of each byte of a mask: a lookup of eight is faster than filling one."""
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
