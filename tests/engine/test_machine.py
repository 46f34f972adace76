"""How engines share a machine, what its kernel says is free, what children inherit, and what the log holds."""

from __future__ import annotations

import logging
import subprocess
import sys
import sysconfig
from pathlib import Path

import msgspec
import pytest

from engine import machine
from engine.machine import (
    EngineOptions,
    Formatter,
    free_by_meminfo,
    free_in_cgroup,
    free_memory,
    shared_out,
    torch_settings,
    with_usage,
    without_values,
)
from engine.messages import EngineStatistics

ROOT = Path(__file__).resolve().parents[2]
ONE = EngineOptions(model="some/model", dtype="float32", max_batch=8)
PRIVATE = "private " + "words"


@pytest.mark.parametrize(
    ("devices", "cores", "shares", "threads"),
    [
        (["auto"], 8, [1.0], [None]),
        (["cuda:0", "cuda:1"], 8, [1.0, 1.0], [None, None]),
        (["cuda:0", "cuda:0"], 8, [0.5, 0.5], [None, None]),
        (["cuda:0", "cpu"], 8, [1.0, 1.0], [None, None]),
        (["cpu", "cpu"], 9, [0.5, 0.5], [4, 4]),
        (["cpu", "cpu", "cpu"], 2, [1 / 3] * 3, [1, 1, 1]),
    ],
)
def test_engines_of_a_device_share_its_memory_and_those_of_the_cpu_its_cores(
    devices: list[str], cores: int, shares: list[float], threads: list[int | None]
) -> None:
    asked = [msgspec.structs.replace(ONE, device=device) for device in devices]
    assert shared_out(asked, cores=cores) == tuple(
        msgspec.structs.replace(one, memory_share=share, threads=count)
        for one, share, count in zip(asked, shares, threads, strict=True)
    )


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


def test_time_and_memory_are_added_to_what_was_counted() -> None:
    reported = with_usage(EngineStatistics(steps=7), lambda: (30, 100))
    assert reported.steps == 7
    assert reported.cpu_seconds > 0
    assert reported.resident_bytes > 1 << 20
    assert (reported.device_used_bytes, reported.device_total_bytes) == (70, 100)
    assert with_usage(EngineStatistics()).device_total_bytes == 0


def test_children_find_the_packages_of_a_checkout_and_what_is_installed_stays_behind_the_standard_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    assert machine.module_environment()["PYTHONPATH"] == f"{ROOT}:/theirs"
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.setattr(machine, "_ROOT", Path(sysconfig.get_paths()["purelib"]))
    assert "PYTHONPATH" not in machine.module_environment()


def test_threads_spin_for_a_moment_and_few_kernels_are_kept_unless_somebody_has_chosen() -> None:
    ours = {
        "GOMP_SPINCOUNT": "3000",
        "LRU_CACHE_CAPACITY": "64",
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    }
    assert torch_settings({}) == ours
    for chosen in (*ours, "OMP_WAIT_POLICY"):
        replaced = "GOMP_SPINCOUNT" if chosen == "OMP_WAIT_POLICY" else chosen
        assert torch_settings({chosen: "any"}) == {k: v for k, v in ours.items() if k != replaced}


def throw(error: Exception) -> None:
    raise error


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    error.__cause__ = cause and raised(cause)
    try:
        throw(error)
    except Exception as caught:  # noqa: BLE001 - whichever it is
        return caught
    raise AssertionError


class OwnError(Exception):
    pass


def test_a_traceback_has_types_and_places_and_only_the_systems_words() -> None:
    reported = without_values(raised(OwnError(PRIVATE)))
    assert reported.endswith(f"\n{__name__}.OwnError")
    assert ", in throw" in reported
    assert PRIVATE not in reported
    missing = without_values(raised(FileNotFoundError(2, "No such file")))
    assert missing.endswith("\nFileNotFoundError: [Errno 2] No such file")


def test_what_led_to_an_exception_comes_first_and_those_of_a_group_are_listed() -> None:
    reported = without_values(raised(OwnError(PRIVATE), KeyError(PRIVATE)))
    assert reported.index("\nKeyError\nIt was followed by:\n") < reported.index("OwnError")
    group = without_values(ExceptionGroup(PRIVATE, [raised(OwnError(PRIVATE)), raised(KeyError(PRIVATE))]))
    assert "\nException 1 of the group:\n  Traceback" in group
    assert group.endswith("\n  KeyError")
    assert PRIVATE not in reported + group
    one, other = OwnError(), KeyError()
    one.__cause__, other.__cause__ = other, one
    assert without_values(one).count("Traceback") == 2


def test_the_engines_log_tells_torchs_trouble() -> None:
    """Sizes and shapes are nobody's words; what a template quotes may be."""
    record = logging.LogRecord("engine", logging.ERROR, __file__, 1, "failed", None, None)
    for error, message in [
        (RuntimeError("out of memory"), "RuntimeError: out of memory"),
        (KeyError(PRIVATE), "KeyError"),
    ]:
        record.exc_info, record.exc_text = (type(error), error, None), None
        assert Formatter().format(record).endswith(f"\n{message}")


@pytest.mark.parametrize(
    "how",
    ["fail()", "import threading; thread = threading.Thread(target=fail); thread.start(); thread.join()"],
)
def test_what_nobody_caught_is_told_without_words(how: str) -> None:
    program = f"""
from engine import machine
machine.set_up_logs()
words = "private"
def fail():
    raise LookupError(words + " words")
{how}
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.stderr.startswith("engine: CRITICAL: an uncaught exception\nTraceback")
    assert ended.stderr.endswith("LookupError\n")
    assert "private words" not in ended.stderr


def test_what_a_library_logs_is_told_once() -> None:
    """As each attempt of a download is, while the network is away."""
    program = """
from engine import machine
machine.set_up_logs()
from huggingface_hub.utils.logging import get_logger
machine.remove_library_handlers()
get_logger("huggingface_hub.utils").warning("Retrying in 1s")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stderr == "engine: WARNING: Retrying in 1s\n"
