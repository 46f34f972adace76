"""Tokens are drawn from what transformers' own processors leave, with the reply's own random numbers."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.prepared import Sampling
from engine.sampler import LONGEST_SHORTLIST, Chooser, Sampler
from tests.engine.tiny_models import GREEDY

VOCABULARY = 3000
CPU = torch.device("cpu")


def sampling(**values: float | None) -> Sampling:
    return msgspec.structs.replace(GREEDY, **{"do_sample": True, "seed": 5, **values})


def logits(rows: int, *, seed: int = 0, spread: float = 3.0) -> Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * spread


def processors(chosen: Sampling) -> LogitsProcessorList:
    steps = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(chosen.repetition_penalty)])
    steps.append(TemperatureLogitsWarper(chosen.temperature))
    if chosen.top_k:
        steps.append(TopKLogitsWarper(chosen.top_k))
    if chosen.top_p < 1:
        steps.append(TopPLogitsWarper(chosen.top_p))
    return steps


def probabilities(scores: Tensor, chosen: Sampling, seen: list[int]) -> Tensor:
    """What transformers would draw from, (vocabulary,)."""
    return processors(chosen)(torch.tensor([seen]), scores.unsqueeze(0)).double().softmax(-1)[0]


def drawn_by_hand(scores: Tensor, chosen: Sampling, seen: list[int], level: float) -> set[int]:
    """The tokens at that level of the cumulated probability, likeliest first; two where it is on a border."""
    likeliest, ids = probabilities(scores, chosen, seen).sort(descending=True, stable=True)
    cumulated = likeliest.cumsum(-1)
    places = [int((cumulated <= level + slack).sum()) for slack in (-1e-5, 1e-5)]
    last = int((likeliest > 0).sum()) - 1
    return {int(ids[min(place, last)]) for place in range(places[0], places[1] + 1)}


def sampler_for(*ways: Sampling, seen: list[int] | None = None) -> Sampler:
    sampler = Sampler(slots=len(ways), vocabulary=VOCABULARY, device=CPU)
    for slot, way in enumerate(ways):
        sampler.join(slot, Chooser.of(way), seen or [1])
    return sampler


WAYS = st.builds(
    sampling,
    temperature=st.sampled_from([0.2, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 5, 50, 200, LONGEST_SHORTLIST + 5, 5 * VOCABULARY]),
    top_p=st.sampled_from([0.01, 0.5, 0.9, 0.95, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    seed=st.integers(0, 1000),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(WAYS, min_size=1, max_size=4), st.integers(0, 5), st.sampled_from([0.5, 3.0]))
def test_each_row_is_drawn_from_what_transformers_leaves_of_it(
    ways: list[Sampling], seed: int, spread: float
) -> None:
    seen, scores = [3, 4, 99], logits(len(ways), seed=seed, spread=spread)
    tokens = sampler_for(*ways, seen=seen).sample(scores, range(len(ways)))
    for row, way in enumerate(ways):
        assert tokens[row] in drawn_by_hand(scores[row], way, seen, Random(way.seed).random())


def test_drawn_tokens_have_the_frequencies_of_their_probabilities() -> None:
    way = sampling(temperature=1.0, top_p=0.6)
    scores = logits(1)
    sampler = sampler_for(way)
    counts = torch.zeros(VOCABULARY)
    for _ in range(2000):
        (token,) = sampler.sample(scores, [0])
        counts[token] += 1
    assert (counts / 2000 - probabilities(scores[0], way, [1])).abs().max() < 0.05


@pytest.mark.parametrize(
    "way", [GREEDY, sampling(temperature=0.0), sampling(temperature=1e-9), sampling(top_k=1)]
)
def test_greedy_takes_the_likeliest(way: Sampling) -> None:
    scores = logits(2)
    assert sampler_for(way, sampling()).sample(scores, [0, 1])[0] == scores[0].argmax()
    assert sampler_for(way).sample(scores[:1], [0]) == [scores[0].argmax()]


def test_a_repetition_penalty_counts_what_was_drawn_since() -> None:
    way = msgspec.structs.replace(GREEDY, repetition_penalty=10.0)
    sampler = sampler_for(way, seen=[0])
    scores = torch.zeros(1, VOCABULARY)
    scores[0, :4] = torch.tensor([9.0, 3.0, 2.0, 1.0])
    assert [sampler.sample(scores, [0])[0] for _ in range(3)] == [1, 2, 3]


def test_a_new_reply_in_a_slot_does_not_inherit_its_penalties() -> None:
    way = msgspec.structs.replace(GREEDY, repetition_penalty=10.0)
    sampler = sampler_for(way, seen=[0])
    scores = torch.zeros(1, VOCABULARY)
    scores[0, :2] = torch.tensor([9.0, 3.0])
    assert sampler.sample(scores, [0]) == [1]
    sampler.join(0, Chooser.of(way), [1])
    assert sampler.sample(scores, [0]) == [0]


@pytest.mark.parametrize("way", [GREEDY, sampling(), sampling(top_k=20)])
def test_a_row_that_is_no_number_gives_none_and_its_neighbours_a_token(way: Sampling) -> None:
    scores = logits(3)
    scores[1, 7] = torch.nan
    tokens = sampler_for(way, way, way).sample(scores, [0, 1, 2])
    assert tokens[1] is None
    assert None not in (tokens[0], tokens[2])


def test_a_seed_repeats_and_none_does_not() -> None:
    scores = logits(1, spread=0.1)

    def twenty(way: Sampling) -> list[int | None]:
        sampler = sampler_for(way)
        return [sampler.sample(scores, [0])[0] for _ in range(20)]

    assert twenty(sampling(seed=3)) == twenty(sampling(seed=3))
    assert twenty(sampling(seed=None)) != twenty(sampling(seed=None))


def test_rows_come_in_the_order_of_the_slots_that_are_named() -> None:
    scores = logits(2)
    sampler = sampler_for(GREEDY, GREEDY, GREEDY)
    assert sampler.sample(scores, [0, 2]) == scores.argmax(-1).tolist()
    assert sampler.sample(scores.flip(0), [1, 2]) == scores.flip(0).argmax(-1).tolist()
