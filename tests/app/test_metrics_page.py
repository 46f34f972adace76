"""`docs/metrics.md` has exactly the exported metrics, each with a sentence."""

from __future__ import annotations

import re
from pathlib import Path

from tests.app.in_process_service import InProcessService

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


async def exported(running: InProcessService) -> list[str]:
    text = (await running.get("/metrics"))[2]
    return re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)


async def test_every_metric_has_its_row_and_every_row_its_metric(running: InProcessService) -> None:
    rows = re.findall(r"^\| `(\w+)` \| \S", PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(await exported(running))


async def test_names_keep_to_the_conventions_of_prometheus(running: InProcessService) -> None:
    """Base units, and `_total` for counters alone. `promtool check metrics` checks more where it is installed."""
    text = (await running.get("/metrics"))[2]
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)", text, re.MULTILINE))
    assert {name for name, kind in kinds.items() if name.endswith("_total") != (kind == "counter")} == set()
    assert {name for name in kinds if re.search(r"_(ms|millis|mb|kb|minutes)(_|$)", name)} == set()


async def test_no_label_grows_with_the_number_of_people(running: InProcessService) -> None:
    """Nothing that people choose, no name of theirs and no conversation, is a label."""
    async with running.socket({"client_id": "somebody-in-particular"}) as socket:
        await socket.send(
            type="send", client_msg_id="m", content="hello", conversation_id="a-place-of-theirs"
        )
        await socket.until("done")
        text = (await running.get("/metrics"))[2]
    labels = set(re.findall(r'(\w+)="', text))
    known = {
        "le",
        "reason",
        "model",
        "requested",
        "kind",
        "cause",
        "outcome",
        "api",
        "code",
        "bound",
        "server",
    }
    assert labels <= known | {"client", "error", "version", "python"}
    assert "in-particular" not in text
    assert "a-place" not in text
