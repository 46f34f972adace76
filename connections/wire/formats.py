"""The formats that a reply may be held to, as `params.format` names them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta


class JsonSchemaFormat(msgspec.Struct, frozen=True, kw_only=True, tag="json_schema", tag_field="type"):
    """The reply is JSON that a schema allows. It always is, whatever `strict` says."""

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
