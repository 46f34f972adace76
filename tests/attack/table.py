"""A report as a table, for the terminal and for the guide, and the guide's list of attacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tests.attack.attack import Attack
from tests.attack.registry import FIRST_SEEN
from tests.attack.report import AttackReport, Mark, Trial
from tests.bench.report import NOT_MEASURED, number

HEADING = (
    "attack",
    "by",
    "gap \N{MULTIPLICATION SIGN}",
    "ping ms",
    "accepted \N{MULTIPLICATION SIGN}",
    "refused",
    "KB each",
    "back s",
    "",
)
MISSED = "!"
BEGIN, END = "<!-- {}: written by the program -->", "<!-- end of {} -->"


def table(report: AttackReport) -> str:
    """Return the table for a terminal; a value that misses its mark has an exclamation mark."""
    rows = [HEADING, *(_row(trial, "{}" + MISSED) for trial in report.trials)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADING))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]  # fmt: skip
    lines += [f"FAILED: {failure.what}: {failure.why}" for failure in report.failures]
    return "\n".join(lines)


def markdown(report: AttackReport) -> str:
    """Return the table for the guide; a value that misses its mark is bold."""
    rows = [
        HEADING,
        ("---", *["---:"] * (len(HEADING) - 2), "---"),
        *(_row(one, "**{}**") for one in report.trials),
    ]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    machine = report.machine
    conditions = (
        f"{report.date}, {machine.cores} cores ({machine.processor}), {report.took_s / 60:.0f} minutes."
    )
    return "\n".join(
        [conditions, "", *lines, *(f"- Failed: {one.what}: {one.why}" for one in report.failures)]
    )


def listed(attacks: Iterable[Attack]) -> str:
    """Return the guide's list: what each attack does, with a star for those of the review."""
    return "\n".join(_item(attack) for attack in attacks)


def _item(attack: Attack) -> str:
    star = " ★" if attack.name in FIRST_SEEN else ""
    count = (
        f"{attack.sockets} socket{'s' if attack.sockets > 1 else ''}{' together' if attack.together else ''}"
    )
    words, lines, line = f"`{attack.name}`{star} ({count}): {attack.what}".split(), list[str](), "-"
    for word in words:
        if len(line) + 1 + len(word) > 100:
            lines.append(line)
            line = " "
        line += f" {word}"
    return "\n".join([*lines, line])


def put_between(page: str, name: str, content: str) -> str:
    """Return a page with new content between the marks of this name. Raises ValueError if there are none."""
    begin, end = BEGIN.format(name), END.format(name)
    before, found, rest = page.partition(begin)
    _, also, behind = rest.partition(end)
    if not (found and also):
        raise ValueError(f"the page has no place for {name}")
    return f"{before}{begin}\n{content}\n{end}{behind}"


def _row(trial: Trial, miss: str) -> Sequence[str]:
    cells = [_cell(mark, miss) for mark in trial.marks]
    return trial.attack, str(trial.attackers), *cells, "met" if trial.met else "short"


def _cell(mark: Mark, miss: str) -> str:
    shown = NOT_MEASURED if mark.value is None else number(mark.value)
    return shown if mark.met else miss.format(shown)


def progress_line(trial: Trial) -> str:
    """Return a line of progress: the figures, and the server's answers to the attackers."""
    cells = (
        f"{title} {cell}" for title, cell in zip(HEADING[2:], _row(trial, "{}" + MISSED)[2:], strict=True)
    )
    answers = ", ".join(f"{count} {what}" for what, count in _most(trial.told))
    return f"{', '.join(cells).replace(',  ', ': ')}; told {answers or 'nothing'}"


def _most(answers: dict[str, int]) -> Iterator[tuple[str, int]]:
    yield from sorted(answers.items(), key=lambda pair: -pair[1])[:5]
