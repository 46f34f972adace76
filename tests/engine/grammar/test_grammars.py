"""Schemas are read within bounds, texts stand for themselves, and grammars are compiled and remembered within bounds, too."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from llguidance import LLMatcher

from engine.errors import PromptRejected
from engine.grammar import (
    KEPT,
    MAX_BYTES,
    MAX_DEPTH,
    GrammarCompiler,
    GrammarError,
    GrammarMaker,
    GrammarSource,
    any_of,
    begins_special,
    check_draft,
    literal,
    nesting,
    pattern,
    read_schema,
    symbols,
)
from engine.messages import Grammar, JsonObject, JsonSchema, Regex, ReplySpec, Tool
from tests.engine.constrained import CITIES, CITY, HERMES_FORM, ids_of, source_of, vocabulary, writer
from tests.engine.random_writer import RandomWriter

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


@pytest.mark.parametrize(
    "text", ["", "nonsense", "[]", '"text"', "3", "null", '{"a":', '{"a":1}}', "NaN", "false"]
)
def test_what_is_no_schema_or_allows_nothing_is_refused(text: str) -> None:
    why = "allows nothing" if text == "false" else "has no valid JSON Schema"
    with pytest.raises(PromptRejected, match=why):
        read_schema(text, "format")


def test_keywords_stay_as_they_were_written_and_a_schema_that_allows_everything_has_none() -> None:
    read = read_schema('{"maximum": 1e300, "minimum": 1.0, "b": {"z": 1, "a": 2}}', "format")
    assert {name: bytes(raw) for name, raw in read.items()} == {
        "maximum": b"1e300",
        "minimum": b"1.0",
        "b": b'{"z": 1, "a": 2}',
    }
    assert read_schema("true", "format") == {}


@pytest.mark.parametrize(("draft", "followed"), [("draft-03", False), ("draft-04", True), ("draft-07", True)])
def test_a_draft_whose_keywords_nobody_follows_is_refused(draft: str, *, followed: bool) -> None:
    schema = read_schema(json.dumps({"$schema": f"http://json-schema.org/{draft}/schema#"}), "format")
    with nullcontext() if followed else pytest.raises(PromptRejected, match="draft 4 is the first"):
        check_draft(schema, "format")


SPECIALS = {"<a>": 3, "<ab>": 4, "[CALL]": 5}


TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cn", "Co")), min_size=1, max_size=12)


def allows(frame: str, ids: list[int]) -> bool:
    matcher = LLMatcher(vocabulary().tokens, json.dumps({"grammars": [{"lark_grammar": frame}]}), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


@settings(max_examples=30)
@given(TEXTS, TEXTS)
def test_a_pattern_and_a_literal_match_their_text_and_no_other(text: str, other: str) -> None:
    for frame in (f"start: /{pattern(text)}/", f"start: {literal(text)}"):
        assert allows(frame, ids_of(text))
        assert allows(frame, ids_of(other)) == (text == other)


def test_control_tokens_are_named_by_their_ids() -> None:
    assert symbols("<ab>\n[CALL]{", SPECIALS) == '<[4]> "\\n" <[5]> "{"'
    assert symbols("<a> b", {}) == '"<a> b"'
    assert symbols("", SPECIALS) == ""
    assert begins_special("<a>x", SPECIALS)
    assert not begins_special("x<a>", SPECIALS)
    assert any_of([7, 3]) == "<[3,7]>"


@pytest.fixture
def compiler() -> GrammarCompiler:
    return GrammarCompiler(vocabulary())


def test_a_matcher_that_was_let_go_begins_anew_and_others_have_their_own(compiler: GrammarCompiler) -> None:
    first, other = compiler.matcher(source_of(CITIES)), compiler.matcher(source_of(CITIES))
    assert first.consume_tokens(ids_of('{"city": "Paris", "days": 3}'))
    assert first.is_stopped()
    assert other.validate_tokens(ids_of("{")) == 1
    compiler.keep(source_of(CITIES), first)
    again = compiler.matcher(source_of(CITIES))
    assert again is first
    assert not again.is_stopped()
    assert again.validate_tokens(ids_of('{"city"')) == len(ids_of('{"city"'))


def test_only_so_many_are_kept_the_last_ones(compiler: GrammarCompiler) -> None:
    sources = [source_of(Regex(f"a{{{number}}}")) for number in range(1, KEPT + 2)]
    matchers = [compiler.matcher(source) for source in sources]
    for source, one in zip(sources, matchers, strict=True):
        compiler.keep(source, one)
    again = [compiler.matcher(source) for source in sources]
    assert [one is before for one, before in zip(again, matchers, strict=True)] == [
        False,
        *[True] * KEPT,
    ]


def test_what_cannot_begin_anew_is_not_kept(compiler: GrammarCompiler) -> None:
    for source, tokens in [
        (source_of(CITIES), ids_of("nonsense")),
        (source_of(Grammar('start: a\na[max_tokens=3]: "a"*')), ids_of("a")),
    ]:
        first = compiler.matcher(source)
        first.consume_tokens(tokens)
        compiler.keep(source, first)
        assert compiler.matcher(source) is not first


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (source_of(Regex("(?=x)y")), "look-around"),
        (source_of(Regex("(")), "unclosed group"),
        (source_of(Grammar("start: a")), "unknown name"),
        (source_of(Grammar("")), "start"),
        (GrammarSource("{"), "EOF"),
    ],
)
def test_what_is_no_grammar_says_so_in_a_line(
    compiler: GrammarCompiler, source: GrammarSource, why: str
) -> None:
    with pytest.raises(GrammarError, match=why) as fault:
        compiler.matcher(source)
    assert "\n" not in str(fault.value)
    assert "<state>" not in str(fault.value)


STRICT = Tool("strict", "", CITY, strict=True)


LAX = Tool("lax", "", CITY)


class Tries:
    """Finds fault with whatever has this word in it."""

    def __init__(self, word: str) -> None:
        self.word = word

    def __call__(self, source: GrammarSource) -> str:
        return f"It has {self.word}." if self.word in source.text else ""


def test_a_fault_is_told() -> None:
    maker = GrammarMaker(writer(HERMES_FORM), Tries("Paris"))
    fine = ReplySpec(format=Regex("a"))
    assert maker.make(fine) == maker.make(fine) != maker.make(ReplySpec()) is None
    with pytest.raises(PromptRejected, match=r"The format can't be followed: It has Paris\.") as refused:
        maker.make(ReplySpec(format=CITIES))
    assert refused.value.field == "format"


def test_strict_tools_are_refused_and_others_may_be_called_with_any_object() -> None:
    maker = GrammarMaker(writer(HERMES_FORM), Tries("Paris"))
    lax = maker.make(ReplySpec(tools=(LAX,)))
    assert lax is not None
    assert "Paris" not in lax.text
    assert '"lax' in lax.text
    with pytest.raises(PromptRejected, match="The tools can't be followed") as refused:
        maker.make(ReplySpec(tools=(STRICT, LAX)))
    assert refused.value.field == "tools"


def test_the_part_that_is_at_fault_is_told() -> None:
    maker = GrammarMaker(writer(HERMES_FORM), Tries("Paris"))
    for spec, field in [
        (ReplySpec(tools=(STRICT,), format=JsonObject()), "tools"),
        (ReplySpec(tools=(Tool("t"),), format=CITIES), "format"),
    ]:
        with pytest.raises(PromptRejected) as refused:
            maker.make(spec)
        assert refused.value.field == field
    assert maker.make(ReplySpec(tools=(LAX,), format=JsonObject())) is not None


@pytest.mark.parametrize(
    "schema",
    [
        {
            "type": "object",
            "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 70}},
            "required": ["n"],
        },
        {
            "type": "array",
            "items": {"type": ["string", "null"], "maxLength": 3},
            "minItems": 1,
            "maxItems": 2,
        },
        {"oneOf": [{"const": "a"}, {"type": "object", "patternProperties": {"^x": {"type": "boolean"}}}]},
        {"allOf": [{"type": "string", "pattern": "^[ab]+$"}, {"minLength": 2}]},
        {
            "$defs": {"t": {"enum": [1, [2], {"c": 3}]}},
            "type": "object",
            "additionalProperties": {"$ref": "#/$defs/t"},
        },
    ],
    ids=str,
)
def test_replies_that_end_are_what_their_schema_allows(schema: dict[str, object]) -> None:
    """Whatever the model would rather write."""
    source = source_of(JsonSchema(json.dumps(schema)))
    replies = RandomWriter(GrammarCompiler(vocabulary()), replies=4, tokens=96).write(source)
    ended = [json.loads(reply.text) for reply in replies if reply.ended]
    assert ended
    assert not [reply.fault for reply in replies if reply.fault]
    assert all(Draft202012Validator(schema).is_valid(value) for value in ended)


def test_a_schema_that_is_not_strict_is_followed_as_far_as_it_can_be() -> None:
    odd = '{"type":"object","not":{"const":1}}'
    source = writer().write(ReplySpec(format=JsonSchema(odd, strict=False)))
    assert source is not None
    assert '"lenient":true' in source.text
