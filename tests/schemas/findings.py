"""How many schemas of which draft are followed, and whether replies that ended are what their schemas allow."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import regex
from jsonschema import Draft202012Validator, _keywords, _utils
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend, validator_for
from transformers import AutoTokenizer

from engine.errors import PromptRejected
from engine.grammar import (
    GrammarCompiler,
    GrammarMaker,
    GrammarSource,
    GrammarTrials,
    GrammarWriter,
    TrialPostponed,
    vocabulary_of,
)
from engine.messages import JsonSchema, ReplySpec
from tests.schemas.corpus import Case
from tests.schemas.writers import RandomWriter, Reply

# The names of properties are looked at with this module, too: patterns of ECMA 262 have \p, and Python's `re` has not.
for _module in (_keywords, _utils):
    _module.re = regex

DEMO = Path(__file__).parents[2] / "demo_model" / "checkpoint"


class Row(msgspec.Struct, kw_only=True):
    """Of one draft: schemas, those that are followed and those that are refused, by the reason; replies of the former.

    `ended`: replies that ended by themselves, `valid` those of them that are what their schema allows.
    `faults`: replies that could not go on, each with its schema.
    """

    schemas: int = 0
    followed: int = 0
    refused: dict[str, int] = {}
    replies: int = 0
    ended: int = 0
    valid: int = 0
    invalid: list[str] = []
    faults: list[str] = []


def _tried(trials: GrammarTrials, source: GrammarSource) -> str:
    """Return what is wrong with a grammar, or an empty string, however long its trial takes."""
    while True:
        with suppress(TrialPostponed):
            return trials(source)


class Bench:
    """Tries schemas with the demo model's tokenizer."""

    def __init__(self, *, replies: int = 4, tokens: int = 96) -> None:
        tokenizer: Any = AutoTokenizer.from_pretrained(DEMO)
        vocabulary = vocabulary_of(tokenizer)
        compiler = GrammarCompiler(vocabulary)
        self._maker = GrammarMaker(
            GrammarWriter(vocabulary.specials), partial(_tried, GrammarTrials(compiler))
        )
        self._writer = RandomWriter(compiler, replies=replies, tokens=tokens)

    def try_all(self, cases: Iterable[Case], *, strict: bool = True) -> dict[str, Row]:
        """Return what became of schemas, by their groups."""
        rows: dict[str, Row] = {}
        for case in cases:
            self.try_one(case, rows.setdefault(case.group, Row()), strict=strict)
        return rows

    def try_one(self, case: Case, row: Row, *, strict: bool = True) -> None:
        """Have replies written that are held to a schema, and look whether they are what it allows."""
        row.schemas += 1
        try:
            source = self._maker.make(ReplySpec(format=JsonSchema(case.text, strict)))
        except PromptRejected as error:
            reason = _reason(str(error))
            row.refused[reason] = row.refused.get(reason, 0) + 1
            return
        assert source is not None
        row.followed += 1
        for reply in self._writer.write(source):
            _look(case, reply, row, strict=strict)


def _look(case: Case, reply: Reply, row: Row, *, strict: bool) -> None:
    row.replies += 1
    if reply.fault:
        row.faults.append(f"{case.name}: {reply.fault}")
    if not reply.ended:
        return
    row.ended += 1
    wrong = _wrong(case, reply) if strict else _no_json(reply)
    if wrong is None:
        row.valid += 1
    else:
        row.invalid.append(f"{case.name}: {wrong}: {reply.text.decode(errors='replace')[:200]}")


def _wrong(case: Case, reply: Reply) -> str | None:
    """Return why a reply is not what its schema allows, by the validator of the draft that the schema names."""
    named: Any = validator_for(case.schema, default=Draft202012Validator)
    validator = extend(named, {"pattern": _matches})(case.schema)
    try:
        validator.validate(json.loads(reply.text.decode()))
    except (ValueError, ValidationError) as error:
        return str(error).partition("\n")[0]
    return None


def _matches(_validator: object, pattern: str, text: object, _schema: object) -> Iterator[ValidationError]:
    r"""Look for a pattern as ECMA 262 does: \d and \w are of ASCII, \s is not. Python takes all in the same way."""
    if isinstance(text, str) and not any(
        regex.search(pattern, text, flags) for flags in (regex.ASCII, regex.UNICODE)
    ):
        yield ValidationError(f"{text!r} does not match {pattern!r}")


def _no_json(reply: Reply) -> str | None:
    try:
        json.loads(reply.text.decode())
    except ValueError as error:
        return str(error)
    return None


def _reason(error: str) -> str:
    """Return a refusal without what differs from schema to schema."""
    detail = error.partition("can't be followed: ")[2] or error
    for start in (
        "Unimplemented keys",
        "oneOf constraints",
        "Unknown format",
        "Resource",
        "Pointer",
        "Unsatisfiable",
    ):
        if detail.startswith(start):
            return detail if start == "Unimplemented keys" else start
    return detail[:60]
