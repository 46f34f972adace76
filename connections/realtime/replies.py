"""Converts one reply to the Realtime protocol's events, from its beginning to its end. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from connections.api.replies import problem_at_end
from connections.realtime.audio.audio_events import (
    OutputAudioDone,
    OutputTranscriptDelta,
    OutputTranscriptDone,
)
from connections.realtime.client_events import Metadata, TokenLimit
from connections.realtime.items import Item
from connections.realtime.server_events import (
    ArgumentsDelta,
    ArgumentsDone,
    AudioPart,
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

_encode = msgspec.json.Encoder().encode
_WHOLE = (Reason.STOP, Reason.TOOLS)
_INCOMPLETE = {
    Reason.LENGTH: StatusDetails("incomplete", "max_output_tokens"),
    Reason.TIMEOUT: StatusDetails("incomplete", "max_output_tokens"),
    Reason.FILTERED: StatusDetails("incomplete", "content_filter"),
}


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The common values of one reply's events, its text so far, and its items in order.

    `called`: its calls, also those that the server runs, which are no items. `speaks`: its text is a
    transcript. `before`: the common part of all text events, between their id and their text, once one was
    sent.
    """

    response_id: str
    item_id: str
    conversation_id: str
    max_output_tokens: TokenLimit = "inf"
    metadata: Metadata | None = None
    parts: list[str] = []
    output: list[str] = []
    before: list[bytes] = []
    called: list[str] = []
    speaks: bool = False

    def begin(self) -> ServerEvent:
        """Return the event that the response exists."""
        return ResponseCreated(response=self._response())

    def begin_text(self, item: Item, previous: str | None) -> list[ServerEvent]:
        """Return the events that the item of its text, and the item's part, exist."""
        place = self._place(item)
        part = ContentPartAdded(
            response_id=self.response_id, item_id=item.item_id, output_index=place, part=self._part("")
        )
        return [*self._added(item, previous, place), part]

    def text(self, text: str) -> ServerEvent:
        """Return the event of more text."""
        self.parts.append(text)
        kind = OutputTranscriptDelta if self.speaks else OutputTextDelta
        return kind(**self.about(), delta=text)

    def about(self) -> dict[str, Any]:
        """Return the common first fields of the events of its text and its sound."""
        place = self.output.index(self.item_id)
        return {"response_id": self.response_id, "item_id": self.item_id, "output_index": place}

    def delta(self, text: str) -> bytes:
        """Return the event of more text, encoded after its id: only the text is encoded anew."""
        if not self.before:
            whole = _encode(self.text(""))
            self.parts.pop()
            self.before.append(whole.partition(b'"event_id":""')[2].removesuffix(b'""}'))
        self.parts.append(text)
        return b"%b%b}" % (self.before[0], _encode(text))

    def call(self, begun: Item, item: Item, previous: str | None) -> list[ServerEvent]:
        """Return the events of a complete call. `begun`: without its arguments."""
        place = self._place(item)
        about: dict[str, Any] = {
            "response_id": self.response_id,
            "item_id": item.item_id,
            "output_index": place,
            "call_id": item.call_id,
        }
        return [
            *self._added(begun, previous, place),
            ArgumentsDelta(**about, delta=item.text),
            ArgumentsDone(**about, name=item.name, arguments=item.text),
            *self._whole(item, previous, place),
        ]

    def kept(self, done: Done) -> str:
        """Return the text that the history has."""
        return "".join(self.parts)[: done.chars]

    def end_text(self, item: Item, previous: str | None) -> list[ServerEvent]:
        """Return the events that the text is complete."""
        place, about = self._place(item), self.about()
        done: list[ServerEvent] = [OutputTextDone(**about, text=item.text)]
        if self.speaks:
            done = [OutputAudioDone(**about), OutputTranscriptDone(**about, transcript=item.text)]
        return [
            *done,
            ContentPartDone(**about, part=self._part(item.text)),
            *self._whole(item, previous, place),
        ]

    def _part(self, text: str) -> TextPart | AudioPart:
        return AudioPart(text) if self.speaks else TextPart(text)

    def end(self, output: Sequence[Item], done: Done, *, interrupted_by_speech: bool = False) -> ServerEvent:
        """Return the event that all is complete. `interrupted_by_speech`: its listener spoke over it."""
        details = _details(done, interrupted_by_speech=interrupted_by_speech)
        return ResponseDone(
            response=msgspec.structs.replace(
                self._response(),
                status=details.type,
                status_details=details,
                output=tuple(item.shown() for item in output),
                usage=_usage(done),
                model=done.model or msgspec.UNSET,
            )
        )

    def _place(self, item: Item) -> int:
        """Return the index of an item among those of the reply; a new one is last."""
        if item.item_id not in self.output:
            self.output.append(item.item_id)
        return self.output.index(item.item_id)

    def _added(self, item: Item, previous: str | None, place: int) -> list[ServerEvent]:
        shown = item.shown()
        return [
            OutputItemAdded(response_id=self.response_id, output_index=place, item=shown),
            ItemAdded(previous_item_id=previous, item=shown),
        ]

    def _whole(self, item: Item, previous: str | None, place: int) -> list[ServerEvent]:
        shown = item.shown()
        return [
            ItemDone(previous_item_id=previous, item=shown),
            OutputItemDone(response_id=self.response_id, output_index=place, item=shown),
        ]

    def _response(self) -> Response:
        return Response(
            id=self.response_id,
            conversation_id=self.conversation_id,
            output_modalities=("audio",) if self.speaks else ("text",),
            max_output_tokens=self.max_output_tokens,
            metadata=self.metadata,
        )


def item_status(done: Done) -> ItemStatus:
    """Return whether the model completed its reply."""
    return "completed" if done.reason in _WHOLE else "incomplete"


def _details(done: Done, *, interrupted_by_speech: bool) -> StatusDetails:
    if done.reason in _WHOLE:
        return StatusDetails("completed")
    if done.reason is Reason.CANCELLED:
        return StatusDetails("cancelled", "turn_detected" if interrupted_by_speech else "client_cancelled")
    if done.reason in _INCOMPLETE:
        return _INCOMPLETE[done.reason]
    if (problem := problem_at_end(done)) is None:
        raise RuntimeError(f"A reply that ended by {done.reason} has neither a regular end nor a problem.")
    kind = "server_error" if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    return StatusDetails("failed", error=Failure(kind, problem.error_code, str(problem)))


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
