"""Which value wins: the request's, the model's, or transformers'."""

from __future__ import annotations

import pytest

from engine.messages import REPLY_TOKENS, Params
from engine.text.reply_text import resolve_sampling


def test_the_request_wins_over_the_model() -> None:
    requested = Params(
        max_new_tokens=5, do_sample=True, temperature=0.5, top_p=0.4, top_k=3, seed=1, max_time_s=2.0
    )
    model = Params(
        max_new_tokens=9, do_sample=False, temperature=0.9, top_p=0.8, top_k=7, repetition_penalty=1.2
    )
    got = resolve_sampling(requested, model)
    assert (got.max_new_tokens, got.do_sample, got.temperature, got.top_p, got.top_k) == (
        5,
        True,
        0.5,
        0.4,
        3,
    )
    assert (got.repetition_penalty, got.seed, got.max_time_s) == (1.2, 1, 2.0)


def test_where_nobody_says_anything_transformers_does() -> None:
    got = resolve_sampling(Params(), Params())
    assert (got.max_new_tokens, got.do_sample, got.temperature) == (REPLY_TOKENS, False, 1.0)
    assert (got.top_p, got.top_k, got.repetition_penalty, got.seed) == (1.0, 50, 1.0, None)


def test_zero_is_a_value_and_not_a_gap() -> None:
    assert resolve_sampling(Params(top_k=0), Params(top_k=50)).top_k == 0


@pytest.mark.parametrize(
    ("requested", "model", "samples"),
    [
        (Params(), Params(do_sample=True), True),
        (Params(temperature=0.0), Params(do_sample=True), False),
        (Params(), Params(do_sample=True, temperature=0.0), False),
        (Params(temperature=0.7), Params(do_sample=False), True),
        (Params(temperature=0.7, do_sample=False), Params(do_sample=True), False),
    ],
)
def test_a_temperature_asks_for_sampling_and_zero_for_none(
    requested: Params, model: Params, *, samples: bool
) -> None:
    assert resolve_sampling(requested, model).do_sample is samples


def test_further_ways_of_sampling_are_off_unless_somebody_asks() -> None:
    plain = resolve_sampling(Params(), Params())
    assert (plain.min_p, plain.presence_penalty, plain.frequency_penalty) == (0.0, 0.0, 0.0)
    assert (plain.logit_bias, plain.min_tokens, plain.ignore_eos) == ((), 0, False)
    requested = Params(min_p=0.1, logit_bias=((3, 1.0),), min_tokens=2, ignore_eos=True)
    got = resolve_sampling(requested, Params(min_p=0.2, presence_penalty=0.5))
    assert (got.min_p, got.presence_penalty) == (0.1, 0.5)
    assert (got.logit_bias, got.min_tokens, got.ignore_eos) == (((3, 1.0),), 2, True)
