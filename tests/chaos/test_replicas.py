"""The bad days of several replicas and their store, a little of each; `make chaos` has all of them, with their figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.chaos import (
    corrupt_store,
    failover,
    kills,
    network,
    out_of_memory,
    partitions,
    power_loss,
    random_walks,
    replicas,
)
from tests.chaos.report import Finding
from tests.chaos.scenario import QUICK, Scenario


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
            power_loss.measure,
            random_walks.measure,
        ),
        *(corrupt_store.eviction, corrupt_store.poison),
    ],
    ids=[
        *("network", "replicas", "partitions", "cluster", "cluster-planned", "sentinel", "sentinel-planned"),
        *("out-of-memory", "kills"),
        *("power-failures", "walks"),
        *("eviction", "poisoned-journal"),
    ],
)
def test_whatever_dies_or_stalls_nothing_is_lost_or_doubled(
    measure: Callable[[Scenario], Sequence[Finding]], tmp_path: Path
) -> None:
    found = measure(Scenario(scale=QUICK, folder=tmp_path, seed=1, log=print))
    assert [one.label for one in found if one.value is None] == []
    wrong = [f"{one.label}: {one.note}" for one in found if one.is_about_faults and not one.met]
    assert wrong == []
