"""Each dialogue leads to the events that it led to when it was recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.transcripts.player import play
from tests.transcripts.transcript import all_paths, read


@pytest.mark.parametrize("path", all_paths(), ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_a_dialogue_leads_to_what_was_recorded(path: Path, tmp_path: Path) -> None:
    await play(read(path), tmp_path)
