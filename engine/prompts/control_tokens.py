"""Control tokens, which only a chat template may write. If anybody else spells one out, it is plain text.

Templates and tokenizers rewrite text: a word that a template removes, or a character that a normalizer replaces, can turn
harmless text into a control token. So each prompt is rendered twice, the second time with everything that people and models
wrote in other characters. The control tokens there are the template's.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import jinja2
import jinja2.nodes

_BASE = 0x12000
"""Cuneiform replaces ASCII: letters without case that no template or normalizer knows."""

_BEGINS, _ENDS = 0x40000, 0x50000
"""The first of the marks around words of the template in a disguised text, where the template still finds them.

Each word has marks of its own, from planes in which no character is assigned.
"""

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

        The template's own words stay readable in it, except those that have a control token and more. `true` undoes it.
        """
        return self._changed(data, self._disguised)

    def quoted(self, data: Any) -> Any:
        """Return a value in which control tokens are no part of the template: less than `disguised`, for odd templates."""
        return self._changed(data, self._quoted)

    def blank(self, data: Any) -> Any:
        """Return a value with digests in place of texts, in which the template finds none of its words."""
        return self._changed(data, _digest)

    def are_cut(self, disguised: str) -> bool:
        """Return whether a disguised text has control tokens beside marks of words that the template has cut."""
        return any(self._is_cut(found) for found in self._written.finditer(disguised))

    def settled(self, disguised: str, blank: str) -> str:
        """Return a disguised text without marks beside the control tokens that the template wrote there.

        They are the template's if it writes as many where it finds no words, in `blank`. Otherwise they may be parts of
        somebody's text, from which the template cut a mark.
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

    def parts(self, disguised: str) -> Iterator[Part]:
        """Yield the control tokens that the template wrote in a disguised text, with the true text after each."""
        token, at = "", 0
        for found in self._found(disguised):
            yield Part(token, self.true(disguised[at : found.start()]))
            token, at = found[2], found.end()
        yield Part(token, self.true(disguised[at:]))

    def written(self, disguised: str) -> list[str]:
        """Return the control tokens that the template wrote in a disguised text."""
        return [found[2] for found in self._found(disguised)]

    def are_the_templates(self, token_ids: Iterable[int], text: str, disguised: str) -> bool:
        """Return whether a text's tokens have only the control tokens that the template wrote."""
        names = self.written(disguised)
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
        found = [match for match in self._found(disguised) if match[2] == name]
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
        """Yield where the template wrote control tokens. Those beside a mark are parts of somebody's text."""
        return (match for match in self._written.finditer(disguised) if not match[1] and not match[3])

    def _is_cut(self, match: re.Match[str]) -> bool:
        """Return whether a control token is beside a mark, but not between its own marks."""
        return match[0] not in (match[2], self._marked[match[2]])

    def _changed(self, data: Any, change: Callable[[str], str]) -> Any:
        """Return a value with changed texts. Within objects, the template's words are types and names that it compares."""
        if isinstance(data, str):
            return data if _RANDOM.fullmatch(data) else change(data)
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
