"""One tokenizer's chat template: tries what it supports, and renders messages with it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import jinja2.meta
from transformers.utils.chat_template_utils import render_jinja_template

from engine.errors import PromptRejected
from engine.history import TemplateRules
from engine.images.image import Image
from engine.images.tiling import IMAGE
from engine.messages import Message, ToolCall
from engine.parsing.format_detection import templates_text
from engine.prompts.control_tokens import parsed_template
from engine.prompts.template_messages import (
    CallStyle,
    TemplateMessage,
    as_is,
    template_messages,
    template_tools,
)
from engine.reply_spec import ReplySpec, TemplateValue, Tool

SWITCHES = ("enable_thinking", "thinking")
"""The variables of templates that switch a model's reasoning on or off."""

EFFORT = "reasoning_effort"

_PROBE = "Midstream asks whether this line is kept."
_HELLO = Message("user", "Hello.")
_LOOK = Message("user", "Hello.", images=(Image("", "image/png", 1, 1),))


@dataclass(frozen=True, slots=True)
class TemplateInputs:
    """The inputs of a template, in the form that it reads. `variables`: its inputs beside messages and tools."""

    messages: list[TemplateMessage]
    tools: list[dict[str, Any]] | None = None
    variables: dict[str, TemplateValue] = field(default_factory=dict)


class ChatTemplate:
    """Renders prompts. `rules`: the histories that it accepts. `calls`: the style of calls; None if it shows none.

    `style`: the style of messages. `shows_images`: it has a place for each image.
    """

    def __init__(self, tokenizer: Any, *, parts: bool = False) -> None:
        """Take a transformers tokenizer with a chat template, and try what that supports. `parts`: see `CallStyle`."""
        self._tokenizer = tokenizer
        self.style = CallStyle(parts=parts)
        self.text = templates_text(tokenizer)
        self._variables = _variables_of(self.text)
        self._reserved = _reserved_names(tokenizer)
        self.calls = self._call_style()
        self.style = self.calls or self.style
        self.rules = self._rules()
        self.shows_images = parts and IMAGE in self._try([_LOOK])

    @property
    def switches_reasoning(self) -> bool:
        """Whether it has a variable for reasoning."""
        return not self._variables.isdisjoint((*SWITCHES, EFFORT))

    def render(self, inputs: TemplateInputs, *, continues: bool = False) -> str:
        """Return the prompt for the next reply, or with `continues` one that ends within the last message.

        Raises what templates and transformers raise: jinja2.TemplateError, ValueError, TypeError.
        """
        text: str = self._tokenizer.apply_chat_template(
            inputs.messages,
            tools=inputs.tools,
            tokenize=False,
            add_generation_prompt=not continues,
            continue_final_message=continues,
            **inputs.variables,
        )
        return text

    def variables(self, spec: ReplySpec) -> dict[str, TemplateValue]:
        """Return the variables of a prompt beside messages and tools. Raises PromptRejected."""
        reserved = sorted(self._reserved.intersection(spec.template))
        if reserved:
            why = f"{', '.join(reserved)}: not a variable of a chat template."
            raise PromptRejected(why, field="template")
        return self._reasoning(spec.reasoning) | spec.template

    def _reasoning(self, mode: str) -> dict[str, TemplateValue]:
        switches = [name for name in SWITCHES if name in self._variables]
        if mode == "auto":
            return {}
        if mode == "least":
            lowest: dict[str, TemplateValue] = {EFFORT: "low"} if EFFORT in self._variables else {}
            return dict.fromkeys(switches, False) if switches else lowest
        if mode == "off":
            if not switches:
                raise PromptRejected("The model's reasoning can't be switched off.", field="reasoning")
            return dict.fromkeys(switches, False)
        effort: dict[str, TemplateValue] = {EFFORT: mode} if self.knows_efforts else {}
        return effort | dict.fromkeys(switches, True)

    @property
    def knows_efforts(self) -> bool:
        """Whether the template has efforts of reasoning; without them an effort only switches reasoning on."""
        return EFFORT in self._variables

    def _rules(self) -> TemplateRules:
        """Try histories that strict templates refuse or shorten."""
        system, late = (Message("system", f"{_PROBE} {n}") for n in range(2))
        first, second = (Message("user", f"Question {n}.") for n in range(2))
        reply, more = (Message("assistant", f"Answer {n}.") for n in range(2))
        calls = (ToolCall("call_01234567890", _CALLED, "{}"),)
        call, both = (Message("assistant", text, calls=calls) for text in ("", "I look."))
        result = Message("tool", "A result.", call_id="call_01234567890")

        def accepts(*messages: Message, tools: Sequence[Tool] = ()) -> bool:
            text = self._try(messages, tools=tools)
            return bool(text) and all(message.content in text for message in messages)

        places: Literal["anywhere", "first", "nowhere"] = "nowhere"
        if accepts(system, first):
            is_free = accepts(system, late, first) and accepts(system, first, reply, late, second)
            places = "anywhere" if is_free and accepts(first, late) else "first"
        return TemplateRules(
            system=places,
            tools=self.calls is not None,
            repeats=accepts(first, second) and accepts(first, reply, more, second),
            user_after_tool=accepts(first, call, result, second, tools=_PROBED_TOOLS),
            opens_with_any=accepts(reply, first) and (places == "nowhere" or accepts(system)),
            empty=accepts(Message("user", "")),
            text_with_calls=self.calls is None or accepts(first, both, result, tools=_PROBED_TOOLS),
        )

    def _call_style(self) -> CallStyle | None:
        """Try calls with ordinary ids, then with short ones. Returns the style that works; None if none does."""
        for style in (self.style, replace(self.style, short_ids=True)):
            if self._knows_calls(style, 1):
                return replace(style, single=not self._knows_calls(style, 2))
        return None

    def _knows_calls(self, style: CallStyle, count: int) -> bool:
        """Return whether the template shows tools, calls and their results."""
        calls = [
            ToolCall(f"call_0123456789{n}", _CALLED, f'{{"probe": "value {n} of a call"}}')
            for n in range(count)
        ]
        results = [Message("tool", f"{_PROBE} {call.call_id}", call_id=call.call_id) for call in calls]
        text = self._try(
            [_HELLO, Message("assistant", "", calls=tuple(calls)), *results], style, _PROBED_TOOLS
        )
        shown = [_UNCALLED, *(result.content for result in results)]
        return all(each in text for each in (*shown, *(f"value {n} of a call" for n in range(count))))

    def _try(
        self, messages: Sequence[Message], style: CallStyle | None = None, tools: Sequence[Tool] = ()
    ) -> str:
        """Return the text of messages, or an empty string if the template refuses them."""
        shown = template_messages(messages, style or self.style, as_is)
        inputs = TemplateInputs(shown, template_tools(tools, as_is))
        try:
            return self.render(inputs)
        except Exception:  # noqa: BLE001 - a template may raise anything for what it does not know
            return ""


_CALLED, _UNCALLED = "probed_tool", "tool_that_is_shown"
_PROBED_TOOLS = (Tool(_CALLED), Tool(_UNCALLED))
"""Both tools are offered, and one is called. The other's name appears only if the template shows tools."""


def _variables_of(template: str) -> frozenset[str]:
    """Return the names that a template reads and does not set itself first."""
    return frozenset(jinja2.meta.find_undeclared_variables(parsed_template(template)))


def _reserved_names(tokenizer: Any) -> frozenset[str]:
    """Return the names that can't be variables: transformers' own parameters, and the tokenizer's special tokens."""
    return frozenset(
        (
            *inspect.signature(tokenizer.apply_chat_template).parameters,
            *inspect.signature(render_jinja_template).parameters,
            *tokenizer.special_tokens_map,
            "messages",
        )
    )
