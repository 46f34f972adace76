"""The frames of wire protocol v1, as types. Events of a conversation are frames, too (`sessions.events`).

Types are checked here; tools and ranges of generation parameters in `connections.protocol.params`. `CLIENT_FRAMES` and
`SERVER_FRAMES` have a row for each frame.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from connections.protocol import audio
from connections.protocol.audio import (
    AudioClear,
    AudioCommit,
    AudioReply,
    AudioStart,
    AudioStarted,
    AudioStop,
    AudioStopped,
    Marks,
    Played,
    Speech,
    Transcript,
)
from connections.protocol.base import (
    AUDIO,
    DEFAULT_CONVERSATION,
    INTERPRET,
    REASONING,
    TITLES,
    TOOLS,
    ClientFrame,
    Features,
    Format,
    Id,
    KeyScope,
    Limits,
    Model,
    Name,
    Ref,
    ServerFacts,
    ServerFrame,
    ServerTool,
)
from sessions.conversation.history_page import HistoryPage
from sessions.events import (
    Accepted,
    CallState,
    Deleted,
    Delta,
    Done,
    Event,
    Gap,
    Reason,
    Reasoning,
    Removed,
    Resumed,
    Snapshot,
    SourceText,
    Status,
    Titled,
    ToolCall,
    ToolState,
    Where,
)
from sessions.limits.rates import FrameCost
from sessions.records import PublishPolicy
from sessions.store.index import Hit, Listed
from sessions.turn.message_request import OnBusy, OnDisconnect

JsonObject = dict[str, Any]
Content = Annotated[str, Meta(min_length=1)]
AttachmentId = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
MAX_ATTACHMENTS = 32
"""Images of one message, at every endpoint (`connections.images`)."""
Attachments = Annotated[tuple[AttachmentId, ...], Meta(max_length=MAX_ATTACHMENTS)]
Query = Annotated[str, Meta(min_length=1, max_length=200)]
Title = Annotated[str, Meta(min_length=1, max_length=200)]
ModelName = Annotated[str, Meta(min_length=1, max_length=256)]
Token = Annotated[str, Meta(max_length=16_384)]
PageSize = Annotated[int, Meta(ge=1, le=200)]
ToolName = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+\Z")]
ToolDescription = Annotated[str, Meta(max_length=4096)]
MAX_TOOLS = 128
LanguageTag = Annotated[str, Meta(min_length=2, max_length=35, pattern=r"^[A-Za-z0-9_-]+\Z")]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]

MAX_SEQ = 2**53  # the largest integer that every JSON reader reads exactly


class Params(msgspec.Struct, frozen=True, kw_only=True):
    """How to generate the reply. Missing fields take the defaults of the model or the server.

    `model`: a model's name or alias, which later messages of the conversation use, too. `reasoning`: `auto`, `off`, or an
    effort that the model's template knows. `chars_per_s`: the highest rate at which text is sent; 0: as fast as generated.
    `target`: the language to translate the message to, by a code that the translation model knows. `source`: the language to
    translate the message from.
    """

    max_new_tokens: int | None = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    max_time_s: float | None = None
    system: str | None = None
    model: ModelName | None = None
    format: Format | None = None
    reasoning: Annotated[str, Meta(min_length=1, max_length=32)] | None = None
    chars_per_s: float | None = None
    target: LanguageTag | None = None
    source: LanguageTag | None = None


class OfferedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the model may call. `parameters`: a JSON Schema of an object.

    `where`: `client` tools run in the client. A `server` tool is one of `ready.tools`, and has the server's description and
    parameters.
    """

    name: ToolName
    description: ToolDescription = ""
    parameters: JsonObject | None = None
    where: Where = "client"
    approval: Literal["never", "always"] = "never"


class Hello(ClientFrame, frozen=True, kw_only=True, tag="hello"):
    """The first frame. `client_id`: if it is missing, the server assigns one."""

    client_id: Name | None = None
    token: Token | None = None
    features: Features = ()


class TurnFrame(ClientFrame, frozen=True, kw_only=True):
    """The root of frames that begin a turn."""

    client_msg_id: Id
    conversation_id: Name = DEFAULT_CONVERSATION
    on_busy: OnBusy = "reject"
    seen_off: Annotated[int, Meta(ge=0)] | None = None
    seen_turn_id: Id | None = None
    on_disconnect: OnDisconnect = "cancel"
    grace_s: Annotated[float, Meta(ge=0, le=60)] = 0
    params: Params = Params()
    tools: Annotated[tuple[OfferedTool, ...], Meta(max_length=MAX_TOOLS)] = ()
    tool_choice: ToolName = "auto"


class Send(TurnFrame, frozen=True, kw_only=True, tag="send"):
    """A user's message. `parent_id`: the message that this one follows; null: none.

    `seen_off`: if an `interrupt` ends a reply, how many characters of that reply the user has seen. `seen_turn_id`: the turn of
    the interrupted reply. `tools`: for this turn and for the turns that follow its calls. `tool_choice`: `auto`,
    `none`, `required`, or the name of a tool that must be called. `attachments`: ids of uploaded images, which the model sees
    before the text.
    """

    content: Content
    attachments: Attachments = ()
    parent_id: Id | msgspec.UnsetType | None = msgspec.UNSET


class Edit(TurnFrame, frozen=True, kw_only=True, tag="edit"):
    """A new version of a user's message. The old version is kept."""

    message_id: Id
    content: Content
    attachments: Attachments = ()


class Regenerate(TurnFrame, frozen=True, kw_only=True, tag="regenerate"):
    """Asks for another reply to the same message. The old reply is kept."""

    message_id: Id


class Continue(TurnFrame, frozen=True, kw_only=True, tag="continue"):
    """Asks for the rest of a reply that was stopped or cut off."""

    message_id: Id


class InterpretStart(ClientFrame, frozen=True, kw_only=True, tag="interpret.start"):
    """Begins a live translation. The user's message is the source, which `source` frames extend. The reply is its translation.

    `publish_policy`: which words of an unfinished sentence are sent. `agreement`: the words that three attempts in a row share.
    `segment`: no words.
    """

    client_msg_id: Id
    target: LanguageTag
    source: LanguageTag = "auto"
    conversation_id: Name = DEFAULT_CONVERSATION
    input: Literal["text"] = "text"
    publish_policy: PublishPolicy = "agreement"
    model: ModelName | None = None
    parent_id: Id | msgspec.UnsetType | None = msgspec.UNSET
    on_busy: Literal["reject", "interrupt", "rollback"] = "reject"
    seen_off: Annotated[int, Meta(ge=0)] | None = None
    seen_turn_id: Id | None = None
    on_disconnect: OnDisconnect = "cancel"
    grace_s: Annotated[float, Meta(ge=0, le=60)] = 0


class Source(ClientFrame, frozen=True, kw_only=True, tag="source"):
    """More of a translation's source. `off`: how many characters of the source precede `text`.

    `final`: the source is complete now.
    """

    off: Annotated[int, Meta(ge=0)]
    text: str
    final: bool = False
    conversation_id: Name = DEFAULT_CONVERSATION
    turn_id: Id | None = None


class Cancel(ClientFrame, frozen=True, kw_only=True, tag="cancel"):
    """Stops a turn (`turn_id`), the turn that answers a message (`client_msg_id`), or all turns of a conversation.

    `seen_off`: how many characters of the reply the user has seen.
    """

    turn_id: Id | None = None
    client_msg_id: Id | None = None
    conversation_id: Name | None = None
    mode: Literal["keep", "rollback"] = "keep"
    seen_off: Annotated[int, Meta(ge=0)] | None = None


class ToolResult(ClientFrame, frozen=True, kw_only=True, tag="tool_result"):
    """The result of a tool call that the client ran: `content`, or an `error`."""

    call_id: Id
    conversation_id: Name | None = None
    content: str | None = None
    error: str | None = None


class ToolDecision(ClientFrame, frozen=True, kw_only=True, tag="tool_decision"):
    """Allows or denies a call. `args`: arguments to run the call with instead.

    `args_sha256`: the hash of the arguments that the user saw.
    """

    call_id: Id
    args_sha256: Sha256
    decision: Literal["allow", "deny"]
    conversation_id: Name | None = None
    args: str | None = None


class Resume(ClientFrame, frozen=True, kw_only=True, tag="resume"):
    """Attaches the connection to a conversation, and requests all events of an `epoch` after `after_seq`."""

    conversation_id: Name
    epoch: Ref
    after_seq: Annotated[int, Meta(ge=0, le=MAX_SEQ)]


class History(ClientFrame, frozen=True, kw_only=True, tag="history"):
    """Attaches the connection to a conversation, and asks for a page of its messages.

    `before`: the oldest message of the previous page. `leaf`: the message whose branch becomes active.
    """

    conversation_id: Name = DEFAULT_CONVERSATION
    limit: PageSize = 50
    before: Id | None = None
    leaf: Id | None = None


class Conversations(ClientFrame, frozen=True, kw_only=True, tag="conversations"):
    """Asks for the owner's conversations. `before`: the last conversation of the previous page."""

    limit: PageSize = 50
    before: Name | None = None


class Search(ClientFrame, frozen=True, kw_only=True, tag="search"):
    """Searches the titles and messages of the owner's conversations. `before`: the `next` of the previous answer."""

    query: Query
    limit: PageSize = 20
    before: Annotated[str, Meta(max_length=256)] | None = None


class Ack(ClientFrame, frozen=True, kw_only=True, tag="ack"):
    """Confirms that all events up to `seq` have arrived."""

    conversation_id: Name
    seq: Annotated[int, Meta(ge=0, le=MAX_SEQ)]


class Rename(ClientFrame, frozen=True, kw_only=True, tag="rename"):
    """Gives a conversation another title."""

    conversation_id: Name
    title: Title


class Share(ClientFrame, frozen=True, kw_only=True, tag="share"):
    """Makes a public link to the active branch as it is now. Another `share` updates what the link shows."""

    conversation_id: Name


class Unshare(ClientFrame, frozen=True, kw_only=True, tag="unshare"):
    """Revokes the link of a conversation."""

    conversation_id: Name


class Delete(ClientFrame, frozen=True, kw_only=True, tag="delete"):
    """Removes a conversation."""

    conversation_id: Name


class Ping(ClientFrame, frozen=True, kw_only=True, tag="ping"):
    """Asks for a `pong` with the same `t`."""

    t: int | float | str | None = None


class AuthRefresh(ClientFrame, frozen=True, kw_only=True, tag="auth.refresh"):
    """Replaces the connection's token with a new one of the same owner."""

    token: Token


class Ready(ServerFrame, frozen=True, kw_only=True, tag="ready"):
    """Answers `hello` and `auth.refresh`. `model`: the default model, to which the `limits` apply.

    `suggestions`: messages to begin an empty conversation with.
    """

    connection_id: str
    client_id: str
    features: tuple[str, ...]
    model: str
    models: tuple[Model, ...]
    heartbeat_ms: int
    resume_ttl_s: int
    limits: Limits
    server: ServerFacts
    tools: tuple[ServerTool, ...] = ()
    suggestions: tuple[str, ...] = ()


class Cancelled(ServerFrame, frozen=True, kw_only=True, tag="cancelled"):
    """Answers `cancel` once the turn's end is decided. `already`: whether the turn had ended or been cancelled before."""

    turn_id: str | msgspec.UnsetType | None = msgspec.UNSET
    already: bool | msgspec.UnsetType = msgspec.UNSET


class ToolAck(ServerFrame, frozen=True, kw_only=True, tag="tool_ack"):
    """Answers a `tool_result` or `tool_decision` that took effect.

    `already`: whether the same result or decision had taken effect before.
    """

    conversation_id: str
    call_id: str
    state: CallState
    already: bool | msgspec.UnsetType = msgspec.UNSET


class SourceAck(ServerFrame, frozen=True, kw_only=True, tag="source_ack"):
    """Answers `source`. `already`: whether the text had arrived before. `chars`: the length of the source.

    `final`: the source is complete.
    """

    conversation_id: str
    turn_id: str
    chars: int
    final: bool | msgspec.UnsetType = msgspec.UNSET
    already: bool | msgspec.UnsetType = msgspec.UNSET


class ConversationsPage(ServerFrame, frozen=True, kw_only=True, tag="conversations"):
    """Answers `conversations`."""

    conversations: list[Listed]
    has_more: bool | msgspec.UnsetType = msgspec.UNSET


class Found(ServerFrame, frozen=True, kw_only=True, tag="found"):
    """Answers `search`. `next`: the `before` for the next page; missing once everything was searched."""

    hits: list[Hit]
    next: str | None = None


class Shared(ServerFrame, frozen=True, kw_only=True, tag="shared"):
    """Answers `share` and `unshare`. `share_id`: the id in the link `/s/{share_id}`; null if nothing is shared."""

    conversation_id: str
    share_id: str | None = None


class Pong(ServerFrame, frozen=True, kw_only=True, tag="pong"):
    """Answers `ping`."""

    t: int | float | str | None = None


class LimitNear(ServerFrame, frozen=True, kw_only=True, tag="limits"):
    """A limit is nearly reached. `reset_s`: seconds until more is allowed."""

    name: str
    remaining: int
    reset_s: int


class GoAway(ServerFrame, frozen=True, kw_only=True, tag="goaway"):
    """The server is about to stop. It closes this connection with code 1012 within `drain_ms`."""

    drain_ms: int
    reason: str


class Error(ServerFrame, frozen=True, kw_only=True, tag="error"):
    """A request was refused, and had no effect."""

    code: str
    message: str
    retryable: bool | msgspec.UnsetType = msgspec.UNSET
    retry_after_ms: int | None = None


Turning = Send | Edit | Regenerate | Continue
Answering = ToolResult | ToolDecision
Growing = InterpretStart | Source
"""Frames that start a live translation or extend its source text."""

Stopping = Cancel | audio.AudioStop
"""Frames that end replies. They are handled no matter how many requests wait."""

Request = (
    Hello
    | Turning
    | Growing
    | Cancel
    | Answering
    | Resume
    | History
    | Conversations
    | Search
    | Rename
    | Share
    | Unshare
    | Delete
    | Ack
    | AuthRefresh
    | Ping
    | audio.AudioFrame
)
Binary = audio.Sound
"""Frames that are sent as binary messages."""

ReplySound = audio.Sound | audio.Marks
"""The sound of a reply. When its turn is cut, all of it is withdrawn."""

Frame = ServerFrame | Event | Binary


class ClientKind(msgspec.Struct, frozen=True, kw_only=True):
    """How one kind of client frame is served."""

    answers: tuple[type[Frame], ...]
    """Its immediate answers; any frame may also be refused with an `error`."""
    counts: FrameCost = FrameCost.READ
    scope: KeyScope | None = None
    """The scope that its sender's token needs; None: any token will do."""
    overtakes: bool = False
    """Whether it is passed on even if the connection has the maximum of requests."""
    queues: bool = True
    """Whether it waits behind messages of its connection while the limits shared by replicas are checked."""


CLIENT_FRAMES: dict[type[object], ClientKind] = {
    Hello: ClientKind(answers=(Ready,), counts=FrameCost.NOTHING, queues=False),
    Send: ClientKind(answers=(Accepted,), counts=FrameCost.MESSAGE, scope=KeyScope.CHAT),
    Edit: ClientKind(answers=(Accepted,), counts=FrameCost.MESSAGE, scope=KeyScope.CHAT),
    Regenerate: ClientKind(answers=(Accepted,), counts=FrameCost.MESSAGE, scope=KeyScope.CHAT),
    Continue: ClientKind(answers=(Accepted,), counts=FrameCost.MESSAGE, scope=KeyScope.CHAT),
    InterpretStart: ClientKind(answers=(Accepted,), counts=FrameCost.MESSAGE, scope=KeyScope.CHAT),
    Source: ClientKind(answers=(SourceAck,), scope=KeyScope.CHAT),
    Cancel: ClientKind(answers=(Cancelled,), counts=FrameCost.NOTHING, scope=KeyScope.CHAT, overtakes=True),
    ToolResult: ClientKind(answers=(ToolAck,), scope=KeyScope.CHAT),
    ToolDecision: ClientKind(answers=(ToolAck,), scope=KeyScope.CHAT),
    Resume: ClientKind(answers=(Resumed, Gap), scope=KeyScope.READ),
    History: ClientKind(answers=(HistoryPage,), scope=KeyScope.READ),
    Conversations: ClientKind(answers=(ConversationsPage,), scope=KeyScope.READ),
    Search: ClientKind(answers=(Found,), scope=KeyScope.READ),
    Rename: ClientKind(answers=(ConversationsPage,), scope=KeyScope.MANAGE),
    Share: ClientKind(answers=(Shared,), scope=KeyScope.MANAGE),
    Unshare: ClientKind(answers=(Shared,), scope=KeyScope.MANAGE),
    Delete: ClientKind(answers=(Deleted,), scope=KeyScope.MANAGE),
    Ack: ClientKind(answers=(), counts=FrameCost.NOTHING),
    AuthRefresh: ClientKind(answers=(Ready,), queues=False),
    Ping: ClientKind(answers=(Pong,), counts=FrameCost.NOTHING, overtakes=True, queues=False),
    AudioStart: ClientKind(answers=(AudioStarted,), scope=KeyScope.CHAT),
    AudioCommit: ClientKind(answers=(), counts=FrameCost.NOTHING, scope=KeyScope.CHAT),
    AudioClear: ClientKind(answers=(), counts=FrameCost.NOTHING, scope=KeyScope.CHAT),
    AudioStop: ClientKind(
        answers=(AudioStopped,), counts=FrameCost.NOTHING, scope=KeyScope.CHAT, overtakes=True
    ),
    Played: ClientKind(
        answers=(), counts=FrameCost.NOTHING, scope=KeyScope.CHAT, overtakes=True, queues=False
    ),
}
"""All client frames. A new one needs a struct, a place in `Request`, a row here, and an answer in a handler."""

SERVER_FRAMES: dict[type[Any], str | None] = {
    Ready: None,
    Accepted: None,
    Delta: None,
    Reasoning: REASONING,
    ToolCall: TOOLS,
    ToolState: TOOLS,
    SourceText: INTERPRET,
    SourceAck: INTERPRET,
    Done: None,
    Removed: None,
    Cancelled: None,
    ToolAck: TOOLS,
    Resumed: None,
    Gap: None,
    Snapshot: None,
    HistoryPage: None,
    ConversationsPage: None,
    Found: None,
    Shared: None,
    Titled: TITLES,
    Deleted: None,
    Pong: None,
    Status: None,
    LimitNear: None,
    GoAway: None,
    Error: None,
    AudioStarted: AUDIO,
    AudioStopped: AUDIO,
    AudioReply: AUDIO,
    Speech: AUDIO,
    Transcript: AUDIO,
    Marks: AUDIO,
}
"""All server frames of the native endpoint, with the feature that a client must name in `hello` to get them; None: all do."""


def cost_of(frame: object) -> FrameCost:
    """Return what a frame counts as; spoken messages count, too. Other endpoints' events count once they are frames."""
    kind = CLIENT_FRAMES.get(type(getattr(frame, "send", frame)))
    return FrameCost.NOTHING if kind is None else kind.counts


def scopes_of(frame: object) -> tuple[KeyScope, ...]:
    """Return the scopes that a frame needs. A history request that changes the active branch changes stored data."""
    if isinstance(frame, History) and frame.leaf is not None:
        return KeyScope.READ, KeyScope.MANAGE
    kind = CLIENT_FRAMES.get(type(getattr(frame, "send", frame)))
    return () if kind is None or kind.scope is None else (kind.scope,)


def bypasses_request_limit(frame: object) -> bool:
    """Return whether a frame is passed on even if its connection has the maximum of requests."""
    kind = CLIENT_FRAMES.get(type(frame))
    return kind is not None and kind.overtakes


def queues(frame: object) -> bool:
    """Return whether a frame waits behind messages while the limits shared by replicas are checked. Sound never does."""
    kind = CLIENT_FRAMES.get(type(frame))
    return not isinstance(frame, Binary) if kind is None else kind.queues


def for_features(frame: Frame, features: frozenset[str]) -> Frame | None:
    """Return a frame for a client with these features; None: it does not get such frames.

    To a client without `tools`, a reply that calls tools has ended.
    """
    if isinstance(frame, Done):
        if frame.reason is Reason.TOOLS and TOOLS not in features:
            frame = msgspec.structs.replace(frame, reason=Reason.STOP, open=())
        if frame.reasoning_chars and REASONING not in features:  # its client got no reasoning
            frame = msgspec.structs.replace(frame, reasoning_chars=0)
        return frame
    if isinstance(frame, Status) and frame.state == "tool" and TOOLS not in features:
        return None
    feature = SERVER_FRAMES.get(type(frame))
    return frame if feature is None or feature in features else None
