"""What a `send` may ask for: within the range it is passed on, outside it is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from connections.protocol import frames, params
from connections.protocol.errors import BadParams
from engine.messages import Params
from sessions.turn.message_request import GenerationConfig


def generation(**values: Any) -> GenerationConfig:
    return params.generation(frames.Params(**values), max_new_tokens=4096)


@pytest.mark.parametrize(
    "values",
    [
        {"max_new_tokens": 1},
        {"max_new_tokens": 4096},
        {"top_p": 1.0},
        {"top_k": 0},
        {"repetition_penalty": 2.0},
        {"seed": 2**63 - 1},
        {"max_time_s": 0.001},
        {"stop": ("x" * 256,) * 8},
        {"do_sample": True},
    ],
)
def test_the_ends_of_a_range_are_in_it(values: dict[str, Any]) -> None:
    assert generation(**values).params == Params(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"max_new_tokens": 0},
        {"max_new_tokens": -2},
        {"temperature": -1},
        {"temperature": 2.01},
        {"top_p": 0},
        {"top_p": 1.01},
        {"top_k": -1},
        {"top_k": 2**63},
        {"repetition_penalty": 0},
        {"repetition_penalty": 2.5},
        {"seed": -1},
        {"seed": 2**64},
        {"max_time_s": 0},
        {"stop": ("",)},
        {"stop": ("x" * 257,)},
        {"stop": ("x",) * 9},
        {"system": "x" * 16_001},
    ],
)
def test_out_of_range_is_refused_by_name(values: dict[str, Any]) -> None:
    (field,) = values
    with pytest.raises(BadParams, match=f"^`params.{field}` must "):
        generation(**values)


@pytest.mark.parametrize(("length", "meant"), [(4097, 4096), (10**9, 4096), (5, 5), (-1, None), (None, None)])
def test_a_length_is_at_most_the_window(length: int | None, meant: int | None) -> None:
    assert generation(max_new_tokens=length).params.max_new_tokens == meant


def test_temperature_zero_is_greedy() -> None:
    assert generation(temperature=0, do_sample=True).params == Params(do_sample=False)


@pytest.mark.parametrize(("do_sample", "samples"), [(None, True), (True, True), (False, False)])
def test_a_temperature_samples_unless_told_otherwise(*, do_sample: bool | None, samples: bool) -> None:
    result = generation(temperature=0.7, do_sample=do_sample).params
    assert result == Params(temperature=0.7, do_sample=samples)


@pytest.mark.parametrize("system", [None, "", "Be brief."])
def test_the_system_prompt_is_passed_on_as_it_is(system: str | None) -> None:
    assert generation(system=system).system == system
