"""Each guided reply gets the mask of what may come next, made beside whatever else is done."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.execution.guide import Deferred, Guide, MaskWorkers, SpanFailure, TokenMasks, mask_of, masked
from engine.grammar import GrammarSource
from engine.messages import ErrorCode, Format, Regex
from tests.engine.constrained import CITIES, compiler, ids_of, source_of, vocabulary

SIZE = vocabulary().size
LONG = 60.0


@pytest.fixture
def guides() -> MaskWorkers:
    return MaskWorkers(compiler())


def started_guide(guides: MaskWorkers, constraint: Format | GrammarSource, *, min_tokens: int = 0) -> Guide:
    source = constraint if isinstance(constraint, GrammarSource) else source_of(constraint)
    guide = guides.guide(source, min_tokens=min_tokens)
    guides.begin(guide)
    guides.wait([guide], LONG)
    return guide


def advanced(guides: MaskWorkers, guide: Guide, text: str) -> Guide:
    for token in ids_of(text):
        guides.advance(guide, token)
        guides.look_ahead()
        guides.wait([guide], LONG)
    return guide


def tokens_in(mask: Tensor | None) -> set[int]:
    assert mask is not None
    left = masked(torch.zeros(1, SIZE), mask.unsqueeze(0))[0].isfinite()
    return {*left.nonzero().flatten().tolist()}


@settings(max_examples=50)
@given(st.sets(st.integers(0, SIZE - 1)))
def test_a_mask_holds_its_tokens_and_no_others(tokens: set[int]) -> None:
    assert tokens_in(mask_of(tokens, SIZE)) == tokens


@pytest.mark.parametrize("size", [SIZE, SIZE - 1, SIZE - 31])
def test_a_mask_leaves_out_any_score_of_any_vocabulary(size: int) -> None:
    """Infinite ones, too; the scores stay what they were."""
    scores = torch.randn(8, size)
    scores[:, ::5], scores[:, ::7] = torch.inf, -torch.inf
    bits = torch.rand(8, size) < 0.9
    masks = torch.stack([mask_of(row.nonzero().flatten().tolist(), SIZE) for row in bits])
    before = scores.clone()
    assert torch.equal(masked(scores, masks), before.masked_fill(~bits, -torch.inf))
    assert torch.equal(scores, before)


def test_a_reply_ends_no_sooner_than_it_was_asked_to_unless_nothing_else_can_come(
    guides: MaskWorkers,
) -> None:
    (end,) = vocabulary().ends
    guide = started_guide(guides, Regex("a*"), min_tokens=2)
    for _ in range(2):
        assert end not in tokens_in(guide.mask)
        advanced(guides, guide, "a")
    assert end in tokens_in(guide.mask)
    short = started_guide(guides, Regex("a(b|cd)?"), min_tokens=9)
    assert advanced(guides, short, "ab").blocked is Deferred.COMPLETE


class Slow(Guide):
    """A guide whose masks come when they are let go."""

    goes_on = threading.Event()

    def begin(self) -> None:
        assert self.goes_on.wait(LONG)
        super().begin()


EVERYTHING = TokenMasks(mask_of(range(SIZE), SIZE), mask_of(range(SIZE), SIZE))


@pytest.fixture
def slow(guides: MaskWorkers) -> Iterator[Guide]:
    Slow.goes_on.clear()
    guide = Slow(compiler(), source_of(CITIES), EVERYTHING)
    guides.begin(guide)
    yield guide
    Slow.goes_on.set()
    guides.wait([guide], LONG)


def test_a_grammar_that_is_long_compiled_holds_up_no_other_mask(slow: Guide, guides: MaskWorkers) -> None:
    other = started_guide(MaskWorkers(compiler()), CITIES)
    guides.advance(other, ids_of("{")[0])
    guides.look_ahead()
    guides.wait([slow, other], 0.0, first_s=LONG)
    assert (slow.blocked, other.blocked) == (Deferred.LATE, None)


def test_the_matcher_of_a_reply_that_ended_serves_the_next_one(guides: MaskWorkers) -> None:
    source = source_of(Regex("[a-z]{5} the matcher serves again"))
    guide = advanced(guides, started_guide(guides, source), "abc")
    matcher = guide._matcher
    guide.close()
    guide.close()
    assert compiler().matcher(source) is matcher
    assert compiler().matcher(source) is not matcher


def test_a_matcher_that_is_in_somebodys_hands_is_dropped(guides: MaskWorkers) -> None:
    source = source_of(Regex("[a-z]{6} nobody else has it"))
    guide = started_guide(guides, source)
    matcher = guide._matcher
    guides.advance(guide, ids_of("a")[0])
    guide.close()
    assert compiler().matcher(source) is not matcher
    guides.look_ahead()  # nothing is made for a reply that has ended


class PanicException(BaseException):
    """What a library in Rust raises is of this kind."""


@pytest.mark.parametrize("defect", [RuntimeError, PanicException])
def test_a_defect_ends_one_reply_and_the_others_masks_are_made(
    defect: type[BaseException], guides: MaskWorkers, caplog: pytest.LogCaptureFixture
) -> None:
    class Defective(Guide):
        def begin(self) -> None:
            raise defect("a defect")

    broken = Defective(compiler(), source_of(CITIES), EVERYTHING)
    with caplog.at_level(logging.CRITICAL):
        guides.begin(broken)
        other = started_guide(guides, CITIES)
        guides.wait([broken], LONG)
    assert other.blocked is None
    assert isinstance(broken.blocked, SpanFailure)
    assert broken.blocked.code is ErrorCode.INTERNAL
