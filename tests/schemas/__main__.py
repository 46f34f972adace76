"""`make schemas`: which JSON Schemas replies can be held to, and whether they are; a table is printed, and docs/bench/schemas.json written."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tests.bench.report import Machine, this_machine
from tests.schemas.corpus import Case, fetched, in_the_wild, suite
from tests.schemas.findings import Bench, Row

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "bench" / "schemas.json"
HEAD = ("draft", "schemas", "followed", "refused", "replies", "ended", "of these valid")
PACKAGES = ("midstream-server", "llguidance", "jsonschema", "check-jsonschema")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What is written to docs/bench/schemas.json."""

    date: str
    machine: Machine
    replies: int
    tokens: int
    rows: dict[str, Row]


def main() -> int:
    """Try all schemas; gives 0 where every reply that ended was what its schema allows, and none broke off."""
    options = _options()
    bench = Bench(replies=options.replies, tokens=options.tokens)
    rows = bench.try_all(_cases(options.only)) | bench.try_all(_lenient(options.only), strict=False)
    print(table(rows))
    for name, row in rows.items():
        for line in (*row.invalid, *row.faults):
            print(f"{name}: {line}")
    if not options.only:
        _write(
            Report(
                date=datetime.now(UTC).date().isoformat(),
                machine=this_machine(PACKAGES),
                replies=options.replies,
                tokens=options.tokens,
                rows=rows,
            )
        )
    return 1 if any(row.invalid for row in rows.values()) else 0


def table(rows: Mapping[str, Row]) -> str:
    """Return a table in Markdown, with a line for each draft."""
    cells = [HEAD, ("---", *["--:"] * (len(HEAD) - 1))]
    for name, row in rows.items():
        counts = (row.schemas, row.followed, sum(row.refused.values()), row.replies, row.ended, row.valid)
        cells.append((name, *(f"{count:,}" for count in counts)))
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.schemas", description=__doc__)
    parser.add_argument("--only", help="schemas whose names have this in them; nothing is written then")
    parser.add_argument("--replies", type=int, default=4, help="of each schema")
    parser.add_argument("--tokens", type=int, default=96, help="of each reply, at most")
    return parser.parse_args()


def _cases(only: str | None) -> Iterator[Case]:
    for case in (*suite(fetched()), *in_the_wild()):
        if only is None or only in f"{case.group} {case.name}":
            yield case


def _lenient(only: str | None) -> Iterator[Case]:
    """Yield the schemas that people wrote once more, to be followed as far as they can be."""
    for case in in_the_wild():
        if only is None or only in f"{case.group} {case.name}":
            yield case._replace(group=f"{case.group}, not strict")


def _write(report: Report) -> None:
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    print(f"Written: {RESULTS}")


if __name__ == "__main__":
    sys.exit(main())
