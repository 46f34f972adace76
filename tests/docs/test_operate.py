"""The guide to operation: what it has people watch is there, and the store takes what it says."""

from __future__ import annotations

import re
import shlex
from shutil import which

import pytest
from redis.asyncio import Redis

from tests.app.in_process_service import InProcessService
from tests.app.raw_http import answer
from tests.bench.conversations import cost
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


@pytest.mark.parametrize(("exchanges", "tokens"), [(1, 300), (6, 100), (6, 300)])
async def test_a_conversation_takes_as_much_of_the_store_as_it_says(
    store: Redis, exchanges: int, tokens: int
) -> None:
    """Within 15 per cent for good, and never more while a reader may resume its replies."""
    turn, first, token = 1027, 750, 166
    told = " ".join(prose(GUIDE).split())
    assert [figure for figure in ("about 1 KB", "0.7 KB", "165 bytes") if figure not in told] == []
    seen = await cost(store, exchanges=exchanges, tokens=tokens)
    stored = seen.text + turn * exchanges + first
    assert stored == pytest.approx(seen.after, rel=0.15)
    assert seen.before <= stored + token * exchanges * tokens


@pytest.mark.skipif(which("curl") is None, reason="needs curl")
async def test_whether_it_is_ready_is_asked_as_it_says(running: InProcessService) -> None:
    (command,) = [code for code in snippets(GUIDE, "sh") if code.startswith("curl")]
    status, answered = await run_program(*shlex.split(command.replace("http://127.0.0.1:8000", running.url)))
    assert (status, bool(answered)) == (0, True)
