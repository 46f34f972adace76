"""The text of a grammar, and the bounds on what is read. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from engine.errors import PromptRejected

MAX_BYTES = 256 * 1024
"""The largest schema, pattern or grammar; also the most that the schemas of all tools have together."""
MAX_DEPTH = 64
"""How deeply the brackets of a JSON Schema may be nested."""

_OLD_DRAFTS = ("draft-00", "draft-01", "draft-02", "draft-03")
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NO_BRACKETS = re.compile(r"[^\[\]{}]+")


class GrammarSource(msgspec.Struct, frozen=True):
    """A grammar as llguidance reads it: a list of grammars in JSON. A reply begins with the first one.

    `controls`: the control tokens that the reply may have, besides those that end it. A user's grammar may name others,
    but they are never allowed: only templates write control tokens, and later prompts spell the reply as plain text.
    """

    text: str
    controls: tuple[int, ...] = ()

    @property
    def digest(self) -> bytes:
        """A key of 16 bytes that no other grammar has."""
        return blake2b(self.text.encode(), digest_size=16).digest()


def check_size(text: str, field: str) -> None:
    """Raise PromptRejected for a text that is too long."""
    if len(text.encode()) > MAX_BYTES:
        raise PromptRejected(f"The {field} may have at most {MAX_BYTES // 1024} KiB.", field=field)


def read_schema(text: str, field: str) -> dict[str, msgspec.Raw]:
    """Return the keywords of a JSON Schema with their values as written. `true` has no keywords.

    Raises PromptRejected if the text is too long, nested too deeply, or no schema.
    """
    check_size(text, field)
    if nesting(text) > MAX_DEPTH:
        raise PromptRejected(f"The {field} may be nested at most {MAX_DEPTH} deep.", field=field)
    try:
        msgspec.json.decode(text)
        read = msgspec.json.decode(text, type=dict[str, msgspec.Raw] | bool)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise PromptRejected(f"The {field} has no valid JSON Schema: {error}.", field=field) from error
    if read is False:
        raise PromptRejected(f"The {field} has a schema that allows nothing.", field=field)
    return {} if read is True else read


def check_draft(schema: Mapping[str, msgspec.Raw], field: str) -> None:
    """Raise PromptRejected for a schema of draft 3 or older, whose keywords llguidance does not follow."""
    named = bytes(schema.get("$schema", b"")).decode()
    if any(draft in named for draft in _OLD_DRAFTS):
        raise PromptRejected(
            f"The {field} has a schema of draft 3 or older: draft 4 is the first.", field=field
        )


def nesting(text: str) -> int:
    """Return how deeply the brackets of a JSON text are nested. Those in its strings do not count."""
    deepest = now = 0
    for one in _NO_BRACKETS.sub("", _STRING.sub("", text)):
        now += 1 if one in "[{" else -1
        deepest = max(deepest, now)
    return deepest


class CallForm(msgspec.Struct, frozen=True):
    """A call is JSON between `opening` and `closing`: an object with a name and arguments, in this order.

    `as_list`: all calls of a reply are one list between the two marks. `between`: separates calls that share an opening.
    Without these, each call has an opening and a closing of its own. `bare`: calls without any text may lack the opening.
    `name_end`: separates a name from its arguments; there is no object around both then. `id_mark`: precedes an optional
    id, which comes before `name_end`.
    A little white space may follow the opening and precede the closing. The JSON is compact.
    """

    opening: str = "<tool_call>\n"
    closing: str = "\n</tool_call>"
    name_key: str = "name"
    arguments_key: str = "arguments"
    as_list: bool = False
    between: str = ""
    bare: bool = False
    name_end: str = ""
    id_mark: str = ""


class ThoughtForm(msgspec.Struct, frozen=True):
    """Thoughts come before the reply, between `opening` and `closing`. `opened`: the prompt ends with the opening."""

    opening: str = "<think>"
    closing: str = "</think>"
    opened: bool = False


HERMES_FORM = CallForm()
"""How Hermes and Qwen write calls."""
LLAMA_FORM = CallForm("<|python_tag|>", "", arguments_key="parameters", between=";", bare=True)
"""How Llama 3 writes calls."""
MISTRAL_LIST_FORM = CallForm("[TOOL_CALLS]", "", as_list=True)
"""How Mistral writes calls from 7B v0.3 to Small 3.1."""
MISTRAL_NAMED_FORM = CallForm("[TOOL_CALLS]", "", name_end="[ARGS]", id_mark="[CALL_ID]")
"""How Mistral writes calls since Small 3.2."""
