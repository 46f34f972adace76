"""The pieces of a call: its progress, the forms that it asks with, and the length of its result."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sessions.tools.calls import (
    FORM_BYTES,
    ProgressFeed,
    UnsupportedForm,
    form_of,
    plain,
    validation_error,
)
from sessions.tools.tool_registry import Progress, cut_to
from tests.sessions.tools.tool_calls import Watcher


async def test_a_flood_is_heard_as_its_newest() -> None:
    watcher = Watcher()
    feed = ProgressFeed(watcher, interval_s=0.05)
    await asyncio.to_thread(lambda: [feed.report(Progress(done=number)) for number in range(50_000)])
    feed.report(Progress(done=50_000))
    received = [await watcher.seen.get()]
    while received[-1].done < 50_000:
        received.append(await watcher.seen.get())
    assert len(received) < 100
    assert [one.done for one in received] == sorted(one.done for one in received)


async def test_reports_are_apart() -> None:
    watcher, loop = Watcher(), asyncio.get_running_loop()
    feed = ProgressFeed(watcher, interval_s=0.05)
    times = []
    for number in range(3):
        feed.report(Progress(done=number))
        await watcher.seen.get()
        times.append(loop.time())
    assert times[2] - times[0] >= 0.1 - 1e-3


async def test_a_closed_feed_is_silent() -> None:
    watcher = Watcher()
    feed = ProgressFeed(watcher, interval_s=0)
    feed.report(Progress(done=1))
    feed.close()
    feed.report(Progress(done=2))
    other = Watcher()
    ProgressFeed(other, interval_s=0).report(Progress(done=3))
    await other.seen.get()
    assert watcher.seen.empty()


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_left_out(number: float) -> None:
    assert plain(Progress(done=number)) is None
    assert plain(Progress(done=1, total=number)) == Progress(done=1)


def test_words_about_progress_are_short_and_can_be_written() -> None:
    shown = plain(Progress(done=1, message="\ud800" + "x" * 1000))
    assert (shown and shown.message) == "?" + "x" * 199


def form(required: tuple[str, ...] = (), **fields: Any) -> str:
    return json.dumps({"type": "object", "properties": fields, "required": required})


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "[]",
        "3",
        '{"type": "string"}',
        form(a={"type": "object"}),
        form(a={"type": "string", "enum": []}),
        form(a=3),
        form(required=("b",), a={"type": "string"}),
        form(**{f"f{number}": {"type": "string"} for number in range(33)}),
        form(a={"type": "string", "description": "x" * FORM_BYTES}),
        "[" * 5000,
        '{"type": "object", "properties": {"a": {"type": "string", "title": "\ud800"}}}',
    ],
)
def test_what_is_no_flat_form_is_refused(schema: str) -> None:
    with pytest.raises(UnsupportedForm):
        form_of(schema)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ({"type": "boolean"}, 1, "a must be true or false"),
        ({"type": "integer"}, 1.5, "a must be a whole number"),
        ({"type": "integer"}, True, "a must be a number"),
        ({"type": "number", "minimum": 2}, 1, "a must be 2 or more"),
        ({"type": "string"}, 1, "a must be a text"),
        ({"type": "string"}, "x" * 20_000, "a must be 0 to 16384 characters"),
        ({"type": "string", "minLength": 2}, "x", "a must be 2 to 16384 characters"),
        ({"type": "string", "enum": ["x"]}, "y", "a must be one of the choices"),
        ({"type": "array", "items": {"enum": ["x"]}}, ["y"], "a must be a list of the choices"),
        ({"type": "array", "items": {"anyOf": [{"const": "x"}]}}, "x", "a must be a list of choices"),
        ({"type": "array", "items": {"enum": ["x"]}, "minItems": 1}, [], "a must be 1 to 256 choices"),
    ],
)
def test_what_does_not_fit_is_named(field: dict[str, Any], value: Any, words: str) -> None:
    assert validation_error(form_of(form(a=field)), {"a": value}) == words


def test_what_is_missing_or_was_not_asked_for_is_named() -> None:
    requested = form_of(form(required=("a",), a={"type": "string"}))
    assert validation_error(requested, {}) == "a is missing"
    assert validation_error(requested, {"a": "x", "b": "y"}) == "b was not asked for"


FIELDS = [
    {"type": "boolean"},
    {"type": "integer", "minimum": 0},
    {"type": "number", "maximum": 2},
    {"type": "string", "maxLength": 2},
    {"type": "string", "enum": ["a", "b"]},
    {"type": "string", "oneOf": [{"const": "a"}, {"const": "c"}]},
    {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "maxItems": 2},
    {"type": "array", "items": {"anyOf": [{"const": "a"}, {"const": "c"}]}, "minItems": 1},
]
values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([-0.5, 1.0, 2.5, "", "a", "b", "abc"]),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=3,
)


@example(field=FIELDS[1], needed=True, answer={"a": 1})
@example(field=FIELDS[2], needed=True, answer={"a": 2.5})
@example(field=FIELDS[6], needed=True, answer={"a": ["a"]})
@given(
    field=st.sampled_from(FIELDS),
    needed=st.booleans(),
    answer=st.dictionaries(st.sampled_from("ab"), values),
)
def test_an_answer_fits_where_its_json_schema_allows_it(
    *, field: dict[str, Any], needed: bool, answer: dict[str, Any]
) -> None:
    schema = json.loads(form(required=("a",) if needed else (), a=field)) | {"additionalProperties": False}
    allowed = Draft202012Validator(schema).is_valid(answer)
    assert (validation_error(form_of(json.dumps(schema)), answer) is None) == allowed


texts = st.text(alphabet=st.characters(codec=None) | st.sampled_from("\ud800€𝄞é"), max_size=60)


@given(texts, st.integers(0, 100))
def test_a_result_is_written_as_far_as_it_may_be(text: str, limit: int) -> None:
    written = text.encode("utf-8", "replace").decode()
    kept, line, rest = cut_to(text, limit).partition("\n[The result was cut here.")
    assert written.startswith(kept)
    assert len(kept.encode()) <= limit or not line
    assert bool(line) == (len(written.encode()) > limit)
    if line:
        assert len(kept.encode()) > limit - 4
        assert f"first {len(kept)}." in rest
    else:
        assert kept == written
