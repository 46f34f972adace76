"""`docs/metrics.md` has exactly the exported metrics, each with a sentence."""

from __future__ import annotations

import re
from pathlib import Path

from tests.app.in_process_service import InProcessService

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


async def test_metrics_are_documented_named_by_convention_and_name_nobody(running: InProcessService) -> None:
    """Base units, and `_total` for counters alone. Nothing that people choose is a label. `promtool check metrics` checks more."""
    async with running.socket({"client_id": "somebody-in-particular"}) as socket:
        await socket.send(
            type="send", client_msg_id="m", content="hello", conversation_id="a-place-of-theirs"
        )
        await socket.until("done")
        text = (await running.get("/metrics"))[2]
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)", text, re.MULTILINE))
    rows = re.findall(r"^\| `(\w+)` \| \S", PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(kinds)
    assert {name for name, kind in kinds.items() if name.endswith("_total") != (kind == "counter")} == set()
    assert {name for name in kinds if re.search(r"_(ms|millis|mb|kb|minutes)(_|$)", name)} == set()
    labels = set(re.findall(r'(\w+)="', text))
    known = "le reason model requested kind cause outcome api code bound server client error version python"
    assert labels <= set(known.split())
    assert "in-particular" not in text
    assert "a-place" not in text
