"""Matchers belong to one reply each. Some that were let go serve the next one of the same grammar."""

from __future__ import annotations

import pytest

from engine.grammar.compiling import KEPT, Compiler, GrammarFault
from engine.grammar.source import Source
from engine.reply_spec import Grammar, Regex
from tests.engine.guided import CITIES, ids_of, source_of, vocabulary


@pytest.fixture
def compiler() -> Compiler:
    return Compiler(vocabulary())


def test_a_matcher_that_was_let_go_begins_anew(compiler: Compiler) -> None:
    first = compiler.compiled(source_of(CITIES))
    assert first.matcher.consume_tokens(ids_of('{"city": "Paris", "days": 3}'))
    assert first.matcher.is_stopped()
    first.keep()
    again = compiler.compiled(source_of(CITIES))
    assert again.matcher is first.matcher
    assert not again.matcher.is_stopped()
    assert again.matcher.validate_tokens(ids_of('{"city"')) == len(ids_of('{"city"'))


def test_replies_of_the_same_grammar_have_matchers_of_their_own(compiler: Compiler) -> None:
    one, other = compiler.compiled(source_of(CITIES)), compiler.compiled(source_of(CITIES))
    assert one.matcher.consume_tokens(ids_of('{"city":'))
    assert other.matcher.validate_tokens(ids_of("{")) == 1


def test_only_so_many_are_kept_the_last_ones(compiler: Compiler) -> None:
    sources = [source_of(Regex(f"a{{{number}}}")) for number in range(1, KEPT + 2)]
    compiled = [compiler.compiled(source) for source in sources]
    for one in compiled:
        one.keep()
    again = [compiler.compiled(source) for source in sources]
    assert [one.matcher is before.matcher for one, before in zip(again, compiled, strict=True)] == [
        False,
        *[True] * KEPT,
    ]


def test_what_cannot_begin_anew_is_not_kept(compiler: Compiler) -> None:
    for source, tokens in [
        (source_of(CITIES), ids_of("nonsense")),
        (source_of(Grammar('start: a\na[max_tokens=3]: "a"*')), ids_of("a")),
    ]:
        first = compiler.compiled(source)
        first.matcher.consume_tokens(tokens)
        first.keep()
        assert compiler.compiled(source).matcher is not first.matcher


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (source_of(Regex("(?=x)y")), "look-around"),
        (source_of(Regex("(")), "unclosed group"),
        (source_of(Grammar("start: a")), "unknown name"),
        (source_of(Grammar("")), "start"),
        (Source("{"), "EOF"),
    ],
)
def test_what_is_no_grammar_says_so_in_a_line(compiler: Compiler, source: Source, why: str) -> None:
    with pytest.raises(GrammarFault, match=why) as fault:
        compiler.compiled(source)
    assert "\n" not in str(fault.value)
    assert "<state>" not in str(fault.value)
