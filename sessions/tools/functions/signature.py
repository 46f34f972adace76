"""A function's parameters, as a JSON Schema and as the check of a call's arguments, both from its type hints. Pure."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from sessions.tools.server_tool import CallContext, ToolFailed

_PLAIN = (type(None), bool, int, float, str)
_PREFIX = "p_"  # a parameter may have the name of a struct's own attribute
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class BadSignature(TypeError):
    """A function can't be a tool. The message tells the operator which parameter prevents it."""


class Signature:
    """The parameters of a function. The server fills in one of the type `CallContext`; the model does not see it."""

    def __init__(self, function: Callable[..., Any], described: Mapping[str, str]) -> None:
        """Raises BadSignature."""
        hints = _hints(function)
        parameters = inspect.signature(function).parameters.values()
        self._context = next((one.name for one in parameters if hints.get(one.name) is CallContext), None)
        shown = [one for one in parameters if one.name != self._context]
        fields = [_field(one, hints) for one in shown]
        self._names = [one.name for one in shown]
        self._arguments = msgspec.defstruct(
            "Arguments",
            fields,
            rename=lambda field: field.removeprefix(_PREFIX),
            forbid_unknown_fields=True,
            kw_only=True,
        )
        self.schema = _schema(self._arguments, described)
        """The JSON Schema of an object, as text."""

    def bound(self, arguments: dict[str, Any], context: CallContext) -> dict[str, Any]:
        """Return the keyword arguments of a call. Raises ToolFailed, which says what does not fit."""
        try:
            found = msgspec.convert(arguments, self._arguments, str_keys=True)
        except (msgspec.ValidationError, RecursionError) as error:
            raise ToolFailed(f"The arguments do not fit: {error}.") from None
        given = {name: getattr(found, f"{_PREFIX}{name}") for name in self._names}
        return given if self._context is None else given | {self._context: context}


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the type hints, with those that are written as text resolved. Raises BadSignature."""
    try:
        return typing.get_type_hints(
            function if inspect.isroutine(function) else type(function).__call__, include_extras=True
        )
    except Exception as error:  # a hint may be any expression
        raise BadSignature(f"its type hints can't be read: {type(error).__name__}: {error}") from error


def _field(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> tuple[str, Any, Any]:
    """Return a parameter as a field of the struct. Raises BadSignature."""
    if parameter.kind not in _NAMED:
        raise BadSignature(f"parameter {parameter.name} can't be given by name; each argument of a tool is")
    if parameter.name not in hints:
        raise BadSignature(f"parameter {parameter.name} has no type hint")
    hint = hints[parameter.name] | None if parameter.default is None else hints[parameter.name]
    _check(parameter.name, hint)
    return (f"{_PREFIX}{parameter.name}", hint, _default(parameter.default))


def _default(default: Any) -> Any:
    if default is inspect.Parameter.empty:
        return msgspec.NODEFAULT
    return default if isinstance(default, _PLAIN) else msgspec.field(default_factory=lambda: default)


def _check(name: str, hint: Any) -> None:
    """Raise BadSignature if a type has no JSON Schema."""
    try:
        msgspec.json.schema_components((hint,))
    except (TypeError, NameError, ValueError) as error:
        why = str(error).splitlines()[-1]
        raise BadSignature(f"parameter {name} has a type that is no JSON: {why}") from error


def _schema(arguments: type[msgspec.Struct], described: Mapping[str, str]) -> str:
    """Return the schema of the struct, its own definition outermost."""
    (top,), parts = msgspec.json.schema_components((arguments,), ref_template="#/$defs/{name}")
    schema = parts.pop(top["$ref"].removeprefix("#/$defs/"))
    schema.pop("title", None)
    for name, text in _undescribed(schema["properties"], described):
        schema["properties"][name] = {"description": text, **schema["properties"][name]}
    if parts:
        schema["$defs"] = parts
    return msgspec.json.encode(schema).decode()


def _undescribed(
    properties: Mapping[str, dict[str, Any]], described: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    for name, text in described.items():
        if text and name in properties and "description" not in properties[name]:
            yield name, text
