"""The text of a grammar, and how much of one is read at all. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from engine.errors import PromptRejected

MAX_BYTES = 256 * 1024
"""Of a schema, a pattern, a grammar, or the schemas of all tools together."""
MAX_DEPTH = 64
"""How deep the brackets of a JSON Schema may be nested."""

_OLD_DRAFTS = ("draft-00", "draft-01", "draft-02", "draft-03")
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NO_BRACKETS = re.compile(r"[^\[\]{}]+")


class Source(msgspec.Struct, frozen=True):
    """A grammar as llguidance reads it: a list of grammars in JSON, the first of which is where a reply begins.

    `controls`: the control tokens that may be in the reply, beside those that end it. A user's grammar may name others,
    and gets none of them: only the template writes control tokens, and a reply is spelled again in later prompts.
    """

    text: str
    controls: tuple[int, ...] = ()

    @property
    def digest(self) -> bytes:
        """What it is known by: the same for the same grammar alone."""
        return blake2b(self.text.encode(), digest_size=16).digest()


def check_size(text: str, field: str) -> None:
    """Raises PromptRejected for a text that is too long to be read."""
    if len(text.encode()) > MAX_BYTES:
        raise PromptRejected(f"The {field} may have at most {MAX_BYTES // 1024} KiB.", field=field)


def read_schema(text: str, field: str) -> dict[str, msgspec.Raw]:
    """Return the keywords of a JSON Schema, each as it was written. `true` has none.

    Raises PromptRejected where the text is too long, nested too deeply, or no schema.
    """
    check_size(text, field)
    if nesting(text) > MAX_DEPTH:
        raise PromptRejected(f"The {field} may be nested at most {MAX_DEPTH} deep.", field=field)
    try:
        msgspec.json.decode(text)
        read = msgspec.json.decode(text, type=dict[str, msgspec.Raw] | bool)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise PromptRejected(f"The {field} has no JSON Schema: {error}.", field=field) from error
    if read is False:
        raise PromptRejected(f"The {field} has a schema that allows nothing.", field=field)
    return {} if read is True else read


def check_draft(schema: Mapping[str, msgspec.Raw], field: str) -> None:
    """Raises PromptRejected for a schema of a draft whose keywords nobody would follow."""
    named = bytes(schema.get("$schema", b"")).decode()
    if any(draft in named for draft in _OLD_DRAFTS):
        raise PromptRejected(
            f"The {field} has a schema of draft 3 or older: draft 4 is the first.", field=field
        )


def nesting(text: str) -> int:
    """How deep the brackets of a JSON text are nested; those in its strings do not count."""
    deepest = now = 0
    for one in _NO_BRACKETS.sub("", _STRING.sub("", text)):
        now += 1 if one in "[{" else -1
        deepest = max(deepest, now)
    return deepest
