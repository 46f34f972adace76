"""Runs all checks, and prints the findings: a line for each, or JSON."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import click
import msgspec

from app.doctor.findings import Finding, Verdict
from app.doctor.machine import machine
from app.doctor.network import network
from app.settings import Settings
from engine.process_log import printable

_COLOURS = {Verdict.GOOD: "green", Verdict.POOR: "yellow", Verdict.BAD: "red"}
_WIDTH = max(len(verdict.value) for verdict in Verdict)


async def examine(settings: Settings) -> AsyncIterator[Finding]:
    """Yield all findings as they are made."""
    for finding in machine(settings):
        yield finding
    async for finding in network(settings):
        yield finding


async def report(settings: Settings, *, as_json: bool) -> bool:
    """Print the findings; return whether the service could serve."""
    found = []
    async for finding in examine(settings):
        found.append(finding)
        if not as_json:
            _print_finding(finding)
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
    else:
        click.echo(_summary(found))
    return all(finding.verdict is not Verdict.BAD for finding in found)


def _print_finding(finding: Finding) -> None:
    mark = click.style(f"{finding.verdict.value:{_WIDTH}}", fg=_COLOURS[finding.verdict])
    click.echo(f"{mark}  {finding.subject}: {printable(finding.words)}")
    if finding.mend:
        click.echo(f"{'':{_WIDTH}}  → {printable(finding.mend)}")


def _summary(found: list[Finding]) -> str:
    bad = sum(finding.verdict is Verdict.BAD for finding in found)
    poor = sum(finding.verdict is Verdict.POOR for finding in found)
    if not bad and not poor:
        return "All is well: midstream serve."
    return f"{bad} to mend, {poor} to know."
