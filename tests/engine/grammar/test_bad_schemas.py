"""Schemas that are made to be costly are refused with a reason, and what they take has a bound."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from engine.errors import PromptRejected
from engine.grammar import (
    COMPILE_S,
    COSTLY,
    MEMORY_BYTES,
    TIMEOUT_S,
    WHOLE_S,
    GrammarCompiler,
    GrammarMaker,
    GrammarSource,
    GrammarTrials,
    TrialPostponed,
    judge,
)
from engine.messages import Format, Grammar, JsonSchema, Regex, ReplySpec
from tests.engine.constrained import compiler, source_of, vocabulary, writer

MIB = 2**20


def trial(compiler: GrammarCompiler, source: GrammarSource) -> str:
    """Try a grammar to the end."""
    return run_out(GrammarTrials(compiler), source)


def run_out(trials: GrammarTrials, source: GrammarSource) -> str:
    while True:
        with suppress(TrialPostponed):
            return trials(source)


def schema(value: Any) -> JsonSchema:
    return JsonSchema(json.dumps(value))


def doubling(levels: int) -> JsonSchema:
    """Each definition names the one below it twice."""
    below = [{"$ref": f"#/$defs/d{n}"} for n in range(levels)]
    definitions = {f"d{n + 1}": {"anyOf": [below[n], below[n]]} for n in range(levels)}
    return schema({"$defs": {"d0": {"type": "string"}, **definitions}, "$ref": f"#/$defs/d{levels}"})


def product(factors: int, choices: int = 4) -> JsonSchema:
    """Every choice of one with every choice of the others."""
    return schema(
        {
            "allOf": [
                {"anyOf": [{"properties": {f"p{n}_{m}": {"type": "string"}}} for m in range(choices)]}
                for n in range(factors)
            ]
        }
    )


def doubled_terminals(levels: int) -> Grammar:
    lines = [f"T{n}: T{n + 1} T{n + 1}" for n in range(levels)]
    return Grammar("\n".join(["start: T0", *lines, f'T{levels}: "x"']))


REFUSED: dict[str, tuple[Callable[[], Format], str]] = {
    "five megabytes": (lambda: schema({"description": "x" * 5_000_000}), "at most 256 KiB"),
    "deep": (lambda: JsonSchema('{"items":' * 5000 + "{}" + "}" * 5000), "at most 64 deep"),
    "all of any of": (lambda: product(8), "too large"),
    "a thousand properties": (lambda: schema({"properties": {f"p{n}": {} for n in range(1000)}}), ""),
    "a remainder of many states": (lambda: schema({"type": "integer", "multipleOf": 99_991}), COSTLY),
    "many patterns at once": (
        lambda: schema(
            {"allOf": [{"type": "string", "pattern": f"^.*{n}.*x.*{7 * n}.*$"} for n in range(20)]}
        ),
        "",
    ),
    "itself": (lambda: schema({"$ref": "#"}), "allows nothing"),
    "one of nothing": (lambda: schema({"enum": []}), ""),
    "nowhere": (lambda: schema({"$ref": "#/$defs/nowhere"}), "does not exist"),
    "elsewhere": (lambda: schema({"$ref": "http://localhost/schema.json"}), "not present"),
    "a file": (lambda: schema({"$ref": "file:///etc/passwd"}), "not present"),
    "doubled terminals": (lambda: doubled_terminals(40), ""),
    "a pattern of patterns": (lambda: Regex("(" * 3000 + "a" + ")" * 3000), ""),
}


HARMLESS: dict[str, Callable[[], Format]] = {
    "doubled choices": lambda: doubling(30),
    "a tree": lambda: schema(
        {
            "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
            "$ref": "#/$defs/node",
        }
    ),
    "a list of itself": lambda: schema({"type": "array", "items": {"$ref": "#"}}),
    "nested repetitions": lambda: Regex("((a+)+)+$"),
    "what was twenty letters ago": lambda: Regex("(a|b)*a(a|b){20}"),
    "a billion letters": lambda: Regex("((a{1000}){1000}){1000}"),
    "long repetitions of long ones": lambda: Regex("(.*a.{1000}){1000}"),
    "a constant of 200 KB": lambda: schema({"const": "ab" * 100_000}),
    "a billion items": lambda: schema({"type": "array", "maxItems": 10**9, "items": {"type": "integer"}}),
    "a text of a billion characters": lambda: schema({"type": "string", "maxLength": 10**9}),
    "doubled rules": lambda: Grammar(
        "\n".join(["start: r0", *[f"r{n}: r{n + 1} r{n + 1}" for n in range(40)], 'r40: "x"'])
    ),
    "ambiguous": lambda: Grammar('start: e\ne: e e | "a" | "(" e ")"'),
}


def spent() -> tuple[float, int]:
    """Seconds of a processor, and the most bytes of memory, of the processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime, 1024 * used.ru_maxrss


@pytest.fixture
def bounded() -> Iterator[GrammarMaker]:
    """A maker that remembers nothing yet. It may take seconds of a processor, whatever else the machine does."""
    own, (children, _) = time.process_time(), spent()
    yield GrammarMaker(writer(), partial(trial, compiler()))
    assert time.process_time() - own < 5.0
    assert spent()[0] - children < 10.0


@pytest.mark.parametrize("case", REFUSED)
def test_a_schema_that_cannot_be_followed_is_refused_with_its_reason(
    case: str, bounded: GrammarMaker
) -> None:
    make, why = REFUSED[case]
    with pytest.raises(PromptRejected) as refused:
        bounded.make(ReplySpec(format=make()))
    assert refused.value.field == "format"
    assert why in str(refused.value)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("case", HARMLESS)
def test_what_looks_costly_and_is_not_is_followed(case: str, bounded: GrammarMaker) -> None:
    assert bounded.make(ReplySpec(format=HARMLESS[case]())) is not None


def test_a_try_that_takes_too_much_memory_is_ended() -> None:
    class Hungry(GrammarCompiler):
        def matcher(self, source: GrammarSource) -> Any:
            held = b"x" * (600 * MIB)
            return super().matcher(source) if held else None

    before = spent()[1]
    assert trial(Hungry(vocabulary()), source_of(Regex("abc"))) == COSTLY
    here = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert spent()[1] < max(before, here) + 9 * MEMORY_BYTES


class Endless(GrammarCompiler):
    def matcher(self, source: GrammarSource) -> Any:
        while True:
            pass


def test_a_try_that_does_not_end_is_ended_by_what_it_takes_of_a_processor() -> None:
    before = spent()[0]
    assert trial(Endless(vocabulary()), GrammarSource("")) == COSTLY
    assert WHOLE_S / 2 < spent()[0] - before < 4 * WHOLE_S


def test_a_try_that_gets_no_processor_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.grammar.TIMEOUT_S", 0.0)
    assert trial(Endless(vocabulary()), GrammarSource("")) == COSTLY


def test_nobody_is_kept_waiting_by_a_grammar_that_waits_for_the_try_of_another() -> None:
    """Twenty in a row would take twenty times as long as one may."""
    trials = GrammarTrials(Endless(vocabulary()))
    for source in (GrammarSource("first"), GrammarSource("second")):
        began = time.monotonic()
        with pytest.raises(TrialPostponed):
            trials(source)
        assert time.monotonic() - began < TIMEOUT_S
    assert run_out(trials, GrammarSource("first")) == COSTLY


def test_what_was_tried_is_tried_once_as_long_as_it_is_remembered() -> None:
    noting, noted = os.pipe()

    class Noting(GrammarCompiler):
        def matcher(self, source: GrammarSource) -> Any:
            os.write(noted, source.text.encode())
            return super().matcher(source)

    trials = GrammarTrials(Noting(vocabulary()), remembered=2)
    for text in "{{[{":
        assert run_out(trials, GrammarSource(text))
    assert os.read(noting, 99) == b"{["
    for text in "]{[":
        assert run_out(trials, GrammarSource(text))
    assert os.read(noting, 99) == b"]["
    for end in (noting, noted):
        os.close(end)


def test_a_try_that_dies_is_a_refusal() -> None:
    class Dying(GrammarCompiler):
        def matcher(self, source: GrammarSource) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

    assert trial(Dying(vocabulary()), GrammarSource("")) == COSTLY


def test_what_is_slow_by_the_clock_of_its_processor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the trial's own judgement, here: the clock is handed to it."""
    monkeypatch.setattr("engine.grammar.COMPILE_S", 0.0)
    assert judge(compiler(), source_of(Regex("abc"))) == COSTLY
    assert COMPILE_S > 0.0
