"""Texts stand for themselves in a rule and in a pattern, whatever is in them."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from engine.grammar import any_of, begins_special, controls_in, literal, pattern, symbols
from tests.engine.constrained import ids_of, vocabulary

SPECIALS = {"<a>": 3, "<ab>": 4, "[CALL]": 5}
TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cn", "Co")), min_size=1, max_size=12)


def allows(frame: str, ids: list[int]) -> bool:
    matcher = LLMatcher(vocabulary().tokens, json.dumps({"grammars": [{"lark_grammar": frame}]}), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


@settings(max_examples=60)
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
    assert controls_in("a: <[4]> B <[3,7]>") == {3, 4, 7}
