"""One reply in the Realtime protocol's events, from its beginning to its end. Pure."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from connections.openai.telling import problem_at
from connections.realtime.client_events import Metadata, Tokens
from connections.realtime.items import Item
from connections.realtime.server_events import (
    CachedTokens,
    ContentPartAdded,
    ContentPartDone,
    Failure,
    InputTokens,
    ItemAdded,
    ItemDone,
    ItemStatus,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    OutputTokens,
    Response,
    ResponseCreated,
    ResponseDone,
    ServerEvent,
    StatusDetails,
    TextPart,
    Usage,
)
from sessions.events import Done, Reason

_WHOLE = (Reason.STOP, Reason.TOOLS)
_INCOMPLETE = {
    Reason.LENGTH: StatusDetails("incomplete", "max_output_tokens"),
    Reason.TIMEOUT: StatusDetails("incomplete", "max_output_tokens"),
    Reason.FILTERED: StatusDetails("incomplete", "content_filter"),
}


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same in all that is told of one reply, and its text so far."""

    response_id: str
    item_id: str
    conversation_id: str
    max_output_tokens: Tokens = "inf"
    metadata: Metadata | None = None
    parts: list[str] = []

    def begin(self, item: Item, previous: str | None) -> list[ServerEvent]:
        """The response, its item and its one part exist."""
        shown = item.shown()
        return [
            ResponseCreated(response=self._response()),
            OutputItemAdded(response_id=self.response_id, item=shown),
            ItemAdded(previous_item_id=previous, item=shown),
            ContentPartAdded(response_id=self.response_id, item_id=self.item_id, part=TextPart("")),
        ]

    def text(self, text: str) -> ServerEvent:
        """More text."""
        self.parts.append(text)
        return OutputTextDelta(response_id=self.response_id, item_id=self.item_id, delta=text)

    def kept(self, done: Done) -> str:
        """The text as the history has it."""
        return "".join(self.parts)[: done.chars]

    def end(self, item: Item, previous: str | None, done: Done) -> list[ServerEvent]:
        """Everything is whole."""
        shown, part = item.shown(), TextPart(item.text)
        details = _details(done)
        response = msgspec.structs.replace(
            self._response(),
            status=details.type,
            status_details=details,
            output=(shown,),
            usage=_usage(done),
            model=done.model or msgspec.UNSET,
        )
        return [
            OutputTextDone(response_id=self.response_id, item_id=self.item_id, text=item.text),
            ContentPartDone(response_id=self.response_id, item_id=self.item_id, part=part),
            ItemDone(previous_item_id=previous, item=shown),
            OutputItemDone(response_id=self.response_id, item=shown),
            ResponseDone(response=response),
        ]

    def _response(self) -> Response:
        return Response(
            id=self.response_id,
            conversation_id=self.conversation_id,
            max_output_tokens=self.max_output_tokens,
            metadata=self.metadata,
        )


def item_status(done: Done) -> ItemStatus:
    """Whether a reply is all that the model had to say."""
    return "completed" if done.reason in _WHOLE else "incomplete"


def _details(done: Done) -> StatusDetails:
    if done.reason in _WHOLE:
        return StatusDetails("completed")
    if done.reason is Reason.CANCELLED:
        return StatusDetails("cancelled", "client_cancelled")
    if done.reason in _INCOMPLETE:
        return _INCOMPLETE[done.reason]
    if (problem := problem_at(done)) is None:
        raise RuntimeError(f"A reply that ended by {done.reason} has neither a regular end nor a problem.")
    kind = "server_error" if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    return StatusDetails("failed", error=Failure(kind, problem.word, str(problem)))


def _usage(done: Done) -> Usage:
    prompt, cached, generated = (
        done.usage.prompt_tokens,
        done.usage.cached_tokens,
        done.usage.generated_tokens,
    )
    return Usage(
        total_tokens=prompt + generated,
        input_tokens=prompt,
        output_tokens=generated,
        input_token_details=InputTokens(prompt, cached, CachedTokens(cached)),
        output_token_details=OutputTokens(generated),
    )
