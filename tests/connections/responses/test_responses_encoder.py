"""The events of a response."""

from __future__ import annotations

from connections.api.requests import Problem
from connections.api.responses import schema
from connections.api.responses.encoder import ResponsesEncoder
from sessions.running.ephemeral import TextPiece


def test_a_response_that_fails_has_what_was_written_so_far() -> None:
    encoder = ResponsesEncoder(schema.Response(id="resp_1", created_at=0, model="m"), name="1")
    encoder.piece(TextPiece("Hel"))
    last = encoder.fail(Problem(404, "The conversation was deleted.", code="not_found"))[-1]
    assert isinstance(last, schema.ResponseFailed)
    (item,) = last.response.output
    assert isinstance(item, schema.Message)
    assert (item.status, [part.text for part in item.content]) == ("incomplete", ["Hel"])
