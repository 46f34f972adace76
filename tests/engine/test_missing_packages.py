"""What an engine would drop in silence is named; what changes nothing is not."""

from __future__ import annotations

from typing import Any

import pytest

from engine.api import not_served
from engine.messages import ModelFacts, Params


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({}, None),
        ({"temperature": 0.7, "top_p": 0.9, "seed": 1}, None),
        ({"top_k": 0, "repetition_penalty": 1.0}, None),
        ({"top_k": 5}, "top_k"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"top_logprobs": 0}, "top_logprobs"),
    ],
)
def test_the_first_field_that_it_lacks_is_named(params: dict[str, Any], named: str | None) -> None:
    lacks = ("top_k", "repetition_penalty", "top_logprobs")
    facts = ModelFacts("model", 4096, Params(), "up", "upstream", 32, 0, lacks)
    assert not_served(Params(**params), facts) == named
    assert not_served(Params(**params), ModelFacts("model", 4096, Params(), "cpu", "float32", 32, 1)) is None
