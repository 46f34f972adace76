"""The systemd unit, as systemd's own tools read it. No systemd has run it here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ANALYZE = shutil.which("systemd-analyze")
INSTALLED = "/opt/midstream/bin/midstream"
MOST_EXPOSED = 25
"""In tenths, of systemd's own measure from 0 (safe) to 100."""

pytestmark = pytest.mark.skipif(
    ANALYZE is None, reason="systemd-analyze is NOT INSTALLED: the unit goes untested (apt install systemd)"
)


@pytest.fixture
def unit(deploy: Path, tmp_path: Path) -> Path:
    """The unit, over a program that is there."""
    shipped = (deploy / "midstream.service").read_text()
    assert f"ExecStart={INSTALLED} serve\n" in shipped
    file = tmp_path / "midstream.service"
    file.write_text(shipped.replace(f"ExecStart={INSTALLED}", f"ExecStart={shutil.which('true')}"))
    return file


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    assert ANALYZE is not None
    return subprocess.run([ANALYZE, *arguments], capture_output=True, text=True, check=False)


def test_systemd_finds_nothing_in_the_unit(unit: Path) -> None:
    checked = analyze("verify", unit)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_systemd_would_find_a_misspelt_option(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("TimeoutStopSec=", "TimeoutStopSecs="))
    assert "'TimeoutStopSecs' in section" in analyze("verify", unit).stderr


def test_the_unit_leaves_the_service_little_that_it_does_not_need(unit: Path) -> None:
    checked = analyze("security", "--offline=true", f"--threshold={MOST_EXPOSED}", unit)
    assert checked.returncode == 0, checked.stdout[-200:]
