"""Tokens that mean more than their text: only a chat template may write them. Whoever else spells one out wrote text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from transformers.utils.chat_template_utils import mark_control_tokens


class ControlTokens:
    """The special tokens of a tokenizer, and those added ones that its template writes or that its format is made of.

    transformers has the same rule, but looks into the template's literals alone; some of these it leaves as they are.
    """

    def __init__(self, tokenizer: Any, template: str, markers: Iterable[str] = ()) -> None:
        """Take a transformers tokenizer, its chat template, and what the delimiters of its replies are made of."""
        named = {*(getattr(tokenizer, "chat_control_tokens", None) or ()), *markers}
        tokens = {
            id_: token.content
            for id_, token in tokenizer.added_tokens_decoder.items()
            if token.special
            or token.content in named
            or (token.content in template and not token.content.isspace())
        }
        self.ids = frozenset(tokens)
        self.names = tuple(sorted(tokens.values(), key=len, reverse=True))
        self._pattern = _any_of(self.names)
        self._ending = _any_of([name for name in self.names if name not in set(markers)])

    def spelled_in(self, text: str) -> bool:
        """Return whether a text has one of them."""
        return any(name in text for name in self.names)

    def marked(self, text: str) -> str:
        """Return a text in which they are marked as text, for `Marking` alone to use."""
        marked: str = mark_control_tokens(text, self._pattern)
        return marked

    def unmarked(self, text: str) -> str:
        """Return a text without the marks."""
        return text.translate(_NO_MARKS)

    def replaced(self, text: str, name: str, by: Sequence[str]) -> str | None:
        """Return a text with other words in the places where the template wrote a token; None where there are more or less."""
        parts = re.split(f"(?<!{_MARK}){re.escape(name)}", text)
        if len(parts) != len(by) + 1:
            return None
        return parts[0] + "".join(word + part for word, part in zip(by, parts[1:], strict=True))

    def next_end(self, text: str, at: int) -> int | None:
        """Return where the next of them stands that is no delimiter of a reply: a message ends there. None: nowhere."""
        match = self._ending.search(text, at)
        return None if match is None else match.start()


_MARK: str = mark_control_tokens("x", re.compile("x"))[0]
_NO_MARKS = {ord(mark): None for mark in mark_control_tokens("x", re.compile("x")) if mark != "x"}


class Marking:
    """Marks what others than the template say, so that it is tokenized as text. `is_needed`: something was marked."""

    def __init__(self, tokens: ControlTokens) -> None:
        """Take the tokens."""
        self.is_needed = False
        self._tokens = tokens

    def __call__(self, said: Any) -> Any:
        """Return what was said with all control tokens in it marked: in texts, and in objects in keys, too."""
        if isinstance(said, dict):
            return {self(key): self(value) for key, value in said.items()}
        if isinstance(said, list):
            return [self(value) for value in said]
        if not isinstance(said, str) or not self._tokens.spelled_in(said):
            return said
        self.is_needed = True
        return self._tokens.marked(said)


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Return what finds any of some names, the first ones first; nothing where there are none."""
    return re.compile("|".join(map(re.escape, names)) or "(?!)")
