"""The guide to operation: what it has people watch is there, and its sums can be asked for as it says."""

from __future__ import annotations

import re
import shlex
from shutil import which

import pytest
from click.testing import CliRunner

from app.cli import main
from app.settings import DEMO_MODEL
from tests.app.in_process_service import InProcessService
from tests.app.raw_http import answer
from tests.docs.documents import ROOT, prose, run_program, snippets

GUIDE = ROOT / "docs" / "operate.md"


async def test_what_it_has_people_watch_is_there(running: InProcessService) -> None:
    _, page = await answer(running, "/metrics")
    named = set(re.findall(r"`((?:midstream|process)_[a-z_]+)`", prose(GUIDE)))
    assert len(named) > 5
    assert {name for name in named if f"# TYPE {name}" not in page} == set()
    paths = re.findall(r"`(/[a-z]+)`", prose(GUIDE).partition("\n## Logs")[0])
    assert len(paths) >= 4
    assert [(await answer(running, path))[0] for path in paths] == [200] * len(paths)


def test_the_sums_are_told_with_every_assumption() -> None:
    (command,) = [code for code in snippets(GUIDE, "sh") if code.startswith("midstream size")]
    assumed = re.findall(r"`(--[a-z-]+ [\d.]+)`", prose(GUIDE))
    assert len(assumed) == 2
    words = shlex.split(command.replace("./my-model", shlex.quote(str(DEMO_MODEL))))[1:]
    reported = CliRunner().invoke(main, [*words, *shlex.split(" ".join(assumed))])
    assert reported.exit_code == 0, reported.output
    figures = " ".join(reported.output.split())
    assert [option for option in assumed if option not in figures] == []


@pytest.mark.skipif(which("curl") is None, reason="needs curl")
async def test_whether_it_is_ready_is_asked_as_it_says(running: InProcessService) -> None:
    (command,) = [code for code in snippets(GUIDE, "sh") if code.startswith("curl")]
    status, answered = await run_program(*shlex.split(command.replace("http://127.0.0.1:8000", running.url)))
    assert (status, bool(answered)) == (0, True)
