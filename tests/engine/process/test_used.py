"""What the engine's process says that it takes of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.messages import EngineStatistics
from engine.process import used
from engine.process.used import Used, resident_bytes


def test_time_and_memory_are_added_to_what_was_counted() -> None:
    told = Used(lambda: (30, 100))(EngineStatistics(steps=7))
    assert told.steps == 7
    assert told.cpu_seconds > 0
    assert told.resident_bytes > 1 << 20
    assert (told.device_used_bytes, told.device_total_bytes) == (70, 100)


def test_a_processor_has_no_memory_of_its_own() -> None:
    told = Used()(EngineStatistics())
    assert told.device_used_bytes == told.device_total_bytes == 0


def test_memory_is_told_where_there_is_no_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = resident_bytes()
    monkeypatch.setattr(used, "_MEMORY", tmp_path / "nothing")
    assert resident_bytes() >= now // 2
