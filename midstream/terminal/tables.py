"""Tables with columns as wide as their longest word at least; on a terminal that is too narrow for that, a list."""

from __future__ import annotations

from rich import box
from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

_BETWEEN = 2  # cells between two columns, as rich lays them out here


def table(head: list[Text], rows: list[list[Text]], columns: int) -> RenderableType:
    """Return a table for a terminal with so many columns."""
    widths = _widths([head, *rows], columns)
    return _listed(head, rows) if widths is None else _laid_out(head, rows, widths)


def _laid_out(head: list[Text], rows: list[list[Text]], widths: list[int]) -> Table:
    laid = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True,
        style="markdown.table.border", header_style="markdown.table.header",
    )  # fmt: skip
    for cell, width in zip(head, widths, strict=True):
        laid.add_column(cell, width=width, overflow="fold", justify=cell.justify or "default")
    for row in rows:
        laid.add_row(*row)
    return laid


def _listed(head: list[Text], rows: list[list[Text]]) -> Text:
    """Return each row as lines of `heading: cell`, with an empty line between two."""
    lines: list[Text] = []
    for row in rows:
        lines += [Text("")] if lines else []
        for name, cell in zip(head, row, strict=False):
            if cell.plain:
                lines.append(Text.assemble((name.plain, "bold"), ": " if name.plain else "", cell))
    return Text("\n").join(lines or head)


def _widths(rows: list[list[Text]], columns: int) -> list[int] | None:
    """Return the widths of the columns; None if their longest words do not fit.

    The remaining cells are divided in proportion to what each column could still use.
    """
    across = list(zip(*rows, strict=False))
    least = [max(1, *(_longest_word(cell) for cell in column)) for column in across]
    most = [max(1, *(_longest_line(cell) for cell in column)) for column in across]
    free_columns = columns - _BETWEEN * max(0, len(across) - 1) - sum(least)
    if free_columns < 0:
        return None
    wanted = [wide - narrow for wide, narrow in zip(most, least, strict=True)]
    total = sum(wanted)
    if total <= free_columns:
        return most
    return [narrow + free_columns * more // total for narrow, more in zip(least, wanted, strict=True)]


def _longest_word(cell: Text) -> int:
    return max(map(cell_len, cell.plain.split()), default=0)


def _longest_line(cell: Text) -> int:
    return max(map(cell_len, cell.plain.splitlines()), default=0)
