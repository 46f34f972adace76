"""A part of `make schemas`: what people wrote, and the way from an archive to the table."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.schemas.corpus import IN_THE_WILD, Case, in_the_wild, suite
from tests.schemas.findings import Bench, Row, _look
from tests.schemas.table import BEGIN, END, put_into, table
from tests.schemas.writers import Reply

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


def test_the_suite_is_read_draft_by_draft(tmp_path: Path) -> None:
    groups = [
        {"description": "a thing", "schema": {"type": "string"}, "tests": []},
        {"description": "any", "schema": True},
    ]
    archive = tmp_path / "suite.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        for name in (
            "x-1/json/tests/draft7/optional/type.json",
            "x-1/json/tests/README.json",
            "x-1/setup.json",
        ):
            content = json.dumps(groups).encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
    first, second = suite(archive)
    assert (first.group, first.name) == ("draft7", "optional/type: a thing")
    assert first.schema == {"$schema": "http://json-schema.org/draft-07/schema#", "type": "string"}
    assert second.text == "true"


def test_the_table_replaces_the_one_before_it() -> None:
    rows = {"draft7": Row(schemas=3, followed=2, refused={"not": 1}, replies=8, ended=7, valid=7)}
    page = f"before\n{BEGIN}\nold\n{END}\nbehind"
    new = put_into(page, table(rows))
    assert "| draft7 | 3 | 2 | 1 | 8 | 7 | 7 |" in new
    assert "old" not in new
    assert put_into(new, table(rows)) == new
    with pytest.raises(ValueError, match="no place"):
        put_into("nothing", "")
