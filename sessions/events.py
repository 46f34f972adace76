"""The events of a conversation. The journal keeps them and attached connections get them, in the same coding.

`seq` numbers the journalled events of a conversation from 1 on, without gaps. A reader may miss some of them,
because they were merged or withdrawn; then the next event covers them, and its `first_seq` is the seq of the
first one that was missed. Offsets and lengths count Unicode code points.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Literal, Self, TypeVar, assert_never

import msgspec

from engine.vision.image import Image
from sessions.errors import Refused


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """An image in a message. Width and height are in pixels."""

    id: str
    media_type: str
    width: int
    height: int

    @property
    def image(self) -> Image:
        """The image without bytes, placed before the message's text."""
        return Image(self.id, self.media_type, self.width, self.height)

    @classmethod
    def of(cls, image: Image) -> Attachment:
        """Make one for clients."""
        return cls(id=image.digest, media_type=image.media_type, width=image.width, height=image.height)


def attachments_of(images: Iterable[Image]) -> tuple[Attachment, ...]:
    """Return the attachments of a message."""
    return tuple(map(Attachment.of, images))


class Reason(StrEnum):
    """Why a turn ended. `interrupted`: a part of the service failed, or stopped; the user did nothing.

    `tools`: it called tools, and another turn follows once their calls are settled.
    """

    STOP = "stop"
    TOOLS = "tools"
    LENGTH = "length"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    FILTERED = "filtered"
    ERROR = "error"


class Cause(StrEnum):
    """Who cancelled a turn."""

    CLIENT = "client"
    DISCONNECT = "disconnect"
    INTERRUPT = "interrupt"
    ROLLBACK = "rollback"
    DRAIN = "drain"
    OPERATOR = "operator"


class CallState(StrEnum):
    """The state of a tool call. All but `waiting` and `running` are final."""

    WAITING = "waiting"
    """It waits for an approval, for a client's result, or for a place to run."""
    RUNNING = "running"
    DONE = "done"
    DENIED = "denied"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    LOST = "lost"
    """It was started, and its outcome is not known: the replica or client that ran it died."""

    @property
    def is_settled(self) -> bool:
        """Whether the call is over."""
        return self not in _OPEN


_OPEN = (CallState.WAITING, CallState.RUNNING)

Where = Literal["client", "server"]
"""Who runs a tool."""
Needs = Literal["none", "approval"]
"""What a call waits for before anybody may run it."""

StatusState = Literal["queued", "prefill", "retrying", "fallback", "unsaved", "tool"]
"""Why a turn's text is delayed, or not in the store; or the progress of a tool."""


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens of a turn. `wasted_tokens`: generated tokens that are not in the stored reply.

    `acked_tokens`: tokens whose events the client confirmed with `ack`. `reasoning_ms`: the duration of the reasoning, if
    known.
    """

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    sent_tokens: int
    wasted_tokens: int
    acked_tokens: int | None = None
    reasoning_tokens: int = 0
    reasoning_ms: float | None = None


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds since the turn was accepted; None for a stage that the turn did not reach."""

    queued_ms: float | None
    first_token_ms: float | None
    total_ms: float


class CancelFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of a cancel. `steps_after`: engine steps after the cancel; None if the engine did not confirm in time.

    `precision`: for a spoken reply, whether the end is exact to the word, or only to a chunk of several words.
    """

    cause: Cause
    latency_ms: float
    steps_after: int | None
    precision: Literal["word", "chunk"] | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a turn ended with `error` or `interrupted`, in words for the user."""

    code: str
    message: str
    retry_after_ms: int | None = None

    @classmethod
    def of(cls, refused: Refused) -> Self:
        """Make one from a refusal that came too late to refuse the turn."""
        return cls(code=refused.code, message=str(refused), retry_after_ms=refused.retry_after_ms)


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """The root of all events."""

    conversation_id: str


class Languages(msgspec.Struct, frozen=True):
    """The languages of a live translation, as tags (BCP 47). A source of `auto` may be any language."""

    source: str
    target: str


class Accepted(Event, frozen=True, kw_only=True, tag="accepted"):
    """A turn begins: the user's message is in the history. `queue_position`: the turn's place in the queue; 1 is next.

    `parent_id`: the message before the user's message; null: there is none. `model`: the model that will write the reply.
    `follows`: the turn that this turn follows because its calls are settled. Then there is no new message, and `message_id` is
    the reply with the calls. `continues`: the reply that the turn continues. `interprets`: if present, the message is the
    source of a live translation, and `source` events extend it.
    """

    client_msg_id: str
    turn_id: str
    message_id: str
    epoch: str
    seq: int
    first_seq: int | None = None
    queue_position: int | None = None
    ref: str | None = None
    duplicate: bool = False
    content: str | None = None
    parent_id: str | msgspec.UnsetType | None = msgspec.UNSET
    model: str | None = None
    follows: str | None = None
    continues: str | None = None
    interprets: Languages | None = None
    attachments: tuple[Attachment, ...] = ()


class Delta(Event, frozen=True, kw_only=True, tag="delta"):
    """More text of a turn's reply. `off`: the length of the reply before `text`.

    `src_off`: in a live translation, how many characters of the source had been read when this text ended.
    """

    turn_id: str
    seq: int
    first_seq: int
    off: int
    text: str
    tokens: int
    src_off: int | None = None


class SourceText(Event, frozen=True, kw_only=True, tag="source"):
    """The source of a live translation grew. `off`: the length of the source before `text`. `final`: the source is complete."""

    turn_id: str
    seq: int
    off: int
    text: str
    final: bool = False
    first_seq: int | None = None


class Reasoning(Event, frozen=True, kw_only=True, tag="reasoning"):
    """More of the model's reasoning, which is not part of the reply. `off`: the length of the reasoning before `text`."""

    turn_id: str
    seq: int
    first_seq: int
    off: int
    text: str
    tokens: int


class ToolCall(Event, frozen=True, kw_only=True, tag="tool_call"):
    """The model calls a tool. `index`: the call's number in the reply, from 0. `off`: the length of the reply before the call.

    `args`: the arguments, a JSON object as text. `args_sha256`: the SHA-256 of `args` in UTF-8. `expires_at`: until when the
    call waits for a client, in Unix milliseconds.
    """

    turn_id: str
    seq: int
    call_id: str
    index: int
    name: str
    args: str
    args_sha256: str
    where: Where
    needs: Needs
    off: int
    tokens: int
    first_seq: int | None = None
    expires_at: int | None = None


class ToolState(Event, frozen=True, kw_only=True, tag="tool_state"):
    """A call has a new state. `content`: the result of a call that is done. `error`: the error of a call that is done.

    `args`: the arguments that the call runs with, if the decision changed them. `args_sha256`: the hash of those arguments.
    """

    turn_id: str
    seq: int
    call_id: str
    state: CallState
    first_seq: int | None = None
    content: str | None = None
    error: str | None = None
    args: str | None = None
    args_sha256: str | None = None


class Done(Event, frozen=True, kw_only=True, tag="done"):
    """The end of a turn. Every turn has one. `chars`: the length of the stored reply.

    `text_sha256`: the SHA-256 of the stored reply in UTF-8. `reasoning_chars`: the length of the stored reasoning. `open`: the
    ids of the reply's unsettled calls. `model`: the model that wrote the reply. `requested_model`: the requested model, if a
    fallback wrote the reply. `follows`: the turn whose calls this turn follows. `saved`: whether the end is stored. `removed`:
    whether the message and its reply were removed from the history.
    """

    turn_id: str
    message_id: str
    seq: int
    reason: Reason
    chars: int
    usage: Usage
    timing: Timing
    text_sha256: str
    saved: bool
    first_seq: int | None = None
    removed: bool = False
    cancel: CancelFacts | None = None
    error: Failure | None = None
    model: str | None = None
    requested_model: str | None = None
    reasoning_chars: int = 0
    open: tuple[str, ...] = ()
    follows: str | None = None


class Removed(Event, frozen=True, kw_only=True, tag="removed"):
    """A message and its reply were removed from the history, after the turn had ended."""

    turn_id: str
    seq: int
    first_seq: int | None = None


class Status(Event, frozen=True, kw_only=True, tag="status"):
    """What a turn is waiting for, to show to the user. Not journalled.

    `queue_position`: in the state `queued`, the turn's place; 1 starts next. `progress`: in `prefill` and `tool`, a fraction
    from 0 to 1. `model`: in `fallback`, the model that answers instead of the requested model. `message`: in `tool`, what the
    call `call_id` reports.
    """

    turn_id: str
    state: StatusState
    queue_position: int | None = None
    progress: float | None = None
    model: str | None = None
    call_id: str | None = None
    message: str | None = None


class Titled(Event, frozen=True, kw_only=True, tag="title"):
    """The model wrote a title for the conversation. Not journalled."""

    title: str


class Deleted(Event, frozen=True, kw_only=True, tag="deleted"):
    """The conversation was deleted. Not journalled. Only the connection that sent `delete` gets a `ref`."""

    ref: str | None = None


class Resumed(Event, frozen=True, kw_only=True, tag="resumed"):
    """Answers `resume`. The missed events follow, then new ones. Not journalled. `live`: the running turn.

    `replayed`: how many events were missed.
    """

    ref: str | None = None
    epoch: str
    replayed: int | msgspec.UnsetType = msgspec.UNSET
    live: str | msgspec.UnsetType | None = msgspec.UNSET


class Gap(Event, frozen=True, kw_only=True, tag="gap"):
    """Some missed events are no longer kept. A `snapshot` follows. `min_seq`: the oldest event that is kept."""

    ref: str | None = None
    epoch: str
    min_seq: int


class ShownCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reply's tool call, in the history. The fields are those of `tool_call` and `tool_state`."""

    call_id: str
    index: int
    name: str
    args: str
    args_sha256: str
    where: Where
    needs: Needs
    off: int
    state: CallState
    expires_at: int | None = None
    content: str | None = None
    error: str | None = None


class Snapshot(Event, frozen=True, kw_only=True, tag="snapshot"):
    """The state of the conversation at `seq`: the running turn, if any, and its text so far.

    `reasoning`: the turn's reasoning so far. `calls`: the turn's calls so far. If no turn runs, they are the conversation's
    open calls.
    """

    epoch: str
    seq: int
    turn_id: str | msgspec.UnsetType | None = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str = ""
    calls: tuple[ShownCall, ...] = ()


Journalled = Accepted | Delta | Reasoning | SourceText | ToolCall | ToolState | Done | Removed

Text = Delta | Reasoning
"""The journalled events that are text."""

ControlEvent = Accepted | SourceText | ToolCall | ToolState | Done | Removed
"""The other journalled events."""


E = TypeVar("E", bound=Journalled)


def first_seq_of(event: Journalled) -> int:
    """Return the first seq that an event covers."""
    return event.seq if event.first_seq is None else event.first_seq


def covering(event: E, first_seq: int) -> E:
    """Return a copy that covers all seqs from `first_seq` on, in place of events that are not sent."""
    if first_seq >= first_seq_of(event):
        return event
    return msgspec.structs.replace(event, first_seq=first_seq)


encode = msgspec.json.Encoder().encode
decode_journalled = msgspec.json.Decoder(Journalled).decode


class KeptLength(msgspec.Struct, frozen=True):
    """The kept part of a reply whose end is decided: lengths of text, with the calls in it, and of reasoning."""

    chars: int
    reasoning: int = 0

    def of(self, event: Delta | Reasoning | ToolCall) -> Delta | Reasoning | ToolCall | None:
        """Return what is kept of a piece; None: nothing."""
        match event:
            case ToolCall():
                return event if event.off <= self.chars else None
            case Delta():
                return _cut(event, self.chars)
            case Reasoning():
                return _cut(event, self.reasoning)
            case _:
                assert_never(event)


def kept_length(done: Done) -> KeptLength:
    """Return the kept part of an ended reply."""
    return KeptLength(done.chars, done.reasoning_chars)


def merge_text(first: Text, last: Text, *, text: str, tokens: int) -> Text:
    """Merge neighbours of a kind: the result begins as the first and ends as the last."""
    if isinstance(first, Delta) and isinstance(last, Delta):
        return msgspec.structs.replace(first, seq=last.seq, text=text, tokens=tokens, src_off=last.src_off)
    return msgspec.structs.replace(first, seq=last.seq, text=text, tokens=tokens)


T = TypeVar("T", Delta, Reasoning)


def _cut(text: T, until: int) -> T | None:
    if text.off + len(text.text) <= until:
        return text
    if text.off >= until:
        return None
    return msgspec.structs.replace(text, text=text.text[: until - text.off])
