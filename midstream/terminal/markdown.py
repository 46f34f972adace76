"""Markdown as the rows of a terminal, with rich: words are not broken, tags and addresses are not lost. Pure."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich import markdown as rich_markdown
from rich.cells import chop_cells
from rich.console import Console, ConsoleOptions, RenderResult
from rich.rule import Rule
from rich.segment import Segment
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from midstream.terminal.tables import table

CONTEXT_LINES = 100
"""Lines of code before a line that determine its colours; an earlier beginning, as of a long comment, is not known."""
_CODE_COLOURS = "ansi_dark"  # the terminal's own colours, so that they go with its background
_THEME = Theme(
    {
        "markdown.h1": "bold underline",
        "markdown.h2": "bold",
        "markdown.h3": "bold",
        "markdown.h4": "bold dim",
        "markdown.code": "cyan",
        "markdown.block_quote": "italic",
        "markdown.item.number": "none",
        "markdown.link": "none",
        "markdown.link_url": "underline",
        "markdown.table.header": "bold",
        "markdown.table.border": "dim",
    }
)
_PARSER = (
    MarkdownIt("commonmark")
    .enable(["strikethrough", "table"])
    .disable(["html_block", "html_inline", "reference"])  # shown as text, since rich would drop it
)


def parsed(source: str) -> list[Token]:
    """Return the tokens of a text. Line breaks stay, as on the page; an image shows its description and its address."""
    tokens = _PARSER.parse(source)
    for token in tokens:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"
            elif child.type == "image":
                child.type, child.tag, child.children = "text", "", None
                child.content = f"[{child.content}] ({child.attrs.get('src', '')})"
    return tokens


class Painter:
    """Makes rows with so many cells. Styles end within their row."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self._console = Console(file=io.StringIO(), force_terminal=True, width=columns, theme=_THEME)

    def markdown(self, tokens: list[Token]) -> list[str]:
        """Return the rows of whole blocks, with an empty one between two."""
        rows: list[str] = []
        for block in _blocks(tokens):
            painted = _without_margins(self._rows(self._console.render_lines(_Markdown(block), pad=False)))
            rows += ["", *painted] if rows and painted else painted
        return rows

    def code(self, lines: list[str], language: str, before: list[str]) -> list[str]:
        """Return lines of code, a row each of any length: a terminal that wraps a line still copies it as one."""
        coloured = _coloured("\n".join([*before, *lines]), language).split("\n", allow_blank=True)
        if len(coloured) < len(before) + len(lines):
            return lines
        segments = [list(line.render(self._console)) for line in coloured[len(before) :][: len(lines)]]
        return self._rows(segments)

    def plain(self, line: str) -> list[str]:
        """Return a line as it is, wrapped at the end of the row."""
        return chop_cells(line.expandtabs(), self.columns) or [""]

    def line(self, words: str, style: str = "") -> list[str]:
        """Return a line of the client's own text, wrapped between words."""
        return self._rows(self._console.render_lines(Text(words, style=style), pad=False))

    def _rows(self, lines: list[list[Segment]]) -> list[str]:
        with self._console.capture() as captured:
            for line in lines:
                self._console.print(_Row(_without_end(line)), end="", soft_wrap=True)
        return captured.get().split("\n")[:-1]


class _Row:
    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._segments
        yield Segment.line()


def _without_end(line: list[Segment]) -> list[Segment]:
    """Return a row without the blanks that fill it, which would be copied with it."""
    kept = list(line)
    while kept:
        last = kept.pop()
        text = last.text.rstrip()
        if text:
            return [*kept, Segment(text, last.style)]
    return []


def _blocks(tokens: list[Token]) -> Iterator[list[Token]]:
    """Yield the tokens of each block."""
    starts = [at for at, token in enumerate(tokens) if token.level == 0 and token.nesting >= 0]
    for start, end in pairwise([*starts, len(tokens)]):
        yield tokens[start:end]


def _without_margins(rows: list[str]) -> list[str]:
    """Return rows without the empty ones that rich puts around some blocks."""
    filled = [at for at, row in enumerate(rows) if row]
    return rows[filled[0] : filled[-1] + 1] if filled else []


def _coloured(code: str, language: str) -> Text:
    """Return code in colours, with its tabs."""
    syntax = Syntax(code, language or "text", theme=_CODE_COLOURS, background_color="default", tab_size=0)
    return syntax.highlight(code)


class _Heading(rich_markdown.Heading):
    LEVEL_ALIGN: ClassVar[dict[str, Any]] = dict.fromkeys(rich_markdown.Heading.LEVEL_ALIGN, "left")


class _Code(rich_markdown.CodeBlock):
    """Code within lists and quotations, and indented code."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = _coloured(str(self.text), self.lexer_name)
        code.rstrip()
        code.no_wrap, code.overflow = False, "fold"
        yield code


class _List(rich_markdown.ListElement):
    """Each item after its own mark, so that it looks the same whatever follows it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        first = 1 if self.list_start is None else self.list_start
        for number, item in enumerate(self.items, first):
            mark = " • " if self.list_type == "bullet_list_open" else f" {number}. "
            inside = options.update(width=max(1, options.max_width - len(mark)))
            for at, line in enumerate(console.render_lines(item.elements, inside) or [[]]):
                yield Segment(mark if at == 0 else " " * len(mark))
                yield from line
                yield Segment.line()


class _Rule(rich_markdown.HorizontalRule):
    new_line = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Rule(style="dim")


class _Table(rich_markdown.TableElement):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        head = [] if self.header is None or self.header.row is None else self.header.row.cells
        rows = [] if self.body is None else self.body.rows
        yield table(
            [cell.content for cell in head],
            [[cell.content for cell in row.cells] for row in rows],
            options.max_width,
        )


class _Markdown(rich_markdown.Markdown):
    elements: ClassVar[dict[str, Any]] = {
        **rich_markdown.Markdown.elements,
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
        "hr": _Rule,
        "bullet_list_open": _List,
        "ordered_list_open": _List,
        "table_open": _Table,
    }

    def __init__(self, tokens: list[Token]) -> None:
        super().__init__("", hyperlinks=False)  # not every terminal shows the address behind a link
        self.parsed = tokens
