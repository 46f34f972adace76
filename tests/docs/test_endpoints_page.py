"""What docs/endpoints.md says in tables about other vendors' APIs is what the service does."""

from __future__ import annotations

import re

from connections.api.anthropic import endpoint as anthropic
from connections.api.replies import _FINISH_REASONS
from connections.api.responses.encoder import _INCOMPLETE_REASONS
from sessions.events import Reason
from tests.docs.documents import ROOT
from tests.transcripts.transcript import FOLDER, read

PAGE = (ROOT / "docs" / "endpoints.md").read_text()


def rows(head: str) -> list[list[str]]:
    """The rows of the table that begins so, as the texts of their cells."""
    table = PAGE.partition(f"\n| {head}")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def test_each_end_of_a_reply_has_the_names_that_the_page_says() -> None:
    said = {reason: row[1:] for row in rows("[`done.reason`]") for reason in quoted(row[0])}
    assert said.keys() == {str(reason) for reason in Reason}
    for reason in Reason:
        chat, messages, responses = map(quoted, said[reason])
        assert chat == [_FINISH_REASONS[reason]] if reason in _FINISH_REASONS else not chat
        assert messages[:1] == [anthropic._REASONS[reason]] if reason in anthropic._REASONS else not messages
        early = _INCOMPLETE_REASONS.get(reason)
        assert early is None or early in responses


def test_realtime_events_come_in_the_order_that_the_page_says() -> None:
    said = [name for _, events in rows("After | Events")[2:] for name in quoted(events)]
    said[said.index("….done")] = "response.function_call_arguments.done"
    found = [
        event["type"] for step in read(FOLDER / "realtime" / "tools.yaml").steps for _, event in step.events
    ]
    begin = found.index("response.created")
    assert found[begin : found.index("response.done") + 1] == said
