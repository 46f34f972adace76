"""What the engine's process says that it takes of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import machine
from engine.machine import most_memory, resident_bytes, with_usage
from engine.messages import EngineStatistics


def test_time_and_memory_are_added_to_what_was_counted() -> None:
    reported = with_usage(EngineStatistics(steps=7), lambda: (30, 100))
    assert reported.steps == 7
    assert reported.cpu_seconds > 0
    assert reported.resident_bytes > 1 << 20
    assert (reported.device_used_bytes, reported.device_total_bytes) == (70, 100)


def test_a_processor_has_no_memory_of_its_own() -> None:
    reported = with_usage(EngineStatistics())
    assert reported.device_used_bytes == reported.device_total_bytes == 0


def test_memory_is_told_where_there_is_no_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = resident_bytes()
    monkeypatch.setattr(machine, "_MEMORY", tmp_path / "nothing")
    assert resident_bytes() >= now // 2


def test_the_most_memory_is_told_in_plain_words() -> None:
    reported = most_memory(taken=400_000_000, kv=268_435_456, kv_tokens=262_144, working=120_000_000)
    assert reported == (
        "at most about 788 MB: 400 MB with weights and libraries, 268 MB for keys and values of 262,144 tokens, "
        "120 MB to work with"
    )
