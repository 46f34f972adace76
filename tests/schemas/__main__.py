"""`make schemas`: which JSON Schemas replies can be held to, and whether they are; a table is printed, and docs/bench/schemas.json written."""

from __future__ import annotations

import argparse
import sys

from tests.bench.report import Report, run_lab
from tests.schemas.corpus import fetched, in_the_wild, suite
from tests.schemas.findings import Bench, Row

HEAD = ("draft", "schemas", "followed", "refused", "replies", "ended", "of these valid")


class SchemaReport(Report, kw_only=True):
    """What is written to docs/bench/schemas.json. `replies`: of each schema; `tokens`: of each reply, at most."""

    replies: int
    tokens: int
    rows: dict[str, Row]

    @property
    def is_good(self) -> bool:
        """True if every reply that ended was what its schema allows, and none broke off."""
        return not any(row.invalid for row in self.rows.values())

    def table(self) -> str:
        """Return a table in Markdown, with a line for each draft, and what went wrong."""
        cells = [HEAD, ("---", *["--:"] * (len(HEAD) - 1))]
        for name, row in self.rows.items():
            counts = (row.schemas, row.followed, sum(row.refused.values()), row.replies, row.ended, row.valid)
            cells.append((name, *(f"{count:,}" for count in counts)))
        lines = [f"| {' | '.join(line)} |" for line in cells]
        wrong = [(name, line) for name, row in self.rows.items() for line in (*row.invalid, *row.faults)]
        return "\n".join([*lines, *(f"{name}: {line}" for name, line in wrong)])


def measure(options: argparse.Namespace) -> SchemaReport:
    """Try all schemas; those that people wrote once more, to be followed as far as they can be."""
    replies, tokens = (1, 32) if options.quick else (4, 96)
    bench = Bench(replies=replies, tokens=tokens)
    lenient = (case._replace(group=f"{case.group}, not strict") for case in in_the_wild())
    rows = bench.try_all((*suite(fetched()), *in_the_wild())) | bench.try_all(lenient, strict=False)
    return SchemaReport(replies=replies, tokens=tokens, rows=rows)


if __name__ == "__main__":
    sys.exit(run_lab("tests.schemas", __doc__, measure, file="schemas.json"))
