"""A grammar that can't be used is refused with its reason, and what was tried is tried once."""

from __future__ import annotations

import pytest

from engine.errors import PromptRejected
from engine.grammar import HERMES_FORM, TRIED, GrammarMaker, GrammarSource
from engine.messages import JsonObject, JsonSchema, Regex, ReplySpec, Tool
from tests.engine.constrained import CITIES, CITY, writer

STRICT = Tool("strict", "", CITY, strict=True)
LAX = Tool("lax", "", CITY)


class Tries:
    """Finds fault with whatever has one of these words in it."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.tried: list[GrammarSource] = []

    def __call__(self, source: GrammarSource) -> str:
        self.tried.append(source)
        return next((f"It has {word}." for word in self.words if word in source.text), "")


def test_what_has_no_fault_is_tried_once() -> None:
    tries = Tries()
    maker = GrammarMaker(writer(HERMES_FORM), tries)
    first = maker.make(ReplySpec(format=CITIES))
    assert maker.make(ReplySpec(format=CITIES)) == first is not None
    assert len(tries.tried) == 1
    assert maker.make(ReplySpec()) is None


def test_what_has_one_is_refused_each_time_and_tried_once() -> None:
    tries = Tries("Paris")
    maker = GrammarMaker(writer(), tries)
    for _ in range(2):
        with pytest.raises(PromptRejected, match=r"The format can't be followed: It has Paris\.") as refused:
            maker.make(ReplySpec(format=CITIES))
        assert refused.value.field == "format"
    assert len(tries.tried) == 1


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


def test_no_more_is_remembered_than_has_a_bound() -> None:
    tries = Tries()
    maker = GrammarMaker(writer(), tries)
    for number in range(TRIED + 1):
        maker.make(ReplySpec(format=Regex(f"a{{{number}}}")))
    maker.make(ReplySpec(format=Regex("a{1}")))
    assert len(tries.tried) == TRIED + 1
    maker.make(ReplySpec(format=Regex("a{0}")))
    assert len(tries.tried) == TRIED + 2


def test_a_schema_that_is_not_strict_is_followed_as_far_as_it_can_be() -> None:
    odd = '{"type":"object","not":{"const":1}}'
    source = writer().write(ReplySpec(format=JsonSchema(odd, strict=False)))
    assert source is not None
    assert '"lenient":true' in source.text
