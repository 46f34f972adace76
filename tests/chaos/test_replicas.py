"""The bad days of several replicas and their store, a little of each; `make chaos` has all of them, with their figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.chaos import (
    failover,
    kills,
    network,
    old_store,
    out_of_memory,
    partitions,
    power,
    replicas,
    spoiled,
    walks,
)
from tests.chaos.report import Finding
from tests.chaos.stage import QUICK, Stage


@pytest.mark.parametrize(
    "measure",
    [
        *(network.measure, replicas.measure, partitions.measure),
        *(
            failover.cluster,
            failover.cluster_planned,
            failover.sentinel,
            failover.sentinel_planned,
            out_of_memory.measure,
            kills.measure,
            power.measure,
            walks.measure,
        ),
        *(spoiled.eviction, spoiled.poison, old_store.measure),
    ],
    ids=[
        *("network", "replicas", "partitions", "cluster", "cluster-planned", "sentinel", "sentinel-planned"),
        *("out-of-memory", "kills"),
        *("power-failures", "walks"),
        *("eviction", "poisoned-journal", "store-0.1.0"),
    ],
)
def test_whatever_dies_or_stalls_nothing_is_lost_or_doubled(
    measure: Callable[[Stage], Sequence[Finding]], tmp_path: Path
) -> None:
    found = measure(Stage(scale=QUICK, folder=tmp_path, seed=1, say=print))
    assert [one.label for one in found if one.value is None] == []
    wrong = [f"{one.label}: {one.note}" for one in found if one.is_about_faults and not one.met]
    assert wrong == []
