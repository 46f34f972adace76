"""The formats of a reply that `params.format` may require."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta


class JsonSchemaFormat(msgspec.Struct, frozen=True, kw_only=True, tag="json_schema", tag_field="type"):
    """The reply is JSON that the schema allows, whatever `strict` says."""

    schema: dict[str, Any]
    strict: bool = True


class JsonObjectFormat(msgspec.Struct, frozen=True, kw_only=True, tag="json_object", tag_field="type"):
    """The reply is some JSON object."""


class RegexFormat(msgspec.Struct, frozen=True, kw_only=True, tag="regex", tag_field="type"):
    """The reply matches a regular expression as a whole."""

    pattern: Annotated[str, Meta(min_length=1)]


class GrammarFormat(msgspec.Struct, frozen=True, kw_only=True, tag="grammar", tag_field="type"):
    """The reply is a sentence of a grammar in Lark's notation."""

    lark: Annotated[str, Meta(min_length=1)]


Format = JsonSchemaFormat | JsonObjectFormat | RegexFormat | GrammarFormat
