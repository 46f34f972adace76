"""What is free is read from the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.machine import free_by_meminfo, free_in_cgroup, free_memory


def test_free_memory_is_read_from_the_kernel() -> None:
    assert free_by_meminfo("MemTotal: 8 kB\nMemAvailable:    5 kB\n") == 5 * 1024
    assert free_by_meminfo("") is None
    assert (free_memory() or 1) > 0


@pytest.mark.parametrize(("limit", "free"), [("1000\n", 400), ("max\n", None), (None, None)])
def test_a_container_s_limit_counts(tmp_path: Path, limit: str | None, free: int | None) -> None:
    (tmp_path / "memory.current").write_text("600\n")
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
    assert free_in_cgroup(tmp_path) == free
