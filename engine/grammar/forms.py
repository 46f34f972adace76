"""How a model writes its calls and its thoughts, as far as a grammar has to know it. Values alone."""

from __future__ import annotations

import msgspec


class CallForm(msgspec.Struct, frozen=True):
    """A call is JSON between `opening` and `closing`: an object with a name and with arguments, in this order.

    `as_list`: all calls of a reply are one list between them; `between`: what parts them where they share the opening;
    else each call has an opening and a closing of its own. `bare`: calls that are all of a reply may lack the opening.
    `name_end`: stands between a name and its arguments, which are no members of an object then. `id_mark`: before that
    an id may stand, behind this mark.
    A little white space may stand where the opening ends and where the closing begins; the JSON is compact.
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
    """Thoughts stand before the reply, between `opening` and `closing`. `opened`: the prompt ends with the opening."""

    opening: str = "<think>"
    closing: str = "</think>"
    opened: bool = False


HERMES = CallForm()
"""As Hermes and Qwen write calls."""
LLAMA = CallForm("<|python_tag|>", "", arguments_key="parameters", between=";", bare=True)
"""As Llama 3 does."""
MISTRAL_LIST = CallForm("[TOOL_CALLS]", "", as_list=True)
"""As Mistral does from 7B v0.3 to Small 3.1."""
MISTRAL_NAMED = CallForm("[TOOL_CALLS]", "", name_end="[ARGS]", id_mark="[CALL_ID]")
"""As Mistral does since Small 3.2."""
