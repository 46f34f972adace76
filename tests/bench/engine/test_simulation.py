"""What the simulated scheduler must show, whatever the model of the device is."""

from __future__ import annotations

from tests.bench.engine.simulation import LAYERS, PER_LAYER, PER_STEP, simulate


def test_all_streams_are_held_and_launches_do_not_grow_with_their_lengths() -> None:
    mixed, equal = simulate(8, (20, 900), new_tokens=20), simulate(8, (400, 400), new_tokens=20)
    assert mixed.most_held == equal.most_held == 8
    assert mixed.most_launches == equal.most_launches == (PER_LAYER + 1) * LAYERS + PER_STEP
    assert mixed.recorded > 0
