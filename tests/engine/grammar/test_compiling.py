"""Matchers belong to one reply each. Some that were let go serve the next one of the same grammar."""

from __future__ import annotations

import pytest

from engine.grammar import KEPT, GrammarCompiler, GrammarError, GrammarSource
from engine.messages import Grammar, Regex
from tests.engine.constrained import CITIES, ids_of, source_of, vocabulary


@pytest.fixture
def compiler() -> GrammarCompiler:
    return GrammarCompiler(vocabulary())


def test_a_matcher_that_was_let_go_begins_anew(compiler: GrammarCompiler) -> None:
    first = compiler.matcher(source_of(CITIES))
    assert first.consume_tokens(ids_of('{"city": "Paris", "days": 3}'))
    assert first.is_stopped()
    compiler.keep(source_of(CITIES), first)
    again = compiler.matcher(source_of(CITIES))
    assert again is first
    assert not again.is_stopped()
    assert again.validate_tokens(ids_of('{"city"')) == len(ids_of('{"city"'))


def test_replies_of_the_same_grammar_have_matchers_of_their_own(compiler: GrammarCompiler) -> None:
    one, other = compiler.matcher(source_of(CITIES)), compiler.matcher(source_of(CITIES))
    assert one.consume_tokens(ids_of('{"city":'))
    assert other.validate_tokens(ids_of("{")) == 1


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
