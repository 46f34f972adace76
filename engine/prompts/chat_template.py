"""One tokenizer's chat template: what it supports, and its control tokens.

Control tokens are the template's alone. If anybody else spells one out, it is plain text. Templates and tokenizers rewrite
text: a word that a template removes, or a character that a normalizer replaces, can turn harmless text into a control
token. So each prompt is rendered twice, the second time with other characters for everything that people and models wrote.
The control tokens in that second text are the template's.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

import jinja2
import jinja2.meta
import jinja2.nodes
import msgspec
from transformers.utils.chat_template_utils import render_jinja_template

from engine.errors import PromptRejected
from engine.history import TemplateRules
from engine.messages import Message, ReplySpec, TemplateValue, Tool, ToolCall
from engine.text.formats import templates_text
from engine.vision.image import IMAGE, Image, in_order


class ChatTemplate:
    """Renders prompts. `rules`: the histories that it accepts. `calls`: the style of calls; None if it shows none.

    `style`: the style of messages. `shows_images`: it has a place for each image.
    """

    def __init__(self, tokenizer: Any, *, parts: bool = False) -> None:
        """Take a transformers tokenizer with a chat template, and try what the template supports. `parts`: see `CallStyle`."""
        self._tokenizer = tokenizer
        self.style = CallStyle(parts=parts)
        self.text = templates_text(tokenizer)
        self._variables = jinja2.meta.find_undeclared_variables(parsed_template(self.text))
        self._reserved = _reserved_names(tokenizer)
        self.calls = self._call_style()
        self.style = self.calls or self.style
        self.rules = self._rules()
        self.shows_images = parts and IMAGE in self._try([_LOOK])

    @property
    def switches_reasoning(self) -> bool:
        """Whether the template has a variable for reasoning."""
        return not self._variables.isdisjoint((*SWITCHES, EFFORT))

    def render(
        self,
        messages: list[TemplateMessage],
        tools: list[dict[str, Any]] | None,
        variables: dict[str, Any],
        *,
        continues: bool = False,
    ) -> str:
        """Return the prompt for the next reply, or with `continues` one that ends within the last message.

        `messages` and `tools` are in the form that the template reads; `variables`: its other inputs.
        Raises what templates and transformers raise: jinja2.TemplateError, ValueError, TypeError.
        """
        text: str = self._tokenizer.apply_chat_template(
            messages,
            tools=tools,
            tokenize=False,
            add_generation_prompt=not continues,
            continue_final_message=continues,
            **variables,
        )
        return text

    def variables(self, spec: ReplySpec) -> dict[str, TemplateValue]:
        """Return the template's inputs other than messages and tools. Raises PromptRejected."""
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
        """Whether the template has levels of effort; without them an effort only switches reasoning on."""
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
        """Return the prompt made of messages, or an empty string if the template refuses them."""
        shown = template_messages(messages, style or self.style, as_is)
        try:
            return self.render(shown, template_tools(tools, as_is), {})
        except Exception:  # noqa: BLE001 - a template may raise anything for what it does not know
            return ""


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


Mark = Callable[[Any], Any]
"""A function for everything that people and models wrote."""
TemplateMessage = dict[str, Any]

SHORT_ID = 9
"""The number of letters and digits that Mistral's templates require of a call's id."""

SWITCHES = ("enable_thinking", "thinking")
"""The template variables that switch a model's reasoning on or off."""
EFFORT = "reasoning_effort"
_PROBE = "Midstream asks whether this line is kept."
_HELLO = Message("user", "Hello.")
_LOOK = Message("user", "Hello.", images=(Image("", "image/png", 1, 1),))
_CALLED, _UNCALLED = "probed_tool", "tool_that_is_shown"

_PROBED_TOOLS = (Tool(_CALLED), Tool(_UNCALLED))
"""Both tools are offered, and one is called. The other's name appears only if the template shows tools."""


def as_is(data: Any) -> Any:
    """Return `data` unchanged: the `Mark` of a plain prompt."""
    return data


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
    """Give each call of a message a message of its own, followed by its result. Results must be in the order of calls."""
    made: list[Message] = []
    taken = 0
    for n, message in enumerate(messages):
        results = messages[n + 1 : n + 1 + len(message.calls)]
        if len(message.calls) > 1 and len(results) == len(message.calls):
            for place, (call, result) in enumerate(zip(message.calls, results, strict=True)):
                first = message if place == 0 else Message("assistant", "")
                made += [msgspec.structs.replace(first, calls=(call,)), result]
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
        why = f"The parameters of the tool {tool.name!r} are not a JSON Schema of an object: {error}."
        raise PromptRejected(why, field="tools") from error
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": {key: mark(value) for key, value in function.items()}}


def _object(arguments: str) -> Any:
    """Return arguments as an object. Malformed ones, which another model may have written, stay text."""
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return arguments


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


_BASE = 0x12000
"""The start of cuneiform, which replaces ASCII: no template or normalizer knows its caseless letters."""

_BEGINS, _ENDS = 0x40000, 0x50000
"""The first marks before and after the template's words in a disguised text, in which those stay readable.

Each word has marks of its own, from planes in which no character is assigned.
"""

_STAYS = '"\\'
"""The ASCII that is not disguised, besides white space, since JSON escapes it."""
_GENERATION = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")

PLACEHOLDER = re.compile(r"w[0-9a-f]{12}[ct]z")
"""Matches words that stand for a text in a prompt, to be found again. No control token can contain one."""


class ControlTokens:
    """The special tokens of a tokenizer, and the added tokens that its chat template or its reply format uses.

    transformers has the same rule, but looks only into the template's literals, so it misses some of these tokens.
    """

    def __init__(self, tokenizer: Any, template: str, markers: Iterable[str] = ()) -> None:
        """Take a transformers tokenizer, its chat template, and the markers of its reply format."""
        named = {*(getattr(tokenizer, "chat_control_tokens", None) or ()), *markers}
        tokens = {
            id_: token.content
            for id_, token in tokenizer.added_tokens_decoder.items()
            if token.special
            or token.content in named
            or (token.content in template and not token.content.isspace())
        }
        self.ids = frozenset(tokens)
        self._unknown: int | None = tokenizer.unk_token_id
        self.id_of = {name: id_ for id_, name in tokens.items()}
        self._unknown_name = next((name for id_, name in tokens.items() if id_ == self._unknown), "")
        names = sorted(tokens.values(), key=len, reverse=True)
        tree = parsed_template(template)
        words = {node.value for node in tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str)}
        attributes = {node.attr for node in tree.find_all(jinja2.nodes.Getattr)}
        self._names = _any_of(names)
        readable = {
            word for word in words if word.strip() and (word in self.id_of or not self._names.search(word))
        }
        self._words = _any_of(sorted(readable, key=len, reverse=True))
        self._marked = {
            word: f"{chr(_BEGINS + place)}{word}{chr(_ENDS + place)}"
            for place, word in enumerate(sorted(readable.union(names)))
        }
        marks = [range(first, first + len(self._marked)) for first in (_BEGINS, _ENDS)]
        begins, ends = (f"[{''.join(map(chr, each)) or chr(each.start)}]" for each in marks)
        self._written = re.compile(f"({begins}?)({self._names.pattern})({ends}?)")
        self._keys = frozenset(
            word for word in words | attributes if re.fullmatch(r"[\w$]+", word)
        ).difference(names)
        theirs = {ord(char) for name in names for char in name if not char.isascii()}
        shown = [code for code in range(0x21, 0x7F) if chr(code) not in _STAYS]
        self._disguise: dict[int, int | str | None] = {code: _BASE + code for code in shown}
        self._disguise |= {code: _BASE + 0x80 + place for place, code in enumerate(sorted(theirs))}
        true = {other: code for code, other in self._disguise.items() if isinstance(other, int)}
        self._no_marks = dict.fromkeys(chain(*marks))
        self._true_text = {**true, **self._no_marks}
        self._disguise |= {**dict.fromkeys(true, "\ufffd"), **self._no_marks}
        self._known = self.ids - {self._unknown}

    def disguised(self, data: Any) -> Any:
        """Return a value in which no text, nor key of an object, can become a control token or a part of one.

        The template's own words stay readable in it, except those that contain a control token and more. `true` restores a text.
        """
        return self._changed(data, self._disguised)

    def quoted(self, data: Any) -> Any:
        """Return a value with only its control tokens marked as text, for templates that fail on `disguised` values."""
        return self._changed(data, self._quoted)

    def blank(self, data: Any) -> Any:
        """Return a value with digests in place of texts, in which the template finds none of its words."""
        return self._changed(data, _digest)

    def are_cut(self, disguised: str) -> bool:
        """Return whether a control token in a disguised text has a mark next to it, but not both of its own."""
        return any(self._is_cut(found) for found in self._written.finditer(disguised))

    def settled(self, disguised: str, blank: str) -> str:
        """Return a disguised text without the marks beside control tokens that the template wrote itself.

        Such tokens are the template's if it writes as many in `blank`, where it finds no words. Otherwise they may be parts
        of somebody's text, from which the template cut a mark.
        """
        found = list(self._written.finditer(disguised))
        counts = Counter(match[2] for match in found if match[0] != self._marked[match[2]])
        expected = Counter(self._names.findall(blank))

        def settle(match: re.Match[str]) -> str:
            name = match[2]
            return name if self._is_cut(match) and counts[name] == expected[name] else match[0]

        return self._written.sub(settle, disguised)

    def true(self, text: str) -> str:
        """Return a disguised text as it was."""
        return text.translate(self._true_text)

    def parts(self, disguised: str) -> Iterator[tuple[str, str]]:
        """Yield the control tokens that the template wrote in a disguised text, with the true text after each.

        The first text has no token before it.
        """
        token, at = "", 0
        for found in self._found(disguised):
            yield token, self.true(disguised[at : found.start()])
            token, at = found[2], found.end()
        yield token, self.true(disguised[at:])

    def written(self, disguised: str) -> list[str]:
        """Return the control tokens that the template wrote in a disguised text."""
        return [found[2] for found in self._found(disguised)]

    def are_the_templates(self, token_ids: Iterable[int], text: str, disguised: str) -> bool:
        """Return whether the control tokens among a text's tokens are just those that the template wrote."""
        names = self.written(disguised)
        written = [self.id_of[name] for name in names]
        if self._unknown_name and text.count(self._unknown_name) != names.count(self._unknown_name):
            return False
        return self.among(token_ids) == [id_ for id_ in written if id_ != self._unknown]

    def are_text(self, token_ids: Iterable[int], text: str) -> bool:
        """Return whether no control token is among a text's tokens."""
        return not self.among(token_ids) and (not self._unknown_name or self._unknown_name not in text)

    def among(self, token_ids: Iterable[int]) -> list[int]:
        """Return the control tokens among tokens, except the unknown token, which stands for many characters."""
        return list(filter(self._known.__contains__, token_ids))

    def replaced(self, disguised: str, name: str, by: Sequence[str]) -> str | None:
        """Return a text with the words `by` in place of the template's tokens `name`; None if their numbers differ."""
        found = [match for match in self._found(disguised) if match[2] == name]
        if len(found) != len(by):
            return None
        made, at = "", 0
        for match, word in zip(found, by, strict=True):
            made += disguised[at : match.start()] + word
            at = match.end()
        return made + disguised[at:]

    def _found(self, disguised: str) -> Iterator[re.Match[str]]:
        """Yield where the template wrote control tokens. Those beside a mark are parts of somebody's text."""
        return (match for match in self._written.finditer(disguised) if not match[1] and not match[3])

    def _is_cut(self, match: re.Match[str]) -> bool:
        """Return whether a control token is beside a mark, but not between its own marks."""
        return match[0] not in (match[2], self._marked[match[2]])

    def _changed(self, data: Any, change: Callable[[str], str]) -> Any:
        """Return a value with changed texts. Within objects, words that the template compares (types, names) stay."""
        if isinstance(data, str):
            return data if PLACEHOLDER.fullmatch(data) else change(data)
        if isinstance(data, dict):
            return {self._nested(key, change): self._nested(value, change) for key, value in data.items()}
        return [self._nested(value, change) for value in data] if isinstance(data, list) else data

    def _nested(self, data: Any, change: Callable[[str], str]) -> Any:
        return data if isinstance(data, str) and data in self._keys else self._changed(data, change)

    def _quoted(self, text: str) -> str:
        return self._names.sub(lambda found: self._marked[found[0]], text.translate(self._no_marks))

    def _disguised(self, text: str) -> str:
        made, at = "", 0
        for word in self._words.finditer(text):
            made += text[at : word.start()].translate(self._disguise) + self._marked[word[0]]
            at = word.end()
        return made + text[at:].translate(self._disguise)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest() if text.strip() else text


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches any of some names, earlier ones first; it matches nothing if there are none."""
    return re.compile("|".join(map(re.escape, names)) or "(?!)")


def parsed_template(template: str) -> jinja2.nodes.Template:
    """Return a chat template's syntax tree, which is empty if the template is invalid."""
    environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"], autoescape=False)  # noqa: S701 - not HTML, and only parsed
    try:
        return environment.parse(_GENERATION.sub("", template))
    except jinja2.TemplateSyntaxError:
        return environment.parse("")
