"""The table of `make schemas`, as Markdown, and where it stands in the guide. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tests.schemas.findings import Row

BEGIN = "<!-- the table of `make schemas` -->"
END = "<!-- the end of that table -->"
HEAD = ("draft", "schemas", "followed", "refused", "replies", "ended", "of these valid")


def table(rows: Mapping[str, Row]) -> str:
    """Return a line a draft."""
    lines = [_line(HEAD), _line(["---", *["--:"] * (len(HEAD) - 1)])]
    for name, row in rows.items():
        figures = (row.schemas, row.followed, sum(row.refused.values()), row.replies, row.ended, row.valid)
        lines.append(_line([name, *[f"{figure:,}" for figure in figures]]))
    return "\n".join(lines)


def put_into(page: str, new: str) -> str:
    """Return a page with its table replaced. Raises ValueError where it has no place for one."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no place for the table: {BEGIN} … {END}")
    return f"{head}{BEGIN}\n{new}\n{END}{tail}"


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(cells)} |"
