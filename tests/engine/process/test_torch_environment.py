"""What is told to the libraries below torch, unless whoever owns the machine has chosen."""

from __future__ import annotations

import pytest

from engine.machine import torch_settings


def test_threads_spin_for_a_moment_and_few_kernels_are_kept() -> None:
    assert torch_settings({}) == {
        "GOMP_SPINCOUNT": "3000",
        "LRU_CACHE_CAPACITY": "64",
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    }


@pytest.mark.parametrize("chosen", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_who_has_chosen_how_threads_wait_is_left_alone(chosen: str) -> None:
    assert "GOMP_SPINCOUNT" not in torch_settings({chosen: "any"})


@pytest.mark.parametrize("chosen", ["LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"])
def test_who_has_chosen_how_many_kernels_are_kept_is_left_alone(chosen: str) -> None:
    assert chosen not in torch_settings({chosen: "any"})
