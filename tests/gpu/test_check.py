"""The CUDA check itself: its stages on a CPU, and that each way of failing reaches the exit code."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.gpu.check import Stage, run

SCRIPT = Path(__file__).with_name("check.sh")
SUCCESS = ("true",)
FOREVER = ("sleep", "infinity")
UNEXPECTED = "from tests.gpu.results import expect; expect(False, '3 + 4 is 7, not 8')"


def checked(out: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the script; its temporary folder must be gone afterwards."""
    with tempfile.TemporaryDirectory() as scratch:  # the path of a socket is short, so not in `out`
        environment = os.environ | environ | {"OUT": str(out), "PYTHON": sys.executable, "TMPDIR": scratch}
        result = subprocess.run(
            ["bash", SCRIPT], env=environment, capture_output=True, text=True, check=False
        )
        assert list(Path(scratch).iterdir()) == []
    return result


@pytest.mark.timeout(1200)  # each stage has its own limit
def test_all_stages_succeed_on_a_cpu(tmp_path: Path) -> None:
    # More threads would spin for each other while other tests run.
    result = checked(tmp_path, DEVICE="cpu", BUDGET="1000", OMP_NUM_THREADS="1")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "3 of 3 stages succeeded" in result.stdout
    assert {"attention.json", "service.json", "engine.json", "summary.txt"} <= {
        path.name for path in tmp_path.iterdir()
    }


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"DEVICE": "cpu", "BUDGET": "0"}, "skipped: no time is left"),
        ({"DEVICE": "cpu", "STAGES": "atention"}, "STAGES names ['atention']"),
        ({"DEVICE": "cpu", "STAGES": ""}, "STAGES names []"),
    ],
)
def test_the_script_fails_where_a_stage_does_not_run(
    tmp_path: Path, environ: dict[str, str], reason: str
) -> None:
    result = checked(tmp_path, **environ)
    assert result.returncode != 0
    assert reason in result.stdout


@pytest.mark.parametrize(
    ("stage", "reason"),
    [
        (Stage("a", 60, ("sh", "-c", "exit 3")), "exit code 3"),
        (Stage("a", 60, ("sh", "-c", "kill -9 $$")), "exit code -9"),
        (Stage("a", 60, (sys.executable, "-c", UNEXPECTED)), "WRONG in 1 lines"),
        (Stage("a", 0.1, FOREVER), "not finished within 0.1 s"),
    ],
)
def test_a_stage_that_fails_fails_the_check_after_the_others_ran(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stage: Stage, reason: str
) -> None:
    assert run([stage, Stage("b", 60, SUCCESS)], 100, tmp_path) == 1
    printed = capsys.readouterr().out
    assert f"FAILED a: {reason}" in printed
    assert "== b: ok" in printed


def test_no_process_outlives_its_stage(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert run([Stage("a", 60, ("sh", "-c", f"sleep infinity 3>{pipe} &"))], 100, tmp_path) == 0
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""  # all writers are gone
    os.close(reader)


def test_the_check_of_a_gpu_installs_nothing(tmp_path: Path) -> None:
    planned = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "check-gpu", f"VENV={tmp_path}"],
        cwd=SCRIPT.parents[2], capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert [line.split()[:2] for line in planned.stdout.splitlines()] == [["bash", "tests/gpu/check.sh"]]
