"""What happens in a conversation. The journal keeps these events and attached connections see them, in one coding.

`seq` numbers the journalled events of a conversation from 1 on, without a hole. Where some of them never
reached a reader because they were merged or withdrawn, `first_seq` says where the gap that this event covers began.
Offsets and lengths count Unicode code points.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, TypeVar

import msgspec

from sessions.attachment import Attachment


class Reason(StrEnum):
    """Why a turn ended. `interrupted` means a failure of a part of the service, never the user.

    `tools`: it called tools, and another turn follows it once their calls are settled.
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
    """Where a call of a tool is. All but `waiting` and `running` are final."""

    WAITING = "waiting"
    """For an approval, for a client's result, or for a place to run."""
    RUNNING = "running"
    DONE = "done"
    DENIED = "denied"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    LOST = "lost"
    """It was started, and nobody knows what became of it: whoever ran it died."""

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
"""What keeps a turn from its text, or its text from the store; and how far a tool is."""


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens of a turn. `wasted_tokens` were generated but are not in the reply as kept; `reasoning_tokens` are in what it thought.

    `reasoning_ms`: for how long it thought, where it did and that is known.
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
    """Milliseconds since the turn was accepted; None if the turn ended before that."""

    queued_ms: float | None
    first_token_ms: float | None
    total_ms: float


class CancelFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a cancel went. `steps_after`: steps of the engine after it; None if the engine did not confirm in time.

    `precision`: of a spoken reply, whether the cut is at a word that was heard, or at a chunk of several.
    """

    cause: Cause
    latency_ms: float
    steps_after: int | None
    precision: Literal["word", "chunk"] | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a turn ended with `error` or `interrupted`, in words for its reader."""

    code: str
    message: str
    retry_after_ms: int | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """The root of all events."""

    conversation_id: str


class Languages(msgspec.Struct, frozen=True):
    """What an interpretation translates from and to: tags of languages (BCP 47); `auto`: whichever the source is."""

    source: str
    target: str


class Accepted(Event, frozen=True, kw_only=True, tag="accepted"):
    """A turn exists: the user's message is in the history. `parent_id` is the message it answers, null at a root.

    `queue_position`: its place behind the running turn, 1 being the next. `model`: which one is asked for the reply.
    `follows`: the turn whose calls are settled now; `message_id` is the reply that made them, and no message is new.
    `continues`: the reply that goes on, behind the text that it has. `interprets`: its reply is the live translation of its
    message, which grows by `source` events. `attachments`: the images that the message shows.
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
    """Text that follows the turn's text so far. `off`: code points before it; `tokens`: how many are behind it.

    `src_off`, of an interpretation: how much of its source had been read for the last of it.
    """

    turn_id: str
    seq: int
    first_seq: int
    off: int
    text: str
    tokens: int
    src_off: int | None = None


class SourceText(Event, frozen=True, kw_only=True, tag="source"):
    """The source of an interpretation grew. `off`: code points of it before `text`; `final`: it grows no more."""

    turn_id: str
    seq: int
    off: int
    text: str
    final: bool = False
    first_seq: int | None = None


class Reasoning(Event, frozen=True, kw_only=True, tag="reasoning"):
    """What the model thinks aloud beside its reply. Fields as in `Delta`; `off` counts what was thought before."""

    turn_id: str
    seq: int
    first_seq: int
    off: int
    text: str
    tokens: int


class ToolCall(Event, frozen=True, kw_only=True, tag="tool_call"):
    """The model calls a tool. `index` counts the calls of a reply from 0; `off`: code points of the text before it.

    `args`: the text of a JSON object, whole; `args_sha256`: of that text in UTF-8. `expires_at`: Unix milliseconds, where
    it waits for a client.
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


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a running call asks the user. `schema`: of the answer, a flat object, as the text of a JSON Schema.

    `sha256` stands for this question alone: an answer names it. `expires_at`: Unix milliseconds.
    """

    message: str
    schema: str
    sha256: str
    expires_at: int


class ToolState(Event, frozen=True, kw_only=True, tag="tool_state"):
    """The state of a call changes. `content` or `error`: its result, once it is done.

    `args`, `args_sha256`: what it runs with, if whoever allowed it changed the arguments. `question`: what it asks now.
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
    question: Question | None = None


class Done(Event, frozen=True, kw_only=True, tag="done"):
    """The end of a turn; each has one. `chars`: length of the reply as kept; `text_sha256`: the hash of that text in UTF-8.

    `reasoning_chars`: length of what is kept of its reasoning; `open`: its calls that are not settled.
    `model`: which one wrote the reply; `requested_model`: the one that was asked for, where another one stood in for it.
    `follows`: the turn whose calls were settled before it.
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
    """An exchange that had ended was taken out of the history."""

    turn_id: str
    seq: int
    first_seq: int | None = None


class Status(Event, frozen=True, kw_only=True, tag="status"):
    """What a turn waits for, to be shown to people; not journalled.

    `queue_position` (queued) counts from 1, the next to start; `progress` (prefill, tool) is a share from 0 to 1; `model`
    (fallback) is the one that answers instead of the one that was asked for. `call_id` and `message` (tool): which call says what.
    """

    turn_id: str
    state: StatusState
    queue_position: int | None = None
    progress: float | None = None
    model: str | None = None
    call_id: str | None = None
    message: str | None = None


class Titled(Event, frozen=True, kw_only=True, tag="title"):
    """The conversation has another title, which the model wrote; not journalled."""

    title: str


class Deleted(Event, frozen=True, kw_only=True, tag="deleted"):
    """The conversation is gone; not journalled. `ref` is set for the one who asked."""

    ref: str | None = None


class Resumed(Event, frozen=True, kw_only=True, tag="resumed"):
    """The missed events follow, then new ones; not journalled. `live`: the running turn."""

    ref: str | None = None
    epoch: str
    replayed: int | msgspec.UnsetType = msgspec.UNSET
    live: str | msgspec.UnsetType | None = msgspec.UNSET


class Gap(Event, frozen=True, kw_only=True, tag="gap"):
    """Some missed events are gone; a snapshot follows. `min_seq`: the oldest event that is still there."""

    ref: str | None = None
    epoch: str
    min_seq: int


class ShownCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call as a reply in the history has it. Fields as in `ToolCall` and `ToolState`."""

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
    question: Question | None = None


class Snapshot(Event, frozen=True, kw_only=True, tag="snapshot"):
    """The conversation at `seq`: the running turn, if any, and its text so far.

    `reasoning`, `calls`: what else that reply has so far. If no turn runs, `calls` are those that are open.
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

Bare = Accepted | SourceText | ToolCall | ToolState | Done | Removed
"""The journalled events that are no text."""


E = TypeVar("E", bound=Journalled)


def first_seq_of(event: Journalled) -> int:
    """The first seq that an event stands for."""
    return event.seq if event.first_seq is None else event.first_seq


def covering(event: E, first_seq: int) -> E:
    """The event, saying that it stands for all seqs from `first_seq` on: what was between them is not told."""
    if first_seq >= first_seq_of(event):
        return event
    return msgspec.structs.replace(event, first_seq=first_seq)


encode = msgspec.json.Encoder().encode
decode_journalled = msgspec.json.Decoder(Journalled).decode
