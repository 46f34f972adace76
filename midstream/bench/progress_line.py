"""A line on a terminal with the progress of the run."""

from __future__ import annotations

import asyncio
import shutil
import sys
from contextlib import suppress
from time import monotonic
from typing import TextIO

from midstream.bench.report import shown
from midstream.bench.results import Results

EVERY_S = 0.5


async def show_progress(results: Results, *, duration_s: float, out: TextIO = sys.stderr) -> None:
    """Rewrite the line until cancelled, then remove it. Does nothing if the output is not a terminal."""
    if not out.isatty():
        return
    with suppress(asyncio.CancelledError):
        while True:
            width = shutil.get_terminal_size().columns
            text = line(results, monotonic(), duration_s=duration_s)[: width - 1]
            out.write(f"\r{text}\x1b[K")
            out.flush()
            await asyncio.sleep(EVERY_S)
    out.write("\r\x1b[K")
    out.flush()


def line(results: Results, now: float, *, duration_s: float) -> str:
    """Return the line. Pure."""
    passed_s = now - results.begun
    first, gap = (one.percentile(0.5) for one in (results.durations.first_token, results.durations.gap))
    parts = [
        f"{passed_s:.0f}/{duration_s:.0f} s" if passed_s <= duration_s else "waiting for the last replies",
        f"{results.talking:,} talking",
        f"{results.replies:,} replies",
        f"{results.tokens / max(passed_s, 1e-9):,.0f} tokens/s",
        f"first text {_ms(first)}",
        f"gap {_ms(gap)}",
    ]
    if errors := results.errors.total():
        parts.append(f"{errors:,} errors ({results.errors.most_common(1)[0][0]})")
    return "  ".join(parts)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{shown(seconds * 1000)} ms"
