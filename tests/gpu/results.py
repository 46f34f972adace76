"""What the stages of the CUDA check share: the device, and where results go."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DEVICE = os.environ.get("DEVICE", "cuda:0")
ON_CUDA = DEVICE.startswith("cuda")


def keep(file: str, facts: dict[str, Any]) -> None:
    """Add facts to a JSON file in the folder of results."""
    path = Path(os.environ["OUT"], file)
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | facts, indent=1))


def print_line(line: str) -> None:
    print(line, flush=True)


def expect(holds: bool, claim: str) -> None:  # noqa: FBT001 - reads as a sentence
    """Print WRONG with the claim unless it holds; the check then fails, after all other results."""
    if not holds:
        print_line(f"WRONG: {claim}")


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")
