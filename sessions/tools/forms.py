"""Forms that tools ask users to fill in: which ones are supported, and whether an answer fits. Pure.

MCP's restricted schemas: https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation#requested-schema
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

FORM_BYTES = 16 * 1024
"""Bytes of a form's schema."""
MESSAGE_CHARS = 4096
"""Characters of the message that goes with a form."""
MOST_FIELDS = 32
MOST_CHOICES = 256
ANSWER_CHARS = 16_384
"""Characters of one text in an answer, if the form allows that many."""


class UnsupportedForm(ValueError):
    """A form that is not supported. The message is for the author of the tool."""


class Choice(msgspec.Struct, frozen=True):
    """One of several values. `title` is for people."""

    const: str


Choices = Annotated[tuple[str, ...], Meta(min_length=1, max_length=MOST_CHOICES)]
Titled = Annotated[tuple[Choice, ...], Meta(min_length=1, max_length=MOST_CHOICES)]


class Items(msgspec.Struct, frozen=True, rename="camel"):
    """The values that may be chosen together."""

    enum: Choices | None = None
    any_of: Titled | None = None


class Field(msgspec.Struct, frozen=True, rename="camel"):
    """One field of a form, in the terms of JSON Schema."""

    type: Literal["string", "number", "integer", "boolean", "array"]
    enum: Choices | None = None
    one_of: Titled | None = None
    items: Items | None = None
    min_length: int = 0
    max_length: int = ANSWER_CHARS
    minimum: float | None = None
    maximum: float | None = None
    min_items: int = 0
    max_items: int = MOST_CHOICES

    @property
    def choices(self) -> tuple[str, ...] | None:
        """The values that may be chosen; None if the user writes one."""
        source = self.items or self
        titled = source.any_of if isinstance(source, Items) else source.one_of
        return source.enum if titled is None else tuple(choice.const for choice in titled)


class Form(msgspec.Struct, frozen=True):
    """A flat object. `required`: the fields that an answer must have."""

    type: Literal["object"]
    properties: Annotated[dict[str, Field], Meta(max_length=MOST_FIELDS)]
    required: tuple[str, ...] = ()


def form_of(schema: str) -> Form:
    """Read a form's schema. Raises UnsupportedForm."""
    if len(schema.encode("utf-8", "replace")) > FORM_BYTES:
        raise UnsupportedForm(f"A form's schema has {FORM_BYTES} bytes at most.")
    try:
        form = msgspec.json.decode(schema.encode(), type=Form)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise UnsupportedForm(f"A form is a flat object of plain fields: {error}.") from None
    if unknown := set(form.required) - form.properties.keys():
        raise UnsupportedForm(f"A form requires {min(unknown)!r}, which is not one of its fields.")
    return form


def validation_error(form: Form, content: dict[str, Any]) -> str | None:
    """Return why an answer does not fit the form; None if it does."""
    return next(_misfits(form, content), None)


def _misfits(form: Form, content: dict[str, Any]) -> Iterator[str]:
    for name in form.required:
        if name not in content:
            yield f"{name} is missing"
    for name, value in content.items():
        field = form.properties.get(name)
        if field is None:
            yield f"{name} was not asked for"
        elif (wanted := _unmet(field, value)) is not None:
            yield f"{name} must be {wanted}"


def _unmet(field: Field, value: Any) -> str | None:
    """Return what a value should be; None if it fits."""
    match field.type:
        case "boolean":
            return None if isinstance(value, bool) else "true or false"
        case "integer" | "number":
            return _unmet_number(field, value)
        case "string":
            return _unmet_text(field, value)
        case "array":
            return _unmet_choices(field, value)


def _unmet_number(field: Field, value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "a number"
    if field.type == "integer" and value != value // 1:
        return "a whole number"
    if field.minimum is not None and value < field.minimum:
        return f"{field.minimum:g} or more"
    if field.maximum is not None and value > field.maximum:
        return f"{field.maximum:g} or less"
    return None


def _unmet_text(field: Field, value: Any) -> str | None:
    if not isinstance(value, str):
        return "a text"
    if field.choices is not None:
        return None if value in field.choices else "one of the choices"
    if not field.min_length <= len(value) <= min(field.max_length, ANSWER_CHARS):
        return f"{field.min_length} to {min(field.max_length, ANSWER_CHARS)} characters"
    return None


def _unmet_choices(field: Field, value: Any) -> str | None:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        return "a list of choices"
    if field.choices is not None and not set(value) <= set(field.choices):
        return "a list of the choices"
    if not field.min_items <= len(value) <= min(field.max_items, MOST_CHOICES):
        return f"{field.min_items} to {min(field.max_items, MOST_CHOICES)} choices"
    return None
