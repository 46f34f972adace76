"""A growing Markdown text, as rows: settled ones, and live ones that may still change. Pure.

The text is parsed from its last unsettled block on, so that a long reply costs no more than a short one.
A block is settled when another one begins after it, and so is an item of a list or a line of code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from markdown_it.token import Token

from midstream.terminal.markdown import CONTEXT_LINES, Painter, parsed
from midstream.terminal.plain_page import clean

LONGEST_LIVE = 8192
"""Characters of one block that may still change. A longer one is settled at the end of a line, or of a word."""
_BLANK_LINES = re.compile(r"(?:[ \t]*\n)+")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})([^\n]*)")
_LISTS = {"bullet_list_open", "ordered_list_open"}


@dataclass(frozen=True, slots=True)
class _Fence:
    """An open block of code."""

    marks: str
    language: str

    def closes(self, line: str) -> bool:
        """Return whether a line ends it."""
        marks = line.strip()
        return len(marks) >= len(self.marks) and set(marks) == {self.marks[0]} and not line.startswith("    ")


@dataclass(slots=True)
class _OpenList:
    """A list with some settled items."""

    kind: str
    next_number: int


class MarkdownStream:
    """One text. `begun`: its beginning, of which only the unsettled part is shown again."""

    def __init__(self, painter: Painter, begun: str = "") -> None:
        self._painter = painter
        self._settled = 0
        self._fence: _Fence | None = None
        self._code: list[str] = []
        self._list: _OpenList | None = None
        self._is_first = True
        if begun:
            self.take(begun)
            self._is_first = True

    def take(self, text: str, *, is_whole: bool = False) -> tuple[list[str], list[str]]:
        """Take the text so far; return the newly settled rows, and the live ones."""
        text = clean(text.removesuffix("\r"))
        settled: list[str] = []
        while self._settled < len(text):
            before = self._settled
            settled += self._step(text[before:], is_whole=is_whole)
            if self._settled == before:
                break
        return settled, [] if is_whole else self._live(text[self._settled :])

    def is_beyond(self, text: str) -> bool:
        """Return whether more was settled than this text has."""
        return self._settled > len(clean(text))

    def _step(self, tail: str, *, is_whole: bool) -> list[str]:
        if self._fence is not None:
            return self._take_code(self._fence, tail, is_whole=is_whole)
        if blank := _BLANK_LINES.match(tail):
            self._settled += blank.end()
            return []
        fence = _fence_of(tail)
        if fence is not None and (is_whole or "\n" in tail):
            return self._open(fence, tail)
        return self._take_blocks(tail, is_whole=is_whole)

    def _open(self, fence: _Fence, tail: str) -> list[str]:
        line, _, _ = tail.partition("\n")
        self._settled += min(len(tail), len(line) + 1)
        self._fence, self._code = fence, []
        return self._apart(self._painter.line(line.strip(), "dim"))

    def _take_code(self, fence: _Fence, tail: str, *, is_whole: bool) -> list[str]:
        """Settle lines of code up to the end of their block, or of the text so far."""
        lines = tail.split("\n")
        last = lines if is_whole else lines[:-1]
        end = next((at for at, line in enumerate(last) if fence.closes(line)), len(last))
        code = last[:end]
        if is_whole and code and not code[-1] and end == len(last):
            code = code[:-1]  # after the last line feed
        rows = self._painter.code(code, fence.language, self._code) if code else []
        self._code = [*self._code, *code][-CONTEXT_LINES:]
        taken = last[: end + 1]
        self._settled += min(len(tail), sum(map(len, taken)) + len(taken))
        if end < len(last):
            self._fence = None
            rows += self._painter.line(last[end].strip(), "dim")
        return rows

    def _take_blocks(self, tail: str, *, is_whole: bool) -> list[str]:
        """Settle blocks that others follow, in whole lines: the last line may become anything."""
        tokens = parsed(tail if is_whole else tail[: tail.rfind("\n") + 1])
        blocks = [at for at, token in enumerate(tokens) if token.level == 0 and token.nesting >= 0]
        end = next((at for at in blocks[1:] if tokens[at].type == "fence"), None)
        if end is None and not is_whole and len(blocks) > 1:
            end = blocks[-1]
        if end is not None:
            return self._settle(tail, tokens[:end], _offset(tail, _line(tokens[end])))
        if is_whole:
            return self._settle(tail, tokens, len(tail))
        items = [at for at, token in enumerate(tokens) if token.type == "list_item_open" and token.level == 1]
        if blocks and tokens[blocks[-1]].type in _LISTS and len(items) > 1:
            settled = [*tokens[: items[-1]], tokens[-1]]  # the list ends with the settled items
            return self._settle_items(tail, settled, _offset(tail, _line(tokens[items[-1]])), len(items) - 1)
        if len(tail) > LONGEST_LIVE:
            end = max(tail.rfind("\n", 0, LONGEST_LIVE), tail.rfind(" ", 0, LONGEST_LIVE)) + 1 or LONGEST_LIVE
            return self._settle(tail, parsed(tail[:end]), end)
        return []

    def _settle(self, tail: str, tokens: list[Token], chars: int) -> list[str]:
        rows = self._painted(tokens)
        self._settled += min(len(tail), chars)
        self._list = None
        return rows

    def _settle_items(self, tail: str, tokens: list[Token], chars: int, count: int) -> list[str]:
        rows = self._painted(tokens)
        kind, number = tokens[0].type, int(tokens[0].attrs.get("start", 1)) + count
        self._settled += min(len(tail), chars)
        self._list = _OpenList(kind, number)
        return rows

    def _painted(self, tokens: list[Token]) -> list[str]:
        """Return the rows of blocks. A list with settled items continues with its next number."""
        if self._list is None or not tokens or tokens[0].type != self._list.kind:
            return self._apart(self._painter.markdown(tokens))
        if self._list.kind == "ordered_list_open":
            tokens[0].attrs["start"] = self._list.next_number
        return self._painter.markdown(tokens)

    def _apart(self, rows: list[str]) -> list[str]:
        """Return the rows of a block, after an empty one if others are above."""
        if not rows or self._is_first:
            self._is_first = self._is_first and not rows
            return rows
        return ["", *rows]

    def _live(self, tail: str) -> list[str]:
        if not tail:
            return []
        if self._fence is not None:
            return self._painter.plain(tail)
        was_first = self._is_first
        rows = self._apart(self._painter.plain(tail)) if _fence_of(tail) else self._painted(parsed(tail))
        self._is_first = was_first
        return rows


def _fence_of(tail: str) -> _Fence | None:
    """Return the block of code at the beginning of a text."""
    line = _FENCE.match(tail)
    if line is None or (line[1][0] == "`" and "`" in line[2]):
        return None
    return _Fence(line[1], "".join(line[2].split()[:1]))


def _line(token: Token) -> int:
    return token.map[0] if token.map else 0


def _offset(text: str, line: int) -> int:
    """Return the offset of a line."""
    return sum(len(one) for one in text.split("\n")[:line]) + line
