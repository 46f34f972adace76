"""How much a model should reason, and other variables of its chat template, by any of its fields' names. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from connections.openai.problems import invalid
from connections.openai.requests.models import ChatRequest
from connections.protocol.errors import field_message
from engine.reply_spec import TemplateValue

MAX_VARIABLES = 32
MAX_VALUE_CHARS = 4096
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\Z")
_EFFORT = re.compile(r"[a-z]{1,16}\Z")
_EFFORTS = {"none": "off", "off": "off", "auto": "auto", "default": "auto"}
_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})
"""Variables of a template that come from other fields, or can't be set."""


def reasoning_of(request: ChatRequest) -> tuple[str, str]:
    """Return the reasoning (`auto`, `off` or an effort) and its field, empty if there is none. Raises Problem."""
    for field, effort in _requested_efforts(request):
        if not _EFFORT.match(effort):
            raise invalid(field, field_message(field, "must be none, or a word like low, medium or high."))
        if (known := _EFFORTS.get(effort, effort)) != "auto":
            return known, field
    return "auto", ""


def template_of(request: ChatRequest) -> dict[str, TemplateValue]:
    """Return the other variables of the chat template. Raises Problem."""
    variables: dict[str, TemplateValue] = {}
    if request.enable_thinking or request.think is True or _is_enabled(request):
        variables["enable_thinking"] = True
    given = request.chat_template_kwargs or {}
    if len(given) > MAX_VARIABLES:
        why = f"may have at most {MAX_VARIABLES} variables."
        raise invalid("chat_template_kwargs", field_message("chat_template_kwargs", why))
    for name, value in given.items():
        _check(name, value)
    return variables | given


def template_field(request: ChatRequest) -> str:
    """Return the field with variables of the template."""
    if request.chat_template_kwargs:
        return "chat_template_kwargs"
    fields = {
        "enable_thinking": request.enable_thinking,
        "think": request.think,
        "thinking": request.thinking,
    }
    return next((field for field, value in fields.items() if value), "reasoning")


def shows_reasoning(request: ChatRequest) -> bool:
    """Return whether reasoning is sent."""
    is_excluded = request.reasoning is not None and request.reasoning.exclude
    return request.include_reasoning is not False and not is_excluded


def _requested_efforts(request: ChatRequest) -> Iterator[tuple[str, str]]:
    if request.reasoning_effort is not None:
        yield "reasoning_effort", request.reasoning_effort
    if (reasoning := request.reasoning) is not None:
        yield "reasoning.effort", reasoning.effort or "auto"
        yield "reasoning", "off" if reasoning.enabled is False else "auto"
    if request.think is not None:
        yield "think", request.think if isinstance(request.think, str) else _word(request.think)
    if request.thinking is not None:
        yield "thinking", {"disabled": "off", "enabled": "auto"}.get(request.thinking.type, "")
    if request.enable_thinking is not None:
        yield "enable_thinking", _word(request.enable_thinking)


def _word(thinks: bool) -> str:  # noqa: FBT001 - as it stands in the request
    return "auto" if thinks else "off"


def _is_enabled(request: ChatRequest) -> bool:
    by_word = request.thinking is not None and request.thinking.type == "enabled"
    return by_word or bool(request.reasoning is not None and request.reasoning.enabled)


def _check(name: str, value: TemplateValue) -> None:
    where = "chat_template_kwargs"
    if not _VARIABLE.match(name) or name in _RESERVED:
        raise invalid(where, field_message(where, "has a name that no variable of a template can have here."))
    if isinstance(value, str) and len(value) > MAX_VALUE_CHARS:
        where = f"{where}.{name}"
        raise invalid(where, field_message(where, f"may have at most {MAX_VALUE_CHARS} characters."))
