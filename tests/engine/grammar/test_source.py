"""A schema is read no further than its size and its depth allow, and what it says stays as it was written."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import PromptRejected
from engine.grammar import MAX_BYTES, MAX_DEPTH, GrammarSource, check_draft, nesting, read_schema

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


def depth(value: object) -> int:
    match value:
        case dict():
            return 1 + max(map(depth, value.values()), default=0)
        case list():
            return 1 + max(map(depth, value), default=0)
        case _:
            return 0


@given(value=JSON, ascii_only=st.booleans())
def test_nesting_is_that_of_the_values_whatever_their_strings_hold(
    value: object, *, ascii_only: bool
) -> None:
    assert nesting(json.dumps(value, ensure_ascii=ascii_only)) == depth(value)


def nested(levels: int) -> str:
    return '{"items":' * levels + "{}" + "}" * levels


def test_a_schema_is_read_to_its_bounds_and_no_further() -> None:
    assert list(read_schema(nested(MAX_DEPTH - 1), "format")) == ["items"]
    with pytest.raises(PromptRejected, match="nested at most 64 deep") as refused:
        read_schema(nested(MAX_DEPTH), "format")
    assert refused.value.field == "format"
    description = '{"description":"%s"}'
    fits = MAX_BYTES - len(description) + 2
    assert list(read_schema(description % ("x" * fits), "tools")) == ["description"]
    with pytest.raises(PromptRejected, match="at most 256 KiB") as refused:
        read_schema(description % ("x" * (fits + 1)), "tools")
    assert refused.value.field == "tools"


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '"text"', "3", "null", '{"a":', '{"a":1}}', "NaN"])
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(PromptRejected, match="has no valid JSON Schema"):
        read_schema(text, "format")


def test_a_schema_that_allows_everything_has_no_keywords_and_one_that_allows_nothing_is_refused() -> None:
    assert read_schema("true", "format") == {}
    with pytest.raises(PromptRejected, match="allows nothing"):
        read_schema("false", "format")


def test_keywords_stay_as_they_were_written() -> None:
    read = read_schema('{"maximum": 1e300, "minimum": 1.0, "b": {"z": 1, "a": 2}}', "format")
    assert {name: bytes(raw) for name, raw in read.items()} == {
        "maximum": b"1e300",
        "minimum": b"1.0",
        "b": b'{"z": 1, "a": 2}',
    }


@pytest.mark.parametrize(("draft", "followed"), [("draft-03", False), ("draft-04", True), ("draft-07", True)])
def test_a_draft_whose_keywords_nobody_follows_is_refused(draft: str, *, followed: bool) -> None:
    schema = read_schema(json.dumps({"$schema": f"http://json-schema.org/{draft}/schema#"}), "format")
    with nullcontext() if followed else pytest.raises(PromptRejected, match="draft 4 is the first"):
        check_draft(schema, "format")


def test_grammars_are_known_by_their_texts() -> None:
    assert GrammarSource("a").digest == GrammarSource("a").digest != GrammarSource("b").digest
