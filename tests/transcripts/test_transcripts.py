"""Each dialogue leads to the events that it led to when it was recorded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.transcripts.faults import FAULTS, ROOT, Fault
from tests.transcripts.player import play
from tests.transcripts.transcript import all_paths, read


@pytest.mark.parametrize("path", all_paths(), ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_a_dialogue_leads_to_what_was_recorded(path: Path, tmp_path: Path) -> None:
    transcript = read(path)
    if "speech" in transcript.settings and shutil.which("espeak-ng") is None:
        pytest.skip("needs espeak-ng")
    await play(transcript, tmp_path)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.step)
def test_a_fault_has_its_place_in_the_source(fault: Fault) -> None:
    assert (ROOT / fault.file).read_text().count(fault.old) == 1
