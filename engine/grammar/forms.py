"""How a model writes its calls and its thoughts, as far as a grammar has to know it. Only values."""

from __future__ import annotations

import msgspec


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


HERMES = CallForm()
"""How Hermes and Qwen write calls."""
LLAMA = CallForm("<|python_tag|>", "", arguments_key="parameters", between=";", bare=True)
"""How Llama 3 writes calls."""
MISTRAL_LIST = CallForm("[TOOL_CALLS]", "", as_list=True)
"""How Mistral writes calls from 7B v0.3 to Small 3.1."""
MISTRAL_NAMED = CallForm("[TOOL_CALLS]", "", name_end="[ARGS]", id_mark="[CALL_ID]")
"""How Mistral writes calls since Small 3.2."""
