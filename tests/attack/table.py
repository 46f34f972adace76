"""A report as a table for the terminal, its exceptions for the guide, and the guide's list of attacks."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from tests.attack.attack import Attack
from tests.attack.report import GIVEN_BACK, AttackReport, Mark, Trial
from tests.bench.report import NOT_MEASURED, aligned, number

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
EDGE = 0.9
"""The share of a limit above which a value that meets it is near it."""
COLUMNS = 100
BEGIN, END = "<!-- {}: written by the program -->", "<!-- end of {} -->"


def table(report: AttackReport) -> str:
    """Return the table for a terminal; a value that misses its mark has an exclamation mark."""
    lines = [aligned([HEADING, *(_row(trial, "{}" + MISSED) for trial in report.trials)], numbers=True)]
    lines += [f"FAILED: {failure.what}: {failure.why}" for failure in report.failures]
    return "\n".join(lines)


def markdown(report: AttackReport) -> str:
    """Return the guide's summary, a row for each attack by the most attackers that misses a limit, and those near one."""
    most = max(trial.attackers for trial in report.trials)
    machine = report.machine
    summary = f"{report.date}, {machine.cores} cores ({machine.processor}), {report.took_s / 60:.0f} minutes."
    for attackers in sorted({trial.attackers for trial in report.trials}):
        trials = [trial for trial in report.trials if trial.attackers == attackers]
        met = sum(trial.met for trial in trials)
        summary += f" Met with {attackers}: {met} of {len(trials)}" + (
            ", all but:" if attackers == most else "."
        )
    of_most = [trial for trial in report.trials if trial.attackers == most]
    missed = [(trial.attack, values) for trial in of_most if (values := _missed(trial))]
    lines = ["| " + " | ".join(row) + " |" for row in [("attack", "missed"), ("---", "---"), *missed]]
    edges = ", ".join(f"`{trial.attack}`" for trial in of_most if _is_at_edge(trial))
    failures = (f"- Failed: {one.what}: {one.why}" for one in report.failures)
    blocks = ["\n".join(textwrap.wrap(summary, COLUMNS)), "\n".join(lines), *failures]
    if edges:
        near = textwrap.wrap(f"Barely met with {most}: {edges}.", COLUMNS, break_on_hyphens=False)
        blocks.append("\n".join(near))
    return "\n\n".join(blocks)


def _missed(trial: Trial) -> str:
    """The values that miss their limits, with their columns' names."""
    named = zip(HEADING[2:], trial.marks, strict=False)
    return ", ".join(f"{name} {_cell(mark, '{}')}" for name, mark in named if not mark.met)


def _is_at_edge(trial: Trial) -> bool:
    """Whether a value meets its limit barely."""
    return any(
        mark.met and mark.value is not None and mark.limit and mark.value > EDGE * mark.limit
        for mark in trial.marks
    )


def listed(attacks: Iterable[Attack]) -> str:
    """Return a line for each attack: its name and what it does."""
    return "\n".join(f"- `{attack.name}`: {attack.what}" for attack in attacks)


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
    unknown = f">{mark.limit:g}" if mark.name == GIVEN_BACK else NOT_MEASURED
    shown = unknown if mark.value is None else number(mark.value)
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
