"""Writes the grammar of a reply: thoughts, then calls, an answer in a format, or text with calls in it. Pure.

The frame is in Lark. Each schema is a grammar of its own in it, so that its references stay valid.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec
from llguidance import regex_to_lark

from engine.errors import PromptRejected
from engine.grammar.compiler import (
    MAX_BYTES,
    CallForm,
    GrammarSource,
    ThoughtForm,
    check_draft,
    check_size,
    read_schema,
)
from engine.reply_spec import Format, Grammar, JsonObject, JsonSchema, Regex, ReplySpec, Tool

ANY = r"(?s:.)"
SPACE = r"[ \t\n\r]"

LONGEST_SPACE = 4
"""The most characters of white space around thoughts and calls. Without a bound a model might write nothing else."""

_CONTROLS = re.compile(r"<\[([0-9,]+)\]>")
_MEANING = re.compile(r"([\\.+*?()|\[\]{}^$/])")
_SPACES = f"{SPACE}{{1,{LONGEST_SPACE}}}"

_COMPACT = {"item_separator": ", ?", "key_separator": ": ?", "whitespace_flexible": False}
"""JSON as most models write it. If more white space were allowed, an unsure model might write it until its reply is cut."""

_OBJECT = '"object"'

# With forcing, each mask has the tokenizer spell all forced bytes anew: a constant of 200 KiB took 100 ms a token.
_HEAD = '%llguidance {"no_forcing": true}'

TRIED = 1024
"""The most outcomes of trials that are remembered: a digest and a sentence each."""

Trial = Callable[[GrammarSource], str]
"""Returns what is wrong with a grammar, or an empty string."""


def symbols(text: str, specials: Mapping[str, int]) -> str:
    """Return the symbols of a text in a rule: literals, and the ids of the control tokens that it spells out."""
    return " ".join(_symbol(piece, specials) for piece in _pieces(text, specials))


def begins_special(text: str, specials: Mapping[str, int]) -> bool:
    """Whether a text begins with a control token."""
    return any(text.startswith(name) for name in specials)


def pattern(text: str) -> str:
    """Return a regular expression that matches one text, to be put between slashes."""
    return _MEANING.sub(r"\\\1", text).replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")


def any_of(ids: Iterable[int]) -> str:
    """Return the symbol that matches any one of these control tokens."""
    return f"<[{','.join(map(str, sorted(ids)))}]>"


def controls_in(frame: str) -> set[int]:
    """Return the ids of the control tokens that rules name."""
    return {int(id_) for ids in _CONTROLS.findall(frame) for id_ in ids.split(",")}


def literal(text: str) -> str:
    """Return the literal of a text."""
    return json.dumps(text)


def _symbol(piece: str, specials: Mapping[str, int]) -> str:
    return f"<[{specials[piece]}]>" if piece in specials else literal(piece)


def _pieces(text: str, specials: Mapping[str, int]) -> list[str]:
    if not specials:
        return [text] if text else []
    names = "|".join(re.escape(name) for name in sorted(specials, key=len, reverse=True) if name)
    return [piece for piece in re.split(f"({names})", text) if piece]


class GrammarWriter:
    """Writes grammars for one model, with its control tokens and the forms of its calls and thoughts."""

    def __init__(
        self,
        specials: Mapping[str, int],
        loose: Collection[int] = (),
        *,
        calls: CallForm | None = None,
        thoughts: ThoughtForm | None = None,
    ) -> None:
        """Take the ids of control tokens by their names, and the ids of those that may be amid text.

        `calls`: None if the form of the model's calls is unknown. Then no call can be forced, and calls are free text.
        """
        self._specials = specials
        self._loose = frozenset(loose)
        self._calls = calls
        self._thoughts = thoughts

    def write(self, spec: ReplySpec, *, exact: bool = True) -> GrammarSource | None:
        """Return the grammar of a reply; None if the reply is free. Raises PromptRejected if there is no grammar of a spec.

        `exact`: follow the schemas of all tools; else tools that are not strict take any object as arguments.
        """
        tools = self._tools(spec)
        if not tools and spec.format is None:
            return None
        page = _RuleSet()
        if tools:
            self._write_calls(page, tools, spec, exact=exact)
        if spec.format is not None:
            page.part("format", _part(spec.format))
        body = self._body(page, spec) if tools else "@format"
        page.rule("start", self._after_thoughts(page, body))
        return page.source()

    def _tools(self, spec: ReplySpec) -> tuple[Tool, ...]:
        tools = spec.shown_tools
        if spec.tool_choice == "named":
            tools = tuple(tool for tool in tools if tool.name == spec.tool_name)
        forced = spec.tool_choice in {"named", "required"}
        if forced and not tools:
            raise PromptRejected("There is no such tool.", field="tools")
        if forced and self._calls is None:
            raise PromptRejected(
                "The form of this model's calls is not known, so a call can't be required.", field="tools"
            )
        if sum(len(tool.parameters.encode()) for tool in tools) > MAX_BYTES:
            raise PromptRejected(f"The tools may have at most {MAX_BYTES // 1024} KiB.", field="tools")
        return tools if self._calls is not None else ()

    def _body(self, page: _RuleSet, spec: ReplySpec) -> str:
        """Return the symbols of a reply that may have calls, without its thoughts."""
        if spec.tool_choice in {"named", "required"}:
            return "calls"
        if spec.format is not None:
            return "(calls | @format)"
        return self._free(page, spec)

    def _free(self, page: _RuleSet, spec: ReplySpec) -> str:
        """Return the symbols of text with calls in it. Whatever follows an opening must be a call."""
        assert self._calls is not None  # noqa: S101 - there are tools
        opening = self._calls.opening.strip()
        own_text = self._text(page, opening)
        page.rule("lead[lazy]", "LEAD")
        page.rule("LEAD", f"/{ANY}*{pattern(opening)}/{self._no_thought()}")
        lead = f"{own_text} lead"
        if begins_special(opening, self._specials):
            lead = f"({own_text} {symbols(opening, self._specials)} | {own_text} lead)"
        if spec.parallel_calls:
            return f"({lead} body)* {own_text}"
        return f"({lead} body SPACE? | {own_text})"

    def _text(self, page: _RuleSet, opening: str) -> str:
        """Return the symbol of any text, with the control tokens that models write amid text."""
        page.rule("TEXT", f"/{ANY}+/")
        apart = {self._specials[opening]} if opening in self._specials else set()
        if self._thoughts is not None:
            apart |= {self._specials.get(self._thoughts.opening.strip(), -1)}
        loose = self._loose - apart
        page.rule("text", f"(TEXT | {any_of(loose)})*" if loose else "TEXT?")
        return "text"

    def _no_thought(self) -> str:
        """Return a condition that a lead does not begin with thoughts, so that a call inside of them is none."""
        thoughts = self._thoughts
        if thoughts is None or thoughts.opened or begins_special(thoughts.opening, self._specials):
            return ""
        return f" & ~/{SPACE}*{pattern(thoughts.opening)}{ANY}*/"

    def _after_thoughts(self, page: _RuleSet, body: str) -> str:
        thoughts = self._thoughts
        if thoughts is None:
            return body
        opening = "" if thoughts.opened else thoughts.opening.strip()
        closing = thoughts.closing.strip()
        if begins_special(closing, self._specials):
            page.rule("THOUGHT", f"/{ANY}+/")
            begin = symbols(opening, self._specials)
            loose = self._loose - {self._specials[closing]} if closing in self._specials else self._loose
            within = f"(THOUGHT | {any_of(loose)})*" if loose else "THOUGHT?"
            page.rule("thoughts", f"{begin} {within} {symbols(closing, self._specials)} SPACE?")
        else:
            page.rule("thought[lazy]", "THOUGHT")
            begin = f"{SPACE}*{pattern(opening)}" if opening else ""
            page.rule("THOUGHT", f"/{begin}{ANY}*{pattern(closing)}/")
            page.rule("thoughts", "thought SPACE?")
        return f"thoughts {body}" if thoughts.opened else f"thoughts? {body}"

    def _write_calls(self, page: _RuleSet, tools: tuple[Tool, ...], spec: ReplySpec, *, exact: bool) -> None:
        """Write the rules `calls`, for all calls of a reply, and `body`, for what follows an opening."""
        form = self._calls
        assert form is not None  # noqa: S101 - there are tools
        one = " | ".join(self._call(page, place, tool, exact=exact) for place, tool in enumerate(tools))
        page.rule("call", f"({one})" if form.name_end else f'"{{" {_key(form.name_key)} ({one}) "}}"')
        if form.id_mark:
            page.rule("CALL_ID", "/[a-zA-Z0-9]{9}/")
        closing = symbols(form.closing.strip(), self._specials)
        end = f" SPACE? {closing}" if closing else ""
        comma = "," if form.as_list else form.between
        together = f'call ({literal(comma)} " "? call)*' if comma and spec.parallel_calls else "call"
        page.rule("body", f'SPACE? "[" {together} "]"{end}' if form.as_list else f"SPACE? {together}{end}")
        opening = symbols(form.opening.strip(), self._specials)
        wrapped = f"({opening})? body" if form.bare else f"{opening} body"
        page.rule("calls", wrapped if comma or not spec.parallel_calls else f"{wrapped} (SPACE? {wrapped})*")

    def _call(self, page: _RuleSet, place: int, tool: Tool, *, exact: bool) -> str:
        """Return the symbols of a call from the tool's name to the end of its arguments."""
        assert self._calls is not None  # noqa: S101 - there are tools
        page.part(f"tool{place}", {"json_schema": _arguments(tool, exact=exact)})
        form = self._calls
        if form.name_end:
            id_ = f"({symbols(form.id_mark, self._specials)} CALL_ID)?" if form.id_mark else ""
            return f"{literal(tool.name)} {id_} {symbols(form.name_end, self._specials)} SPACE? @tool{place}"
        return f'{literal(_json(tool.name))} "," " "? {_key(form.arguments_key)} @tool{place}'


class _RuleSet:
    """Collects the rules of a frame, and the grammars that it names."""

    def __init__(self) -> None:
        self._rules = {"SPACE": f"/{_SPACES}/"}
        self._parts: list[dict[str, object]] = []

    def rule(self, name: str, symbols: str) -> None:
        self._rules[name] = symbols

    def part(self, name: str, grammar: dict[str, object]) -> None:
        self._parts.append({"name": name, **grammar})

    def source(self) -> GrammarSource:
        frame = "\n".join([_HEAD, *(f"{name}: {symbols}" for name, symbols in self._rules.items())])
        text = msgspec.json.encode({"grammars": [{"lark_grammar": frame}, *self._parts]}).decode()
        return GrammarSource(text, tuple(sorted(controls_in(frame))))


def _part(format_: Format) -> dict[str, object]:
    match format_:
        case JsonObject():
            return {"json_schema": _guided({"type": msgspec.Raw(_OBJECT.encode())})}
        case JsonSchema():
            return {
                "json_schema": _guided(
                    _read(format_.schema, "format", strict=format_.strict), lenient=not format_.strict
                )
            }
        case Regex():
            check_size(format_.pattern, "format")
            return {"lark_grammar": f"start: /{regex_to_lark(format_.pattern, '')}/"}
        case Grammar():
            check_size(format_.lark, "format")
            return {"lark_grammar": format_.lark}


def _arguments(tool: Tool, *, exact: bool) -> dict[str, object]:
    schema = _read(tool.parameters, "tools", strict=tool.strict)
    if not exact and not tool.strict:
        schema = {}
    schema.setdefault("type", msgspec.Raw(_OBJECT.encode()))
    return _guided(schema, lenient=not tool.strict)


def _read(text: str, field: str, *, strict: bool) -> dict[str, msgspec.Raw]:
    schema = read_schema(text, field)
    if strict:
        check_draft(schema, field)
    return schema


def _guided(schema: Mapping[str, msgspec.Raw], *, lenient: bool = False) -> dict[str, object]:
    """Return a schema with our options for llguidance, which replace any that its author wrote.

    `lenient`: llguidance ignores keywords that it does not know.
    """
    return {**schema, "x-guidance": {**_COMPACT, "lenient": lenient}}


def _key(name: str) -> str:
    return f'{literal(_json(name))} ":" " "?'


def _json(text: str) -> str:
    return msgspec.json.encode(text).decode()


class GrammarMaker:
    """Makes grammars, and remembers which of them can be used. For one thread."""

    def __init__(self, writer: GrammarWriter, trial: Trial, *, opened: GrammarWriter | None = None) -> None:
        """Take a writer and a trial. `opened`: the writer for replies whose thoughts the prompt has opened."""
        self._writers = (writer, opened or writer)
        self._trial = trial
        self._tried: OrderedDict[bytes, str] = OrderedDict()

    def make(self, spec: ReplySpec, *, opened: bool = False) -> GrammarSource | None:
        """Return the grammar of a reply; None if the reply is free. Raises PromptRejected if its spec can't be followed.

        `opened`: the prompt has opened the thoughts.
        Schemas of tools that are not strict are no reason: if they can't be followed, the arguments may be any object.
        """
        writer = self._writers[opened]
        source = writer.write(spec)
        if source is None or not (fault := self._fault(source)):
            return source
        field = self._field_at_fault(writer, spec)
        if field == "tools":
            simpler = writer.write(spec, exact=False)
            if simpler is not None and not self._fault(simpler):
                return simpler
        raise PromptRejected(f"The {field} can't be followed: {fault}", field=field)

    def _field_at_fault(self, writer: GrammarWriter, spec: ReplySpec) -> str:
        if spec.format is None:
            return "tools"
        alone = writer.write(msgspec.structs.replace(spec, tools=(), tool_choice="auto"))
        return "format" if alone is not None and self._fault(alone) else "tools"

    def _fault(self, source: GrammarSource) -> str:
        digest = source.digest
        if digest not in self._tried:
            self._tried[digest] = self._trial(source)
            if len(self._tried) > TRIED:
                self._tried.popitem(last=False)
        self._tried.move_to_end(digest)
        return self._tried[digest]
