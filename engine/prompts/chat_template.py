"""One tokenizer's chat template: tries what it supports, and renders messages with it."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import jinja2.meta
import msgspec
from transformers.utils.chat_template_utils import render_jinja_template

from engine.errors import PromptRejected
from engine.history import TemplateRules
from engine.messages import Message, ToolCall
from engine.parsing.format_detection import templates_text
from engine.prompts.control_tokens import parsed_template
from engine.reply_spec import ReplySpec, TemplateValue, Tool
from engine.vision.image import IMAGE, Image, in_order

Mark = Callable[[Any], Any]
"""Applied to everything that people and models wrote."""

TemplateMessage = dict[str, Any]

SHORT_ID = 9
"""The number of letters and digits that Mistral's templates require of a call's id."""

SWITCHES = ("enable_thinking", "thinking")
"""The variables of templates that switch a model's reasoning on or off."""

EFFORT = "reasoning_effort"
_PROBE = "Midstream asks whether this line is kept."
_HELLO = Message("user", "Hello.")
_LOOK = Message("user", "Hello.", images=(Image("", "image/png", 1, 1),))
_CALLED, _UNCALLED = "probed_tool", "tool_that_is_shown"

_PROBED_TOOLS = (Tool(_CALLED), Tool(_UNCALLED))
"""Both tools are offered, and one is called. The other's name appears only if the template shows tools."""


@dataclass(frozen=True, slots=True)
class CallStyle:
    """The style that a template requires. `short_ids`: ids of calls have nine letters or digits.

    `single`: one call a message. `parts`: contents are lists of parts, as for models that take images.
    """

    short_ids: bool = False
    single: bool = False
    parts: bool = False

    def id_of(self, call_id: str) -> str:
        """Return the id of a call for the template."""
        if not self.short_ids:
            return call_id
        return hashlib.sha256(call_id.encode(errors="surrogatepass")).hexdigest()[:SHORT_ID]


def as_is(data: Any) -> Any:
    """Return what was said, unchanged: the `Mark` of a plain prompt."""
    return data


PLAIN_STYLE = CallStyle()


def template_messages(messages: Sequence[Message], style: CallStyle, mark: Mark) -> list[TemplateMessage]:
    """Return messages in the form that a template reads."""
    names: dict[str, str] = {}
    made = []
    for message in parted(messages) if style.single else messages:
        names |= {call.call_id: call.name for call in message.calls}
        made.append(_template_message(message, names, style, mark))
    return made


def template_tools(tools: Sequence[Tool], mark: Mark) -> list[dict[str, Any]] | None:
    """Return tools in the form that a template reads; None if there are none. Raises PromptRejected."""
    return [_template_tool(tool, mark) for tool in tools] or None


def parted(messages: Sequence[Message]) -> list[Message]:
    """Give each call of a message a message of its own, followed by its result. The results follow the calls in order."""
    made: list[Message] = []
    taken = 0
    for n, message in enumerate(messages):
        results = messages[n + 1 : n + 1 + len(message.calls)]
        if len(message.calls) > 1 and len(results) == len(message.calls):
            for place, (call, result) in enumerate(zip(message.calls, results, strict=True)):
                first = message if place == 0 else Message("assistant", "")
                made += [msgspec.structs.replace(first, calls=(call,), written=""), result]
            taken = n + 1 + len(results)
        elif n >= taken:
            made.append(message)
    return made


def _template_message(
    message: Message, names: dict[str, str], style: CallStyle, mark: Mark
) -> TemplateMessage:
    made: TemplateMessage = {"role": message.role, "content": _content(message, style, mark)}
    if message.reasoning:
        made["reasoning_content"] = mark(message.reasoning)
    if message.calls:
        made["tool_calls"] = [_template_call(call, style, mark) for call in message.calls]
    if message.role == "tool":
        made["tool_call_id"] = mark(style.id_of(message.call_id))
        if message.call_id in names:
            made["name"] = mark(names[message.call_id])
    return made


def _content(message: Message, style: CallStyle, mark: Mark) -> Any:
    if not style.parts:
        return mark(message.content)
    parts = [
        {"type": "text", "text": mark(part)} if isinstance(part, str) else {"type": "image"}
        for part in in_order(message.content, message.images)
    ]
    return parts or [{"type": "text", "text": ""}]


def _template_call(call: ToolCall, style: CallStyle, mark: Mark) -> dict[str, Any]:
    function = {"name": mark(call.name), "arguments": mark(_object(call.arguments))}
    return {"type": "function", "id": mark(style.id_of(call.call_id)), "function": function}


def _template_tool(tool: Tool, mark: Mark) -> dict[str, Any]:
    try:
        parameters = msgspec.json.decode(tool.parameters, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        why = f"The parameters of the tool {tool.name!r} are no JSON Schema of an object: {error}."
        raise PromptRejected(why, field="tools") from error
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": {key: mark(value) for key, value in function.items()}}


def _object(arguments: str) -> Any:
    """Return arguments as an object. Malformed ones, which another model may have written, stay text."""
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return arguments


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
