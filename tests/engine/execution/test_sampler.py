"""Tokens are drawn from what transformers' own processors leave, with the reply's own random numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.execution.sampler import LONGEST_SHORTLIST, Sampler, SamplerState, likeliest
from engine.text.reply_text import SamplingParams
from tests.engine.tiny_models import GREEDY, greedy

VOCABULARY = 3000
CPU = torch.device("cpu")


def sampling(**values: float | None) -> SamplingParams:
    return greedy(**{"do_sample": True, "seed": 5, **values})


def logits(rows: int, *, seed: int = 0, spread: float = 3.0) -> Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * spread


def processors(chosen: SamplingParams) -> LogitsProcessorList:
    steps = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(chosen.repetition_penalty)])
    steps.append(TemperatureLogitsWarper(chosen.temperature))
    if chosen.top_k:
        steps.append(TopKLogitsWarper(chosen.top_k))
    if chosen.top_p < 1:
        steps.append(TopPLogitsWarper(chosen.top_p))
    if chosen.min_p:
        steps.append(MinPLogitsWarper(chosen.min_p))
    return steps


def probabilities(scores: Tensor, chosen: SamplingParams, seen: list[int]) -> Tensor:
    """What transformers would draw from, (vocabulary,)."""
    return processors(chosen)(torch.tensor([seen]), scores.unsqueeze(0)).double().softmax(-1)[0]


def sampler_for(*ways: SamplingParams, seen: list[int] | None = None) -> Sampler:
    sampler = Sampler(slots=len(ways), vocabulary=VOCABULARY, device=CPU)
    for slot, way in enumerate(ways):
        sampler.join(slot, SamplerState.of(way), seen or [1])
    return sampler


def sample(sampler: Sampler, scores: Tensor, slots: Sequence[int]) -> list[int | None]:
    """Choose a token for each row; None for a row that holds no number."""
    return [None if token < 0 else token for token in sampler.choose(scores, slots).tolist()]


WAYS = st.builds(
    sampling,
    temperature=st.sampled_from([0.2, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 5, 50, 200, LONGEST_SHORTLIST + 5, 5 * VOCABULARY]),
    top_p=st.sampled_from([0.01, 0.5, 0.9, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    seed=st.integers(0, 1000),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(WAYS, min_size=1, max_size=4), st.integers(0, 5), st.sampled_from([0.5, 3.0]))
def test_each_row_is_drawn_from_what_transformers_leaves_of_it(
    ways: list[SamplingParams], seed: int, spread: float
) -> None:
    seen, scores = [3, 4, 99], logits(len(ways), seed=seed, spread=spread)
    before = scores.clone()
    tokens = sample(sampler_for(*ways, seen=seen), scores, range(len(ways)))
    for row, way in enumerate(ways):
        # Sums of float32 differ in their order: a token may be in one nucleus and just outside of the other.
        wider = msgspec.structs.replace(way, top_p=min(1.0, way.top_p + 1e-5), min_p=way.min_p * (1 - 1e-5))
        assert probabilities(scores[row], wider, seen)[tokens[row]] > 0
    assert torch.equal(scores, before), "logits stay as they are"


@pytest.mark.parametrize(
    "way",
    [
        sampling(temperature=0.8),
        sampling(temperature=0.8, top_p=0.9),
        sampling(temperature=0.8, top_p=0.5),
        sampling(top_k=4),
        sampling(top_k=4, top_p=0.7),
        sampling(top_k=8),
        sampling(top_k=8, top_p=0.7),
        sampling(top_p=0.8, repetition_penalty=1.5),
        sampling(min_p=0.1),
        sampling(min_p=0.2, top_p=0.7),
        sampling(top_k=4, min_p=0.3),
        sampling(top_k=8, min_p=0.1),
    ],
)
def test_tokens_have_the_frequencies_that_transformers_gives_them(
    way: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pearson's test over 4,000 replies with seeds that are fixed: others would fail once in 1,000 times."""
    monkeypatch.setattr("engine.execution.sampler.LONGEST_SHORTLIST", 5)
    scores, replies = logits(1, spread=1.5)[0, :12], 4000
    sampler = Sampler(slots=replies, vocabulary=12, device=CPU)
    for slot in range(replies):
        sampler.join(slot, SamplerState.of(msgspec.structs.replace(way, seed=slot)), [1])
    drawn = torch.tensor(sample(sampler, scores.repeat(replies, 1), range(replies)))
    counted, expected = drawn.bincount(minlength=12), probabilities(scores, way, [1]) * replies
    possible = expected > 0
    assert counted[~possible].sum() == 0
    deviation = ((counted - expected) ** 2 / expected)[possible].sum()
    chance = torch.special.gammaincc((possible.sum() - 1) / 2, deviation / 2)
    assert chance > 0.001


@settings(max_examples=20, deadline=None)
@given(st.lists(WAYS, min_size=2, max_size=4), st.integers(0, 5))
def test_a_seed_gives_the_same_tokens_alone_and_in_a_batch(ways: list[SamplingParams], seed: int) -> None:
    steps = [logits(len(ways), seed=10 * seed + step) for step in range(3)]
    together = sampler_for(*ways)
    batched = [sample(together, scores, range(len(ways))) for scores in steps]
    for row, way in enumerate(ways):
        alone = sampler_for(way)
        assert [sample(alone, scores[row : row + 1], [0])[0] for scores in steps] == [b[row] for b in batched]


@pytest.mark.parametrize(
    "way", [GREEDY, sampling(temperature=0.0), sampling(temperature=1e-9), sampling(top_k=1)]
)
def test_greedy_takes_the_likeliest(way: SamplingParams) -> None:
    scores = logits(2)
    assert sample(sampler_for(way, sampling()), scores, [0, 1])[0] == scores[0].argmax()
    assert sample(sampler_for(way), scores[:1], [0]) == [scores[0].argmax()]


@pytest.mark.parametrize("way", [GREEDY, sampling(), sampling(top_k=20)])
def test_a_row_that_is_no_number_gives_none_and_its_neighbours_a_token(way: SamplingParams) -> None:
    scores = logits(3)
    scores[1, 7] = torch.nan
    tokens = sample(sampler_for(way, way, way), scores, [0, 1, 2])
    assert tokens[1] is None
    assert None not in (tokens[0], tokens[2])


def test_a_repetition_penalty_counts_what_was_drawn_and_is_not_inherited_by_the_next_reply() -> None:
    way = greedy(repetition_penalty=10.0)
    sampler = sampler_for(way, seen=[0])
    scores = torch.zeros(1, VOCABULARY)
    scores[0, :4] = torch.tensor([9.0, 3.0, 2.0, 1.0])
    assert [sample(sampler, scores, [0])[0] for _ in range(3)] == [1, 2, 3]
    sampler.join(0, SamplerState.of(way), [1])
    assert sample(sampler, scores, [0]) == [0]


def test_a_seed_repeats_and_none_does_not() -> None:
    scores = logits(1, spread=0.1)

    def twenty(way: SamplingParams) -> list[int | None]:
        sampler = sampler_for(way)
        return [sample(sampler, scores, [0])[0] for _ in range(20)]

    assert twenty(sampling(seed=3)) == twenty(sampling(seed=3))
    assert twenty(sampling(seed=None)) != twenty(sampling(seed=None))


def test_rows_come_in_the_order_of_the_slots_that_are_named() -> None:
    scores = logits(2)
    sampler = sampler_for(GREEDY, GREEDY, GREEDY)
    assert sample(sampler, scores, [0, 2]) == scores.argmax(-1).tolist()
    assert sample(sampler, scores.flip(0), [1, 2]) == scores.flip(0).argmax(-1).tolist()


def test_rows_that_are_more_than_a_cache_holds_are_drawn_as_they_are_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.execution.sampler.CACHED_SCORES", 2 * VOCABULARY)
    scores, ways = logits(5), [sampling(top_p=0.9, seed=seed) for seed in range(5)]
    together = sample(sampler_for(*ways), scores, range(5))
    alone = [sample(sampler_for(way), scores[row : row + 1], [0])[0] for row, way in enumerate(ways)]
    assert together == alone


ENDS = (7, 9)


def reply_of(sampler: Sampler, scores: Tensor, tokens: int) -> list[int | None]:
    """What one reply gets of the same logits again and again."""
    return [sample(sampler, scores, [0])[0] for _ in range(tokens)]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 6), st.integers(1, 8), st.integers(0, 3))
def test_min_tokens_keep_ends_away_as_in_transformers(least: int, tokens: int, seed: int) -> None:
    """Token for token: the likeliest are ends, as long as they may come."""
    scores = logits(1, seed=seed)
    scores[0, list(ENDS)] = 50.0
    way = greedy(min_tokens=least)
    sampler = Sampler(slots=1, vocabulary=VOCABULARY, device=CPU, ends=ENDS)
    sampler.join(0, SamplerState.of(way), [1, 2, 3])
    written: list[int] = []
    for token in reply_of(sampler, scores, tokens):
        processed = MinLengthLogitsProcessor(least, [*ENDS])(
            torch.tensor([written], dtype=torch.int64), scores
        )
        assert token == processed.argmax()
        written.append(int(processed.argmax()))


@settings(max_examples=60, deadline=None)
@given(
    st.floats(-2, 2, width=32),
    st.floats(-2, 2, width=32),
    st.lists(st.integers(0, 4), max_size=6),
    st.integers(0, 50),
)
def test_penalties_of_presence_and_frequency_are_those_of_openai(
    presence: float, frequency: float, before: list[int], seed: int
) -> None:
    """A token's logit less its count times the one, less the other where it came at all; the prompt does not count."""
    way = greedy(presence_penalty=presence, frequency_penalty=frequency)
    scores = torch.full((1, VOCABULARY), -50.0)
    scores[0, :5] = torch.randn(5, generator=torch.Generator().manual_seed(seed))
    sampler = Sampler(slots=1, vocabulary=VOCABULARY, device=CPU)
    sampler.join(0, SamplerState.of(way), [0, 0, 1, *before], generated=len(before))
    counts = torch.tensor(before, dtype=torch.int64).bincount(minlength=VOCABULARY)
    for _ in range(4):
        (token,) = sample(sampler, scores, [0])
        expected = scores[0] - counts * frequency - (counts > 0) * presence
        assert token is not None
        assert expected[token] >= expected.max() - 1e-5
        counts[token] += 1


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.integers(0, VOCABULARY - 1), st.floats(-100, 100, width=32), max_size=5),
        min_size=1,
        max_size=4,
    )
)
def test_a_bias_is_added_to_its_tokens_logits_and_to_nobody_elses(biases: list[dict[int, float]]) -> None:
    scores = logits(len(biases))
    ways = [greedy(logit_bias=tuple(bias.items())) for bias in biases]
    expected = scores.clone()
    for row, bias in enumerate(biases):
        for token, value in bias.items():
            expected[row, token] += value
    assert sample(sampler_for(*ways), scores, range(len(ways))) == expected.argmax(-1).tolist()


CHANGES = {
    "a bias": {"logit_bias": ((5, 3.0), (0, -100.0))},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": -0.5},
    "min_p": {"min_p": 0.05},
    "min_tokens": {"min_tokens": 2},
    "a penalty": {"repetition_penalty": 1.4},
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("top_k", [0, 20])
def test_a_plain_row_draws_the_same_beside_one_that_changes_its_logits(change: str, top_k: int) -> None:
    plain = [sampling(top_k=top_k, top_p=0.9, seed=seed) for seed in range(3)]
    odd = sampling(top_k=top_k, top_p=0.9, seed=9, **CHANGES[change])  # type: ignore[arg-type]
    beside, alone = Sampler(slots=4, vocabulary=VOCABULARY, device=CPU, ends=ENDS), sampler_for(*plain)
    for slot, way in enumerate([plain[0], odd, *plain[1:]]):
        beside.join(slot, SamplerState.of(way), [1])
    for step in range(4):
        scores = logits(4, seed=step)
        tokens = sample(beside, scores, range(4))
        assert [tokens[0], *tokens[2:]] == sample(alone, scores[[0, 2, 3]], range(3))


def test_a_reply_that_is_taken_up_again_counts_what_it_had() -> None:
    way = greedy(frequency_penalty=1.0, min_tokens=3)
    scores = torch.full((1, VOCABULARY), -50.0)
    scores[0, [1, 2, *ENDS]] = torch.tensor([3.5, 3.0, 20.0, 19.0])
    sampler = Sampler(slots=2, vocabulary=VOCABULARY, device=CPU, ends=ENDS)
    sampler.join(0, SamplerState.of(way), [1, 1])
    first = reply_of(sampler, scores, 2)
    assert first == [1, 2]
    sampler.join(1, SamplerState.of(way), [1, 1, 1, 2], generated=2)
    assert [sample(sampler, scores, [1])[0] for _ in range(2)] == [1, ENDS[0]]


SCORES = st.sampled_from([-math.inf, -1.5, 0.0, 2.0, 2.0, 3.25, math.inf, math.nan])


@given(st.integers(1, 40).flatmap(lambda width: st.lists(st.lists(SCORES, min_size=width, max_size=width))))
def test_the_first_of_equal_scores_counts_and_a_row_that_is_no_number_shows_it(
    rows: list[list[float]],
) -> None:
    scores = torch.tensor(rows).reshape(len(rows), len(rows[0]) if rows else 1)
    best, places = likeliest(scores)
    wanted, first = scores.max(dim=-1, keepdim=True)
    assert torch.equal(best.nan_to_num(9.0), wanted.nan_to_num(9.0))
    assert torch.equal(places[~best.isnan()], first[~best.isnan()])


def test_scores_of_other_kinds_are_torch_s() -> None:
    scores = torch.tensor([[1.0, 4.0, 4.0], [2.0, 0.0, 1.0]], dtype=torch.bfloat16)
    assert [tensor.tolist() for tensor in likeliest(scores)] == [[[4.0], [2.0]], [[1], [0]]]
