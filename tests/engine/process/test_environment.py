"""What the engine's process inherits."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.process import supervision

ROOT = Path(__file__).resolve().parents[3]


def test_the_process_finds_the_packages_of_the_checkout_and_none_by_a_short_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    assert supervision._environment()["PYTHONPATH"] == f"{ROOT}:/theirs"


def test_what_is_installed_stays_behind_the_standard_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(supervision, "_ROOT", Path(supervision.get_paths()["purelib"]))
    assert "PYTHONPATH" not in supervision._environment()
