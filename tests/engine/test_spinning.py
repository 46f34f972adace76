"""Compute threads spin for a moment, unless whoever owns the machine has chosen."""

from __future__ import annotations

import pytest

from engine import spinning


def test_they_spin_for_a_moment() -> None:
    assert spinning.settings({}) == {"GOMP_SPINCOUNT": "3000"}


@pytest.mark.parametrize("chosen", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_who_has_chosen_is_left_alone(chosen: str) -> None:
    assert spinning.settings({chosen: "any"}) == {}
