"""Control tokens, which only a chat template may write. If anybody else spells one out, it is plain text.

Templates and tokenizers rewrite text: a word that a template removes, or a character that a normalizer replaces, can turn
harmless text into a control token. So each prompt is rendered twice, the second time with everything that people and models
wrote in other characters. The control tokens there are the template's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jinja2
import jinja2.nodes

_BASE = 0x12000
"""Cuneiform replaces ASCII: letters without case that no template or normalizer knows."""

_BEGIN, _END = "\U000f0000", "\U000f0001"
"""Around words of the template in a disguised text, so that the template still finds them there."""

_STAYS = '"\\'
"""Beside white space, ASCII that is not disguised: JSON escapes it."""

_GENERATION = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")

_RANDOM = re.compile(r"w[0-9a-f]{12}(?:cz|rz|n\d+z)")
"""The words that `Writer` puts in place of a reply, to be found again. They can be a part of no control token."""


class Part(NamedTuple):
    """A control token that the template wrote, and the text up to the next one. The first part has no token."""

    token: str
    text: str


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
        self._ending = _any_of([name for name in names if name not in set(markers)])
        words, attributes = _words_of(template)
        self._words = _any_of(sorted((word for word in words if word.strip()), key=len, reverse=True))
        self._names = _any_of(names)
        self._keys = frozenset(
            word for word in words | attributes if re.fullmatch(r"[\w$]+", word)
        ).difference(names)
        theirs = {ord(char) for name in names for char in name if not char.isascii()}
        shown = [code for code in range(0x21, 0x7F) if chr(code) not in _STAYS]
        self._disguise: dict[int, int | str | None] = {code: _BASE + code for code in shown}
        self._disguise |= {code: _BASE + 0x80 + place for place, code in enumerate(sorted(theirs))}
        self._true = {int(other): code for code, other in self._disguise.items() if isinstance(other, int)}
        self._disguise |= dict.fromkeys(self._true, "\ufffd")
        self._true_text = {**self._true, ord(_BEGIN): None, ord(_END): None}
        self._disguise |= {ord(_BEGIN): None, ord(_END): None}
        quoted = f"{_BEGIN}(?:{self._words.pattern}|{self._names.pattern}){_END}"
        self._written = re.compile(f"{quoted}|({self._names.pattern})(?!{_END})")
        self._known = self.ids - {self._unknown}

    def disguised(self, said: Any) -> Any:
        """Return a value in which no text, nor key of an object, can become a control token or a part of one.

        The template's own words stay readable in it. `true` undoes it.
        """
        if isinstance(said, str):
            return self._disguised(said)
        if isinstance(said, dict):
            return {self._nested(key): self._nested(value) for key, value in said.items()}
        return [self._nested(value) for value in said] if isinstance(said, list) else said

    def quoted(self, said: Any) -> Any:
        """Return a value in which control tokens are no part of the template: less than `disguised`, for odd templates."""
        if isinstance(said, str):
            return self._names.sub(f"{_BEGIN}\\g<0>{_END}", re.sub(f"[{_BEGIN}{_END}]", "", said))
        if isinstance(said, dict):
            return {self.quoted(key): self.quoted(value) for key, value in said.items()}
        return [self.quoted(value) for value in said] if isinstance(said, list) else said

    def true(self, text: str) -> str:
        """Return a disguised text as it was."""
        return text.translate(self._true_text)

    def parts(self, disguised: str) -> Iterator[Part]:
        """Yield the control tokens that the template wrote in a disguised text, with the true text after each."""
        token, at = "", 0
        for found in self._found(disguised):
            yield Part(token, self.true(disguised[at : found.start()]))
            token, at = found[1], found.end()
        yield Part(token, self.true(disguised[at:]))

    def are_the_templates(self, token_ids: Iterable[int], text: str, disguised: str) -> bool:
        """Return whether a text's tokens have only the control tokens that the template wrote."""
        names = [found[1] for found in self._found(disguised)]
        written = [self.id_of[name] for name in names]
        if self._unknown_name and text.count(self._unknown_name) != names.count(self._unknown_name):
            return False
        return self.among(token_ids) == [id_ for id_ in written if id_ != self._unknown]

    def are_text(self, token_ids: Iterable[int], text: str) -> bool:
        """Return whether a text's tokens have no control token."""
        return not self.among(token_ids) and (not self._unknown_name or self._unknown_name not in text)

    def among(self, token_ids: Iterable[int]) -> list[int]:
        """Return the control tokens among tokens, except the unknown token, which stands for many characters."""
        return list(filter(self._known.__contains__, token_ids))

    def replaced(self, disguised: str, name: str, by: Sequence[str]) -> str | None:
        """Return a text with words in place of the template's tokens of a name; None if their numbers differ."""
        found = [match for match in self._found(disguised) if match[1] == name]
        if len(found) != len(by):
            return None
        made, at = "", 0
        for match, word in zip(found, by, strict=True):
            made += disguised[at : match.start()] + word
            at = match.end()
        return made + disguised[at:]

    def next_end(self, text: str, at: int) -> int | None:
        """Return where a message ends: at the next control token that is no delimiter of a reply. None if there is none."""
        match = self._ending.search(text, at)
        return None if match is None else match.start()

    def _found(self, disguised: str) -> Iterator[re.Match[str]]:
        """Yield where the template wrote control tokens. One beside a mark was cut from somebody's text."""
        for found in self._written.finditer(disguised):
            start = found.start()
            if found[1] is not None and (start == 0 or disguised[start - 1] != _BEGIN):
                yield found

    def _nested(self, said: Any) -> Any:
        """Return a value within an object, where the template's words are types and names that it compares."""
        return said if isinstance(said, str) and said in self._keys else self.disguised(said)

    def _disguised(self, text: str) -> str:
        if _RANDOM.fullmatch(text):
            return text
        made, at = "", 0
        for word in self._words.finditer(text):
            made += f"{text[at : word.start()].translate(self._disguise)}{_BEGIN}{word[0]}{_END}"
            at = word.end()
        return made + text[at:].translate(self._disguise)


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches any of some names, earlier ones first; it matches nothing if there are none."""
    return re.compile("|".join(map(re.escape, names)) or "(?!)")


def parsed_template(template: str) -> jinja2.nodes.Template:
    """Return a chat template's syntax tree, which is empty if it has no valid one."""
    environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"], autoescape=False)  # noqa: S701 - not HTML, and only parsed
    try:
        return environment.parse(_GENERATION.sub("", template))
    except jinja2.TemplateSyntaxError:
        return environment.parse("")


def _words_of(template: str) -> tuple[set[str], set[str]]:
    """Return the strings of a template, which it may look for in texts, and the names of attributes."""
    tree = parsed_template(template)
    strings = {node.value for node in tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str)}
    return strings, {node.attr for node in tree.find_all(jinja2.nodes.Getattr)}
