"""Compiles grammars, within measured limits, into matchers. Each reply has one, which knows what may come next.

Source of the limits: `docs/design/engine.md` says what they cost, and `tests/engine/grammar/test_bad_schemas.py` checks it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engine.grammar.source import GrammarSource

_TRIED = '{"key": [1, "é 字 😀\\n"]}'
_PANIC = "PanicException"
"""The name of the error of a panic in a Rust library. Its class can't be imported."""


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
