"""What the engine's process inherits."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from engine import machine

ROOT = Path(__file__).resolve().parents[3]


def test_the_process_finds_the_packages_of_the_checkout_and_none_by_a_short_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    assert machine.module_environment()["PYTHONPATH"] == f"{ROOT}:/theirs"


def test_what_is_installed_stays_behind_the_standard_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(machine, "_ROOT", Path(sysconfig.get_paths()["purelib"]))
    assert "PYTHONPATH" not in machine.module_environment()
