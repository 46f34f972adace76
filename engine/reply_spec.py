"""The spec of a reply beside its sampling: tools, format, reasoning."""

from __future__ import annotations

from typing import Literal

import msgspec


class Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool that a model may call. `parameters`: a JSON Schema of an object, as text.

    `strict`: arguments follow the schema exactly, or the request is refused. Otherwise keywords that no grammar can
    follow are ignored.
    """

    name: str
    description: str = ""
    parameters: str = '{"type":"object","properties":{}}'
    strict: bool = False


class JsonSchema(msgspec.Struct, frozen=True, tag="json_schema", omit_defaults=True):
    """The reply is JSON that this JSON Schema, as text, allows. `strict`: as with tools."""

    schema: str
    strict: bool = True


class JsonObject(msgspec.Struct, frozen=True, tag="json_object"):
    """The reply is some JSON object."""


class Regex(msgspec.Struct, frozen=True, tag="regex"):
    """The whole reply matches a regular expression."""

    pattern: str


class Grammar(msgspec.Struct, frozen=True, tag="grammar"):
    """The reply is a sentence of this grammar, in the dialect of Lark that llguidance reads."""

    lark: str


Format = JsonSchema | JsonObject | Regex | Grammar


class Translation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reply is a translation of the last message. Only models whose facts have `languages` follow it; others refuse it.

    `target`, `source`: codes as the model names them; empty: its only one. `prefix`: the translation so far, which is
    forced; the reply is what follows it, with the blank between both, if there is one. A blank at the end of the prefix
    is left out. The prefix must be whole words, else the model may spell it in other tokens than its own. `unfinished`: the
    text goes on; a model that has learned what a beginning determines says no more than that, others don't notice.

    `draft`: how the reply may go on behind the prefix. It is computed in one pass, and what the model would have written is
    kept: so the reply is the same with any draft, and takes fewer steps with a good one. `ahead`: how many tokens the reply has
    behind what was right of the draft, at most; None: any number.
    """

    target: str = ""
    source: str = ""
    prefix: str = ""
    unfinished: bool = False
    draft: str = ""
    ahead: int | None = None


TemplateValue = str | int | float | bool | None


class ReplySpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The spec of a reply beside its sampling, which shapes the prompt and the grammar.

    `tool_choice`: `auto`, `none` (the model is not shown the tools), `required`, or `named`: the one in `tool_name`.
    `parallel_calls`: a reply may have more than one call. `reasoning`: `auto`, `off`, `least` (as little as the template
    allows), or an effort, which a model without efforts ignores.
    `template`: further variables of the chat template. `continues`: the reply continues the last message, which is the
    assistant's. `raw`: the only message is the prompt, without a template. `translation`: the last message is translated.
    """

    tools: tuple[Tool, ...] = ()
    tool_choice: Literal["auto", "none", "required", "named"] = "auto"
    tool_name: str = ""
    parallel_calls: bool = True
    format: Format | None = None
    reasoning: str = "auto"
    template: dict[str, TemplateValue] = {}
    continues: bool = False
    raw: bool = False
    translation: Translation | None = None

    @property
    def must_call(self) -> bool:
        """Whether the reply is a call: it has no text that a format could apply to."""
        return bool(self.tools) and self.tool_choice in ("required", "named")

    @property
    def shown_tools(self) -> tuple[Tool, ...]:
        """The tools that the prompt shows."""
        return () if self.tool_choice == "none" else self.tools


PLAIN = ReplySpec()
"""A plain text reply."""
