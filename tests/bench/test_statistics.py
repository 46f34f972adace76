"""Observations become the right figures, in every lab."""

from __future__ import annotations

import pytest

from tests.bench.engine.load import Observed as Loaded
from tests.bench.load_generator import Observed, Reply, Stop, figures
from tests.bench.report import percentile


def test_percentiles_are_linear_between_neighbours() -> None:
    assert (percentile([4, 1, 3, 2], 0.5), percentile(range(101), 0.99), percentile([], 0.5)) == (
        2.5,
        99,
        None,
    )


def test_tokens_count_from_the_first_prompt_to_the_last_end_and_gaps_within_a_reply() -> None:
    found = figures(Observed(replies=(Reply(0, 0, (0.25, 0.5), 3, 10), Reply(1, 1, (1.75, 2, 2.25), 5, 30))))
    assert found["tokens/s, all clients"] == found["tokens per text"] == 8
    assert (found["first token p50, ms"], found["between texts p99, ms"]) == (500, 250)
    assert found["tokens of the shortest reply"] == 10


def test_a_cancel_has_both_its_answers_and_the_worst_count_of_steps() -> None:
    stops = (Stop(0.001, 0.004, 0), Stop(0.003, 0.006, 1), Stop(0.002, 0.005, None))
    found = figures(Observed(stops=stops))
    assert found["cancel → cancelled p50, ms"] == pytest.approx(2)
    assert found["cancel → done p50, ms"] == pytest.approx(5)
    assert found["steps after a cancel, most"] == 1


def test_the_engines_tokens_count_from_the_request_to_the_last_token() -> None:
    assert Loaded(1.0, (2.0, 2.0, 3.0)).tokens_per_s == 1.5
    assert Loaded(1.0, ()).tokens_per_s == 0
