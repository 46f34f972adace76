"""Compiles grammars, within measured limits, into matchers. Each reply has one, which knows what may come next.

Source of the limits: `docs/design/engine.md` says what they cost, and `tests/engine/grammar/test_bad_schemas.py` checks it.
"""

from __future__ import annotations

import threading

from llguidance import LLMatcher, LLParserLimits

from engine.grammar.source import GrammarSource
from engine.grammar.vocabulary import Vocabulary

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
