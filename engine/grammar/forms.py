"""How a model writes its calls and its thoughts, as far as a grammar has to know it. Values alone."""

from __future__ import annotations

import msgspec


class CallForm(msgspec.Struct, frozen=True):
    """A call is JSON between `opening` and `closing`: an object with a name and with arguments, in this order.

    `as_list`: all calls of a reply are one list between them; else each call has an opening and a closing of its own.
    A little white space may stand where the opening ends and where the closing begins; the JSON is compact.
    """

    opening: str = "<tool_call>\n"
    closing: str = "\n</tool_call>"
    name_key: str = "name"
    arguments_key: str = "arguments"
    as_list: bool = False


class ThoughtForm(msgspec.Struct, frozen=True):
    """Thoughts stand before the reply, between `opening` and `closing`. `opened`: the prompt ends with the opening."""

    opening: str = "<think>"
    closing: str = "</think>"
    opened: bool = False


HERMES = CallForm()
"""As Hermes and Qwen write calls."""
