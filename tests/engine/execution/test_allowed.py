"""Where a grammar leaves few tokens, those alone are looked at: the reply is the same, and so are its neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import Tensor

from engine.execution.guide import FEW, Guide, TokenMasks, _few, mask_of
from engine.execution.sampler import WIDTHS, WORTH_IT, AllowedTokens, Sampler, SamplerState, width_of
from engine.messages import JsonObject
from engine.text.reply_text import SamplingParams
from tests.engine.constrained import compiler, source_of
from tests.engine.tiny_models import GREEDY

VOCABULARY = 16 * FEW
ids = st.integers(0, VOCABULARY - 1)


def guide(tokens: Sequence[int]) -> Guide:
    """A guide that allows these tokens."""
    mask = mask_of(tokens, VOCABULARY)
    made = Guide(compiler(), source_of(JsonObject()), TokenMasks(mask, mask))
    made.mask, made.few = mask, _few(mask)
    return made


def sampler(samplings: Sequence[SamplingParams], guides: Sequence[Guide]) -> Sampler:
    made = Sampler(slots=len(guides), vocabulary=VOCABULARY, device=torch.device("cpu"))
    for slot, (sampling, one) in enumerate(zip(samplings, guides, strict=True)):
        made.join(slot, SamplerState.of(sampling, one), [])
    return made


def draws(
    scores: Tensor, samplings: Sequence[SamplingParams], guides: Sequence[Guide], times: int = 5
) -> list[list[int | None]]:
    made = sampler(samplings, guides)
    return [made.sample(scores, range(len(guides))) for _ in range(times)]


def sampling_variants(seed: int) -> list[SamplingParams]:
    return [
        GREEDY,
        replace(GREEDY, do_sample=True, seed=seed),
        replace(GREEDY, do_sample=True, seed=seed, top_p=0.8, temperature=1.4),
        replace(GREEDY, do_sample=True, seed=seed, top_k=3),
        replace(GREEDY, do_sample=True, seed=seed, min_p=0.2),
    ]


@given(st.sets(ids, min_size=1, max_size=FEW + 5))
def test_few_tokens_are_listed_as_the_mask_has_them(tokens: set[int]) -> None:
    listed = _few(mask_of(tokens, VOCABULARY))
    assert listed is None if len(tokens) > FEW else listed is not None and listed.tolist() == sorted(tokens)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sets(ids, min_size=1, max_size=200), min_size=5, max_size=5), st.integers(0, 99))
def test_what_is_drawn_of_few_tokens_is_what_would_be_drawn_of_the_whole_vocabulary(
    tokens: list[set[int]], seed: int
) -> None:
    scores = torch.randn(5, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 4
    guides = [guide(sorted(some)) for some in tokens]
    assert all(width_of(one, VOCABULARY) for one in guides)
    few = draws(scores, sampling_variants(seed), guides)
    for one in guides:
        one.few = None
    assert draws(scores, sampling_variants(seed), guides) == few


def test_a_seed_gives_the_same_alone_and_beside_rows_of_other_widths() -> None:
    scores = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(1))
    sampling = replace(GREEDY, do_sample=True, seed=7)
    guides = [guide(range(0, 3000, 30)), guide(range(2)), guide(range(0, VOCABULARY, 2))]
    together = draws(scores, [sampling] * 3, guides)
    for row in range(3):
        alone = draws(scores[row : row + 1], [sampling], guides[row : row + 1])
        assert alone == [[tokens[row]] for tokens in together]


def test_a_row_that_also_changes_its_logits_is_looked_at_whole() -> None:
    scores = torch.zeros(1, VOCABULARY)
    biased = replace(GREEDY, logit_bias=((7, 5.0),))
    assert draws(scores, [biased], [guide([3, 7])], times=1) == [[7]]


def test_scores_that_are_not_numbers_give_no_token() -> None:
    scores = torch.full((1, VOCABULARY), torch.nan)
    assert draws(scores, [sampling_variants(0)[0]], [guide([3])], times=1) == [[None]]
    assert draws(scores, [sampling_variants(0)[1]], [guide([3])], times=1) == [[None]]


@pytest.mark.parametrize(("tokens", "width"), [(1, 16), (16, 16), (17, 128), (129, FEW), (FEW + 1, 0)])
def test_a_row_is_as_wide_as_its_own_tokens_need(tokens: int, width: int) -> None:
    assert width_of(guide(range(tokens)), VOCABULARY) == width


def test_a_small_vocabulary_is_looked_at_whole() -> None:
    assert width_of(guide(range(100)), 128 * WORTH_IT - 1) == 0
    assert WIDTHS[-1] == FEW


def test_rows_are_filled_with_what_is_never_drawn() -> None:
    of = AllowedTokens.by([guide([5, 9])], 16)
    assert of.of(torch.zeros(2, VOCABULARY), [1]).isfinite().sum() == 2
    assert [of.token(0, place) for place in (0, 1, None)] == [5, 9, None]
