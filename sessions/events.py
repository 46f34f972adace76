"""What happens in a conversation. The journal keeps these events and attached connections see them, in one coding.

`seq` numbers the journalled events of a conversation from 1 on, without a hole. Where some of them never
reached a reader because they were merged or withdrawn, `first_seq` says where the gap that this event covers began.
Offsets and lengths count Unicode code points.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec


class Reason(StrEnum):
    """Why a turn ended. `interrupted` means a failure of a part of the service, never the user."""

    STOP = "stop"
    TOOLS = "tools"
    """As `stop`, and the reply has calls whose results it waits for."""
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


StatusState = Literal["queued", "prefill", "retrying", "fallback", "unsaved"]
"""What keeps a turn from its text, or its text from the store."""


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens of a turn. `wasted_tokens` were generated but are not in the reply as kept; `reasoning_tokens` were thought."""

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    sent_tokens: int
    wasted_tokens: int
    acked_tokens: int | None = None
    reasoning_tokens: int = 0


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds since the turn was accepted; None where the turn never came so far."""

    queued_ms: float | None
    first_token_ms: float | None
    total_ms: float


class CancelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How a cancel went. `steps_after` is None where the engine did not confirm in time."""

    cause: Cause
    latency_ms: float
    steps_after: int | None


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a turn ended with `error` or `interrupted`, in words for its reader."""

    code: str
    message: str
    retry_after_ms: int | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """The root of all events."""

    conversation_id: str


class Accepted(Event, frozen=True, kw_only=True, tag="accepted"):
    """A turn exists: the user's message is in the history. `parent_id` is the message it answers, null at a root.

    `queue_position`: its place behind the running turn, 1 being the next. `model`: which one is asked for the reply.
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


class Delta(Event, frozen=True, kw_only=True, tag="delta"):
    """Text that follows the turn's text so far. `off`: code points before it; `tokens`: how many are behind it."""

    turn_id: str
    seq: int
    first_seq: int
    off: int
    text: str
    tokens: int


class Done(Event, frozen=True, kw_only=True, tag="done"):
    """The one end of a turn. `chars`: length of the reply as kept; `text_sha256`: of that text in UTF-8.

    `model`: which one wrote the reply; `requested_model`: the one that was asked for, where another one stood in for it.
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


class Removed(Event, frozen=True, kw_only=True, tag="removed"):
    """An exchange that had ended was taken out of the history."""

    turn_id: str
    seq: int
    first_seq: int | None = None


class Status(Event, frozen=True, kw_only=True, tag="status"):
    """Where a turn stands, for people; not journalled.

    `queue_position` (queued) counts from 1, the next to start; `progress` (prefill) is a share from 0 to 1; `model`
    (fallback) is the one that answers instead of the one that was asked for.
    """

    turn_id: str
    state: StatusState
    queue_position: int | None = None
    progress: float | None = None
    model: str | None = None


class Deleted(Event, frozen=True, kw_only=True, tag="deleted"):
    """The conversation is gone; not journalled. `ref` is set for the one who asked."""

    ref: str | None = None


class Resumed(Event, frozen=True, kw_only=True, tag="resumed"):
    """What a reader missed follows, then what happens; not journalled. `live`: the running turn."""

    ref: str | None = None
    epoch: str
    replayed: int | msgspec.UnsetType = msgspec.UNSET
    live: str | msgspec.UnsetType | None = msgspec.UNSET


class Gap(Event, frozen=True, kw_only=True, tag="gap"):
    """What a reader missed can't be told again; a snapshot follows. `min_seq`: the oldest event that could be."""

    ref: str | None = None
    epoch: str
    min_seq: int


class Snapshot(Event, frozen=True, kw_only=True, tag="snapshot"):
    """Where a conversation stands: the running turn, if any, and its text up to `seq`."""

    epoch: str
    seq: int
    turn_id: str | msgspec.UnsetType | None = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET


Journalled = Accepted | Delta | Done | Removed

Bare = Accepted | Done | Removed
"""The journalled events that are no text."""


def covering(event: Bare, first_seq: int) -> Bare:
    """The event, saying that it stands for all seqs from `first_seq` on: what was between them is withdrawn."""
    if first_seq >= (event.first_seq or event.seq):
        return event
    return msgspec.structs.replace(event, first_seq=first_seq)


encode = msgspec.json.Encoder().encode
decode_journalled = msgspec.json.Decoder(Journalled).decode
