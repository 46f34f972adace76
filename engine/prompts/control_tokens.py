"""Control tokens, which only a chat template may write. If anybody else spells one out, it is plain text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from transformers.utils.chat_template_utils import mark_control_tokens


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
        self.names = tuple(sorted(tokens.values(), key=len, reverse=True))
        self._pattern = _any_of(self.names)
        self._ending = _any_of([name for name in self.names if name not in set(markers)])

    def spelled_in(self, text: str) -> bool:
        """Return whether a text has a control token in it."""
        return any(name in text for name in self.names)

    def marked(self, text: str) -> str:
        """Return a text with its control tokens marked as text. Only `Marking` uses it."""
        marked: str = mark_control_tokens(text, self._pattern)
        return marked

    def unmarked(self, text: str) -> str:
        """Return a text without the marks."""
        return text.translate(_NO_MARKS)

    def replaced(self, text: str, name: str, by: Sequence[str]) -> str | None:
        """Return a text with words in place of the template's tokens of a name; None if their numbers differ."""
        parts = re.split(f"(?<!{_MARK}){re.escape(name)}", text)
        if len(parts) != len(by) + 1:
            return None
        return parts[0] + "".join(word + part for word, part in zip(by, parts[1:], strict=True))

    def next_end(self, text: str, at: int) -> int | None:
        """Return where a message ends: at the next control token that is no delimiter of a reply. None if there is none."""
        match = self._ending.search(text, at)
        return None if match is None else match.start()


_MARK: str = mark_control_tokens("x", re.compile("x"))[0]
_NO_MARKS = {ord(mark): None for mark in mark_control_tokens("x", re.compile("x")) if mark != "x"}


class Marking:
    """Marks control tokens that the template did not write, so that they become plain text. `is_needed`: there were some."""

    def __init__(self, tokens: ControlTokens) -> None:
        """Take the control tokens of a model."""
        self.is_needed = False
        self._tokens = tokens

    def __call__(self, said: Any) -> Any:
        """Return a value with all control tokens in its texts marked, also in the keys of objects."""
        if isinstance(said, dict):
            return {self(key): self(value) for key, value in said.items()}
        if isinstance(said, list):
            return [self(value) for value in said]
        if not isinstance(said, str) or not self._tokens.spelled_in(said):
            return said
        self.is_needed = True
        return self._tokens.marked(said)


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches any of some names, earlier ones first; it matches nothing if there are none."""
    return re.compile("|".join(map(re.escape, names)) or "(?!)")
