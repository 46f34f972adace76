"""The table of `make schemas`, as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tests.schemas.findings import Row

HEAD = ("draft", "schemas", "followed", "refused", "replies", "ended", "of these valid")


def table(rows: Mapping[str, Row]) -> str:
    """Return a line a draft."""
    lines = [_line(HEAD), _line(["---", *["--:"] * (len(HEAD) - 1)])]
    for name, row in rows.items():
        figures = (row.schemas, row.followed, sum(row.refused.values()), row.replies, row.ended, row.valid)
        lines.append(_line([name, *[f"{figure:,}" for figure in figures]]))
    return "\n".join(lines)


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(cells)} |"
