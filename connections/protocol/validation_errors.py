"""Converts msgspec's errors to sentences for people: "`temperature` must be a number.". Pure."""

from __future__ import annotations

import re

import msgspec

_PATH = re.compile(r" - at `(?:key in )?\$\.?(.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(.*)`$", re.DOTALL)
_TYPE = re.compile(r"^Expected `([^`]*)`, got `[^`]*`$")
_LENGTH = re.compile(r"^Expected `(\w+)` of length (<=|>=) (\d+)$")
_RANGE = re.compile(r"^Expected `\w+` (<=|>=|<|>) (\S+)$")
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
_MEMBERS = {"str": "characters", "array": "items", "object": "fields"}
_ENDS = {"<=": "at most {}", ">=": "at least {}", "<": "less than {}", ">": "more than {}"}
_NAME = "[A-Za-z0-9._:-]"
"""The beginning of the only pattern that strings are checked against."""


class ValidationProblem(msgspec.Struct, frozen=True, kw_only=True):
    """`field`: the wrong field; None: the whole value; `why` follows its name."""

    field: str | None
    why: str
    is_missing: bool = False

    def full_message(self, *, whole: str) -> str:
        """Return the sentence. `whole`: the name of the value if no field is wrong."""
        return field_message(self.field, self.why) if self.field else f"{whole} {self.why}"


def validation_problem(error: msgspec.ValidationError) -> ValidationProblem:
    """Return what is wrong with a value of the wrong type."""
    text = str(error)
    path = _PATH.search(text)
    what, field = (text, "") if path is None else (text[: path.start()], path[1])
    if missing := _MISSING.match(what):
        return ValidationProblem(
            field=f"{field}.{missing[1]}" if field else missing[1], why="is missing.", is_missing=True
        )
    return ValidationProblem(field=field or None, why=_why(what))


def field_message(field: str, why: str) -> str:
    """Return a sentence about a field."""
    return f"`{field}` {why}"


def _why(what: str) -> str:
    """Return the text after the name of the field."""
    if wrong := _TYPE.match(what):
        types = [_TYPES[name] for name in wrong[1].split(" | ") if name in _TYPES]
        return f"must be {' or '.join(types)}." if types else "has a type that it may not have."
    if wrong := _LENGTH.match(what):
        many = _ENDS[wrong[2]].format(wrong[3])
        return f"must have {many} {_MEMBERS.get(wrong[1], 'members')}."
    if wrong := _RANGE.match(what):
        return f"must be {_ENDS[wrong[1]].format(wrong[2])}."
    if _NAME in what:
        return "may have letters, digits and . _ : - only."
    if "out of range" in what:
        return "is out of range."
    return "has a value that is not known here."
