"""Writes a report to the terminal and to the named files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson

from midstream.bench.page import page
from midstream.bench.plots import Lines
from midstream.bench.report import lines
from midstream.terminal.plain_page import clean

STANDARD_OUTPUT = Path("-")


def check(*named: Path | None) -> None:
    """Check that the files can be written before the run. Raises OSError."""
    for path in named:
        if path is not None and path != STANDARD_OUTPUT:
            with path.open("a"):
                pass


def write(report: dict[str, Any], curves: Lines, json_file: Path | None, html_file: Path | None) -> None:
    """Write a report. With JSON on the standard output the table goes to standard error. Raises OSError."""
    packed = orjson.dumps(report, option=orjson.OPT_INDENT_2).decode()
    output = sys.stderr if json_file == STANDARD_OUTPUT else sys.stdout
    print(clean("\n".join(lines(report))), file=output)
    if json_file == STANDARD_OUTPUT:
        print(packed)
    elif json_file is not None:
        json_file.write_text(f"{packed}\n", encoding="utf-8")
    if html_file is not None:
        html_file.write_text(page(report, curves), encoding="utf-8")
