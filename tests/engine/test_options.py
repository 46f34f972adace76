"""Engines share what their machine has."""

from __future__ import annotations

import msgspec
import pytest

from engine.machine import EngineOptions, shared_out

ONE = EngineOptions(model="some/model", dtype="float32", max_batch=8)


def placed_on(devices: list[str], *, cores: int) -> tuple[EngineOptions, ...]:
    """One engine on each of these devices."""
    return shared_out([msgspec.structs.replace(ONE, device=device) for device in devices], cores=cores)


def test_one_engine_is_started_with_what_was_asked_for() -> None:
    assert placed_on(["auto"], cores=8) == (ONE,)


def test_devices_get_an_engine_each_and_all_of_their_memory() -> None:
    placed = placed_on(["cuda:0", "cuda:1"], cores=8)
    assert [(one.device, one.memory_share, one.threads) for one in placed] == [
        ("cuda:0", 1.0, None),
        ("cuda:1", 1.0, None),
    ]
    assert {(one.model, one.dtype, one.max_batch) for one in placed} == {("some/model", "float32", 8)}


@pytest.mark.parametrize(("each", "cores", "threads"), [(2, 2, 1), (2, 9, 4), (3, 2, 1)])
def test_engines_on_the_cpu_share_its_cores_and_memory(each: int, cores: int, threads: int) -> None:
    placed = placed_on(["cpu"] * each, cores=cores)
    assert [(one.device, one.memory_share, one.threads) for one in placed] == [
        ("cpu", 1 / each, threads)
    ] * each


def test_an_engine_alone_on_the_cpu_leaves_its_threads_to_pytorch() -> None:
    placed = placed_on(["cuda:0", "cpu"], cores=8)
    assert [one.threads for one in placed] == [None, None]


def test_a_device_that_is_named_twice_is_shared_as_well() -> None:
    placed = placed_on(["cuda:0", "cuda:0"], cores=8)
    assert [one.memory_share for one in placed] == [0.5, 0.5]
