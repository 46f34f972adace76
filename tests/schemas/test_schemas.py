"""A part of `make schemas`: what people wrote, and the table."""

from __future__ import annotations

import msgspec
import pytest

from tests.docs.documents import ROOT
from tests.schemas.__main__ import SchemaReport
from tests.schemas.corpus import IN_THE_WILD, Case, in_the_wild
from tests.schemas.findings import Bench, Row, _look
from tests.schemas.writers import Reply

DOCS = ROOT / "docs"
SMALL = {"changie", "cloudbuild", "codecov", "github-issue-config", "buildkite", "compose-spec"}
BOUNDS = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 70}},
    "required": ["n"],
}


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(replies=2, tokens=64)


def test_replies_to_schemas_that_people_wrote_are_what_these_allow(bench: Bench) -> None:
    row = bench.try_all(case for case in in_the_wild() if case.name in SMALL)[IN_THE_WILD]
    assert row.schemas == len(SMALL)
    assert row.followed + sum(row.refused.values()) == row.schemas
    assert row.followed >= 3
    assert "Unimplemented keys" in str(row.refused)
    assert row.ended == row.valid > 0
    assert row.invalid == []


def test_schemas_that_are_not_strict_are_followed_where_strict_ones_are_refused(bench: Bench) -> None:
    cases = [case for case in in_the_wild() if case.name in SMALL]
    row = bench.try_all(cases, strict=False)[IN_THE_WILD]
    assert row.followed == len(SMALL)
    assert row.invalid == []


def test_a_reply_that_its_schema_does_not_allow_is_noticed(bench: Bench) -> None:
    """The validator looks at more than the grammar was made of: its own schema."""
    row = Row()
    bench.try_one(Case("some", "bounds", BOUNDS), row)
    assert (row.followed, row.valid) == (1, row.ended)
    _look(Case("some", "bounds", BOUNDS), Reply(b'{"n": 71}', ended=True), row, strict=True)
    _look(Case("some", "bounds", BOUNDS), Reply(b'{"n": ', ended=True), row, strict=True)
    assert len(row.invalid) == 2
    assert row.valid == row.ended - 2


def test_the_guide_states_the_results_of_the_last_run() -> None:
    report = msgspec.json.decode((DOCS / "bench" / "schemas.json").read_bytes(), type=SchemaReport)
    rows = report.rows
    drafts = [row for name, row in rows.items() if name.startswith("draft")]
    guide = " ".join((DOCS / "structured-output.md").read_text().split())
    assert (
        f"{sum(row.followed for row in drafts):,} of {sum(row.schemas for row in drafts):,} schemas" in guide
    )
    assert f"all {sum(row.ended for row in rows.values()):,} replies that ended" in guide
    assert all(row.ended == row.valid for row in rows.values())
    assert f"| draft7 | {rows['draft7'].schemas} |" in report.table()
