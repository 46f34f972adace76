"""Grammars as llguidance reads them: their texts and bounds, a tokenizer's vocabulary, matchers, and trials.

Source of the limits: `docs/design/engine.md` says what they cost, and `tests/engine/grammar/test_bad_schemas.py` checks it.
"""

from __future__ import annotations

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any, Protocol

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engine.errors import PromptRejected

MAX_BYTES = 256 * 1024
"""The largest schema, pattern or grammar; also the most that the schemas of all tools have together."""

MAX_DEPTH = 64
"""How deeply the brackets of a JSON Schema may be nested."""

_OLD_DRAFTS = ("draft-00", "draft-01", "draft-02", "draft-03")
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NO_BRACKETS = re.compile(r"[^\[\]{}]+")
_TRIED = '{"key": [1, "é 字 😀\\n"]}'

_PANIC = "PanicException"
"""The name of the error of a panic in a Rust library. Its class can't be imported."""

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
"""CPU seconds for the whole trial. Its process is killed then."""

WALKS = ("{", "[", "", "")
"""What the replies of a trial prefer: to open an object or a list wherever they may, or random tokens only."""

TOKENS = 16
"""The length of each of these replies."""

MEMORY_BYTES = 32 * 2**20
"""The most memory of a matcher. Each running reply may have one."""

TIMEOUT_S = 10.0
"""Seconds until a trial is given up on a machine without a CPU to spare."""

NICENESS = 5
"""Trials have a lower priority than whatever computes replies."""

HURRIED_S = 0.01
"""How long a trial is waited for while others wait for prompts. Most trials take less."""

OTHERS_HURRIED_S = 0.001
"""How long the trial of another grammar is waited for then."""

UNTOLD = 16
"""The most outcomes that are kept until somebody asks for them."""

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

    Raises PromptRejected if the text is too long, nested too deeply, or no schema.
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


HERMES_FORM = CallForm()
"""How Hermes and Qwen write calls."""


LLAMA_FORM = CallForm("<|python_tag|>", "", arguments_key="parameters", between=";", bare=True)
"""How Llama 3 writes calls."""


MISTRAL_LIST_FORM = CallForm("[TOOL_CALLS]", "", as_list=True)
"""How Mistral writes calls from 7B v0.3 to Small 3.1."""


MISTRAL_NAMED_FORM = CallForm("[TOOL_CALLS]", "", name_end="[ARGS]", id_mark="[CALL_ID]")
"""How Mistral writes calls since Small 3.2."""


class NoGrammars(Exception):
    """Replies can't be held to grammars with this tokenizer. The message is for the operator."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a model. `size`: how many ids it has. `ends`: the ids that end a reply.

    `controls`: tokens that no text of a grammar matches. `specials`: the ids of those that have a name. `loose`: those that
    models write amid their text, such as `<think>`; the tokenizer itself does not call them special.
    """

    tokens: LLTokenizer
    size: int
    ends: tuple[int, ...]
    controls: frozenset[int]
    specials: dict[str, int]
    loose: frozenset[int]


def vocabulary_of(tokenizer: Any, *, size: int | None = None, ends: Iterable[int] = ()) -> Vocabulary:
    """Return the vocabulary of a transformers tokenizer. `size`: the model's, if it has more ids than tokens.

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
        return self._taken(source.digest) or self._compile(source)

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

    def _compile(self, source: GrammarSource) -> LLMatcher:
        matcher = LLMatcher(self.vocabulary.tokens, source.text, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise GrammarError(why(matcher))
        return matcher


def why(matcher: LLMatcher) -> str:
    """Return a matcher's error in one line."""
    return " ".join(matcher.get_error().removesuffix("<non-verbose/>").split())[:WHY_CHARS]


class TrialPostponed(Exception):
    """The caller has other work to do. The trial continues; call again for its outcome."""


class JobSignals(Protocol):
    """What the caller of a trial may learn while it waits."""

    hurried: bool
    """Others wait for prompts, so the caller should not wait long for a trial."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when there is something to learn."""
        ...

    def stops(self) -> bool:
        """Read what has come, and return whether nobody waits for the trial any more."""
        ...


class GrammarTrials:
    """Runs one trial at a time, in a process of its own that continues while the caller does other work. For one thread."""

    def __init__(self, compiler: GrammarCompiler, signals: JobSignals) -> None:
        """Take a compiler, and the signal on which the caller stops waiting."""
        self._compiler = compiler
        self._signals = signals
        self._running: _Running | None = None
        self._untold: OrderedDict[bytes, str] = OrderedDict()

    def __call__(self, source: GrammarSource) -> str:
        """Return what is wrong with a grammar, or an empty string. Raises TrialPostponed.

        If a trial of another grammar still runs, its end comes first. Others are hardly kept waiting for that: many grammars in
        a row would each take their while.
        """
        digest = source.digest
        if self._running is not None and self._running.digest != digest:
            other = self._running.digest
            self._untold[other] = self._outcome(self._running, hurried_s=OTHERS_HURRIED_S)
            if len(self._untold) > UNTOLD:
                self._untold.popitem(last=False)
        if digest in self._untold:
            return self._untold.pop(digest)
        if self._running is None:
            self._running = _Running(self._compiler, source)
        return self._outcome(self._running, hurried_s=HURRIED_S)

    def _outcome(self, running: _Running, *, hurried_s: float) -> str:
        began = time.monotonic()
        while (outcome := running.outcome()) is None:
            waits_s = running.until - time.monotonic()
            if self._signals.stops():
                raise TrialPostponed
            if self._signals.hurried:
                waits_s = min(waits_s, began + hurried_s - time.monotonic())
                if waits_s <= 0:
                    raise TrialPostponed
            select.select([running.fileno(), self._signals.fileno()], [], [], max(0.0, waits_s))
        running.end()
        self._running = None
        return outcome


def trial(compiler: GrammarCompiler, source: GrammarSource) -> str:
    """Return what is wrong with a grammar, or an empty string. Forks, so the process must have one thread only."""
    running = _Running(compiler, source)
    try:
        while (outcome := running.outcome()) is None:
            select.select([running], [], [], max(0.0, running.until - time.monotonic()))
        return outcome
    finally:
        running.end()


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
        """Return its outcome; None while it runs."""
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
    """Try a grammar in this process, and return what is wrong with it. Its cost is known only afterwards."""
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
        _bound_memory()
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, WHOLE_S)
        os.write(writing, b"!" + judge(compiler, source).encode())
    finally:
        os._exit(0)


def _bound_memory() -> None:
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * _PAGE + 8 * MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _peak_bytes() -> int:
    """Return the peak memory of the process so far. macOS counts bytes, other systems KiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
