"""Grammars as llguidance reads them: written from a reply's spec, tried in a separate process, and compiled for a vocabulary.

A reply is thoughts, then one of these: calls, an answer in a format, text with calls in it. This frame is in Lark; each
schema is a separate grammar within it, so that its references stay valid. `docs/design/engine.md` says what the limits
cost, which `tests/engine/grammar/test_bad_schemas.py` checks.
"""

from __future__ import annotations

import json
import os
import re
import resource
import select
import signal
import sys
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark

from engine.errors import PromptRejected
from engine.messages import Format, Grammar, JsonObject, JsonSchema, Regex, ReplySpec, Tool

MAX_BYTES = 256 * 1024
"""The largest schema, pattern or grammar; also the limit for the schemas of all tools together."""

MAX_DEPTH = 64
"""How deeply the brackets of a JSON Schema may be nested."""

_OLD_DRAFTS = ("draft-00", "draft-01", "draft-02", "draft-03")
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NO_BRACKETS = re.compile(r"[^\[\]{}]+")
_TRIED = '{"key": [1, "é 字 😀\\n"]}'

_PANIC = "PanicException"
"""The class name of a panic in a Rust library. The class can't be imported."""

LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    max_lexer_states=10_000,  # one or two KiB each
    max_grammar_size=100_000,
    verbose_errors=False,  # verbose ones would quote the reply
)

KEPT = 8
"""How many matchers are kept for the next request with the same grammar. Their caches take some MiB each."""

WHY_CHARS = 300

COMPILE_S = 0.25
"""CPU seconds to compile a grammar and to make its first mask."""

TOKEN_S = 0.1
"""CPU seconds for each token of a reply: to take it, and to make the next mask."""

WHOLE_S = 0.5
"""CPU seconds for the whole trial, after which its process is killed."""

WALKS = ("{", "[", "", "")
"""The text that each reply of a trial prefers wherever it is allowed; empty: random tokens only."""

TOKENS = 16
"""Tokens of each of these replies."""

MEMORY_BYTES = 32 * 2**20
"""The most memory of a matcher. Each running reply may have one."""

TIMEOUT_S = 10.0
"""Seconds after which a trial is given up, as on a machine without a CPU to spare."""

NICENESS = 5
"""Trials have a lower priority than whatever computes replies."""

WAIT_S = 0.02
"""Seconds to wait for a trial before other prompts are made. Most trials take less."""

OTHERS_WAIT_S = 0.001
"""Seconds to wait for the trial of another grammar."""

TRIED = 1024
"""The most outcomes of trials that are remembered: a digest and a sentence each."""

COSTLY = (
    "It takes too much time or memory to compile: it is too large, or it can be matched in too many ways."
)
_PAGE = resource.getpagesize()


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

    Raises PromptRejected if the text is too long, nested too deeply, not a schema, or `false`.
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
    """A call is JSON between `opening` and `closing`: an object with a name and arguments, in this order. By default as Hermes.

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


class NoGrammars(Exception):
    """Replies can't be held to grammars with this tokenizer. The message is for the operator."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a model. `size`: how many ids it has. `ends`: the ids that end a reply.

    `controls`: ids of tokens that no text of a grammar matches. `specials`: the named ones. `loose`: those that models
    write within text, such as `<think>`; the tokenizer itself does not mark these special.
    """

    tokens: LLTokenizer
    size: int
    ends: tuple[int, ...]
    controls: frozenset[int]
    specials: dict[str, int]
    loose: frozenset[int]


def vocabulary_of(tokenizer: Any, *, size: int | None = None, ends: Iterable[int] = ()) -> Vocabulary:
    """Return the vocabulary of a transformers tokenizer. `size`: the model's number of ids, if larger than the tokenizer's.

    `ends`: the ids that end the model's replies, or else the tokenizer's own. Raises NoGrammars.
    """
    from llguidance import hf  # noqa: PLC0415 - it imports transformers, which users of `Vocabulary` alone don't need

    ending = sorted(ends) or [one for one in (tokenizer.eos_token_id,) if one is not None]
    if not ending:
        raise NoGrammars("It has no token that ends a reply.")
    try:
        tokens = hf.from_tokenizer(tokenizer, n_vocab=size, eos_token=ending)
        read = tokens.decode_str(tokenizer(_TRIED, add_special_tokens=False)["input_ids"])
    except Exception as error:
        raise NoGrammars(str(error)) from error
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        raise NoGrammars(str(error)) from error
    if read.lstrip() != _TRIED:
        raise NoGrammars("Its tokens can't be mapped to the bytes of their text.")
    controls = frozenset(filter(tokens.is_special_token, range(tokens.vocab_size)))
    added = {id_: token for id_, token in tokenizer.added_tokens_decoder.items() if id_ in controls}
    return Vocabulary(
        tokens=tokens,
        size=tokens.vocab_size,
        ends=tuple(ending),
        controls=controls,
        specials={token.content: id_ for id_, token in added.items()},
        loose=frozenset(id_ for id_, token in added.items() if not token.special) - {*ending},
    )


class GrammarError(Exception):
    """A grammar can't be compiled, or followed any further. The message is for its author."""


class GrammarCompiler:
    """Makes matchers for one vocabulary, and keeps some for reuse. Thread-safe."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._lock = threading.Lock()
        self._kept: list[tuple[bytes, LLMatcher]] = []

    def matcher(self, source: GrammarSource) -> LLMatcher:
        """Return a matcher for the start of a reply. Lets other threads run meanwhile. Raises GrammarError."""
        if (taken := self._taken(source.digest)) is not None:
            return taken
        matcher = LLMatcher(self.vocabulary.tokens, source.text, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise GrammarError(why(matcher))
        return matcher

    def keep(self, source: GrammarSource, matcher: LLMatcher) -> None:
        """Keep a matcher that is no longer in use, for the next reply with its grammar."""
        if matcher.is_error() or not matcher.reset():
            return
        with self._lock:
            self._kept.append((source.digest, matcher))
            del self._kept[:-KEPT]

    def _taken(self, digest: bytes) -> LLMatcher | None:
        with self._lock:
            for place, (known, matcher) in enumerate(self._kept):
                if known == digest:
                    del self._kept[place]
                    return matcher
        return None


def why(matcher: LLMatcher) -> str:
    """Return a matcher's error in one line."""
    return " ".join(matcher.get_error().removesuffix("<non-verbose/>").split())[:WHY_CHARS]


class TrialPostponed(Exception):
    """The trial takes a while, and continues. Do other work, and call again for its outcome."""


class GrammarTrials:
    """Runs one trial at a time, in a process of its own that continues while the caller does other work. For one thread.

    The outcomes of the latest `remembered` trials are known at once.
    """

    def __init__(self, compiler: GrammarCompiler, *, remembered: int = TRIED) -> None:
        self._compiler = compiler
        self._remembered = remembered
        self._running: _Running | None = None
        self._outcomes: OrderedDict[bytes, str] = OrderedDict()

    def __call__(self, source: GrammarSource) -> str:
        """Return what is wrong with a grammar, or an empty string. Raises TrialPostponed.

        If a trial of another grammar still runs, that one has to end first. The caller hardly waits for it, since such
        waits would add up over many grammars in a row.
        """
        digest = source.digest
        if digest not in self._outcomes:
            if self._running is not None and self._running.digest != digest:
                self._finish(self._running, OTHERS_WAIT_S)
            self._running = self._running or _Running(self._compiler, source)
            self._finish(self._running, WAIT_S)
        self._outcomes.move_to_end(digest)
        return self._outcomes[digest]

    def _finish(self, running: _Running, wait_s: float) -> None:
        until = min(running.until, time.monotonic() + wait_s)
        while (outcome := running.outcome()) is None:
            left_s = until - time.monotonic()
            if left_s <= 0 and until < running.until:
                raise TrialPostponed
            select.select([running], [], [], max(0.0, left_s))
        running.end()
        self._running = None
        self._outcomes[running.digest] = outcome
        if len(self._outcomes) > self._remembered:
            self._outcomes.popitem(last=False)


class _Running:
    """A fork of this process that tries a grammar. `until`: when it is killed, by the monotonic clock."""

    def __init__(self, compiler: GrammarCompiler, source: GrammarSource) -> None:
        self.digest = source.digest
        self.until = time.monotonic() + TIMEOUT_S
        self._output = b""
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # about forks of processes with threads: this one's are idle
            self._child = os.fork()
        if not self._child:
            _try_and_end(compiler, source, writing)
        os.close(writing)

    def fileno(self) -> int:
        return self._reading

    def outcome(self) -> str | None:
        """Return the trial's outcome; None while it runs."""
        with suppress(BlockingIOError):
            while some := os.read(self._reading, 65_536):
                self._output += some
            return self._output[1:].decode() if self._output else COSTLY
        return COSTLY if time.monotonic() >= self.until else None

    def end(self) -> None:
        os.close(self._reading)
        with suppress(ProcessLookupError):
            os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)


def judge(compiler: GrammarCompiler, source: GrammarSource) -> str:
    """Try a grammar in this process, and return what is wrong with it. Its cost is only measured, not bounded."""
    clock, memory = time.process_time, _peak_bytes()
    began = clock()
    try:
        matcher = compiler.matcher(source)
    except GrammarError as fault:
        return str(fault)
    matcher.compute_bitmask()
    if matcher.is_error():
        return f"It allows nothing. {why(matcher)}"
    if clock() - began > COMPILE_S or _worst_token(compiler, matcher, clock) > TOKEN_S:
        return COSTLY
    if matcher.is_error():
        return why(matcher)
    return COSTLY if _peak_bytes() - memory > MEMORY_BYTES else ""


def _worst_token(compiler: GrammarCompiler, matcher: LLMatcher, clock: Callable[[], float]) -> float:
    """Return the seconds that the slowest token of the trial's replies took."""
    random, worst = Random(0), 0.0
    for opening in WALKS:
        preferred = compiler.vocabulary.tokens.tokenize_str(opening)
        written = 0
        while written < TOKENS and worst <= TOKEN_S and not matcher.is_stopped():
            token = _some_token(matcher.compute_bitmask(), preferred, random)
            began = clock()
            matcher.consume_token(token)
            matcher.compute_bitmask()
            worst, written = max(worst, clock() - began), written + 1
        matcher.rollback(written)
    return worst


def _some_token(mask: bytes, preferred: Sequence[int], random: Random) -> int:
    for token in preferred:
        if mask[token // 8] >> token % 8 & 1:
            return token
    place = random.choice([place for place, byte in enumerate(mask) if byte])
    return 8 * place + random.choice([bit for bit in range(8) if mask[place] >> bit & 1])


def _try_and_end(compiler: GrammarCompiler, source: GrammarSource, writing: int) -> None:
    try:
        os.nice(NICENESS)
        if sys.platform == "linux":
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            most = pages * _PAGE + 8 * MEMORY_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, WHOLE_S)
        os.write(writing, b"!" + judge(compiler, source).encode())
    finally:
        os._exit(0)


def _peak_bytes() -> int:
    """Return the process's peak memory so far, in bytes: macOS reports these, other systems KiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


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

# With forcing, the tokenizer encodes all forced bytes again for each mask: a constant of 200 KiB took 100 ms a token.
_HEAD = '%llguidance {"no_forcing": true}'

Trial = Callable[[GrammarSource], str]
"""Returns what is wrong with a grammar, or an empty string."""


def symbols(text: str, specials: Mapping[str, int]) -> str:
    """Return the symbols of a text in a rule: literals, and the ids of the control tokens that it spells out."""
    return " ".join(
        f"<[{specials[piece]}]>" if piece in specials else literal(piece) for piece in _pieces(text, specials)
    )


def begins_special(text: str, specials: Mapping[str, int]) -> bool:
    """Whether a text begins with a control token."""
    return any(text.startswith(name) for name in specials)


def pattern(text: str) -> str:
    """Return a regular expression that matches one text, to be put between slashes."""
    return _MEANING.sub(r"\\\1", text).replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")


def any_of(ids: Iterable[int]) -> str:
    """Return the symbol that matches any one of these control tokens."""
    return f"<[{','.join(map(str, sorted(ids)))}]>"


def literal(text: str) -> str:
    """Return the literal of a text."""
    return json.dumps(text)


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
        """`specials`: the ids of control tokens, by name. `loose`: the ids of those that may occur within text.

        `calls`: None if the form of the model's calls is unknown. Then no call can be forced, and calls are free text.
        """
        self._specials = specials
        self._loose = frozenset(loose)
        self._calls = calls
        self._thoughts = thoughts

    def write(self, spec: ReplySpec, *, exact: bool = True) -> GrammarSource | None:
        """Return the grammar of a reply; None if the reply is free. Raises PromptRejected if a spec has no grammar.

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
            raise PromptRejected("This tool is not offered.", field="tools")
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
        """Return the symbol of any text, with the control tokens that models write within text."""
        page.rule("TEXT", f"/{ANY}+/")
        apart = {self._specials[opening]} if opening in self._specials else set()
        if self._thoughts is not None:
            apart |= {self._specials.get(self._thoughts.opening.strip(), -1)}
        loose = self._loose - apart
        page.rule("text", f"(TEXT | {any_of(loose)})*" if loose else "TEXT?")
        return "text"

    def _no_thought(self) -> str:
        """Return a condition: a lead must not begin with thoughts, so that a call inside thoughts does not count."""
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
        controls = {int(id_) for ids in _CONTROLS.findall(frame) for id_ in ids.split(",")}
        return GrammarSource(text, tuple(sorted(controls)))


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
    """Makes grammars that can be used. For one thread."""

    def __init__(self, writer: GrammarWriter, trial: Trial, *, opened: GrammarWriter | None = None) -> None:
        """Take a writer and a trial. `opened`: the writer for replies whose thoughts the prompt has opened."""
        self._writers = (writer, opened or writer)
        self._fault = trial

    def make(self, spec: ReplySpec, *, opened: bool = False) -> GrammarSource | None:
        """Return the grammar of a reply; None if the reply is free. Raises PromptRejected if its spec can't be followed.

        `opened`: the prompt has opened the thoughts.
        Schemas of tools that are not strict are no reason to refuse: if they can't be followed, the arguments may be any object.
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
