"""The code of the guide to live translation, as it stands there, against a real server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sessions.limits.bounds import RATES, Bound
from sessions.translation.interpretation import AHEAD, MAX_SOURCE_CHARS
from sessions.translation.sentences import MAX_SEGMENT_CHARS
from sessions.translation.translator import IDLE_S, PAUSE_S
from tests.docs.documents import PROTOCOL, ROOT, snippets
from tests.server_process import ServerProcess

GUIDE = ROOT / "docs" / "interpreting.md"


def test_the_program_translates_sentences(server: ServerProcess, tmp_path: Path) -> None:
    (program,) = snippets(GUIDE, "python")
    code = program.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
    (tmp_path / "live.py").write_text(code)
    ran = subprocess.run(
        [sys.executable, tmp_path / "live.py"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "早上好。你好吗？非常感谢。 stop"  # noqa: RUF001 - Chinese has its own


def test_the_bounds_are_those_of_the_guide_and_of_the_protocol() -> None:
    assert (MAX_SOURCE_CHARS, MAX_SEGMENT_CHARS, AHEAD, IDLE_S, PAUSE_S) == (32_000, 400, 4, 600, 1)
    for document in (GUIDE, PROTOCOL):
        text = " ".join(document.read_text().split())
        assert all(bound in text for bound in ("32,000 characters", "400", "ten minutes"))


def test_the_guide_says_how_many_words_a_connection_takes() -> None:
    text = " ".join(GUIDE.read_text().split())
    assert f"{RATES[Bound.TEXT_FRAMES].per_s:g} frames a second" in text
