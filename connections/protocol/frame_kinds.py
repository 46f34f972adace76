"""One table of all frames: their answers, their counts, their recipients. A frame that is not in it does not exist."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from connections.protocol.audio import (
    AudioClear,
    AudioCommit,
    AudioReply,
    AudioStart,
    AudioStarted,
    AudioStop,
    AudioStopped,
    Heard,
    Marks,
    Played,
    Speech,
)
from connections.protocol.base import AUDIO, INTERPRET, REASONING, TITLES, TOOLS
from connections.protocol.frames import (
    Ack,
    AuthRefresh,
    Cancel,
    Cancelled,
    ClientFrame,
    Continue,
    Conversations,
    ConversationsPage,
    Delete,
    Edit,
    Error,
    Found,
    Frame,
    GoAway,
    Hello,
    History,
    InterpretStart,
    LimitNear,
    Ping,
    Pong,
    Ready,
    Regenerate,
    Rename,
    Resume,
    Search,
    Send,
    Share,
    Shared,
    Source,
    SourceAck,
    ToolAck,
    ToolDecision,
    ToolResult,
    Unshare,
)
from connections.protocol.scopes import KeyScope
from sessions.conversation.history_page import HistoryPage
from sessions.events import (
    Accepted,
    Deleted,
    Delta,
    Done,
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
)


class FrameCost(StrEnum):
    """What a client frame counts as, besides its bytes, which the line counts for every frame."""

    MESSAGE = "message"  # begins a turn
    READ = "read"  # asks the store
    NOTHING = "nothing"  # is answered from memory, or must never be refused


class ClientKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of client frame. `answers`: its immediate answers; any frame may also be refused by an `error`.

    `scope`: what its sender's token needs; None: any token will do. `bypasses_request_limit`: it is passed on even if the
    connection has its maximum of requests.
    """

    struct: type[ClientFrame]
    answers: tuple[type[Frame], ...]
    counts: FrameCost
    scope: KeyScope | None = None
    overtakes: bool = False


class ServerKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of server frame. `feature`: only clients that named it in `hello` get the frame; None: all do.

    `merges`: neighbours merge while their reader is late, so its size is updated as it grows. Every other
    kind is sized once, by its encoded bytes.
    """

    struct: type[Frame]
    feature: str | None = None
    merges: bool = False


CLIENT_FRAMES: dict[type[object], ClientKind] = {
    kind.struct: kind
    for kind in (
        ClientKind(struct=Hello, answers=(Ready,), counts=FrameCost.NOTHING),
        ClientKind(struct=Send, answers=(Accepted,), counts=FrameCost.MESSAGE, scope=KeyScope.CHAT),
        ClientKind(struct=Edit, answers=(Accepted,), counts=FrameCost.MESSAGE, scope=KeyScope.CHAT),
        ClientKind(struct=Regenerate, answers=(Accepted,), counts=FrameCost.MESSAGE, scope=KeyScope.CHAT),
        ClientKind(struct=Continue, answers=(Accepted,), counts=FrameCost.MESSAGE, scope=KeyScope.CHAT),
        ClientKind(struct=InterpretStart, answers=(Accepted,), counts=FrameCost.MESSAGE, scope=KeyScope.CHAT),
        ClientKind(struct=Source, answers=(SourceAck,), counts=FrameCost.READ, scope=KeyScope.CHAT),
        ClientKind(
            struct=Cancel, answers=(Cancelled,), counts=FrameCost.NOTHING, scope=KeyScope.CHAT, overtakes=True
        ),
        ClientKind(struct=ToolResult, answers=(ToolAck,), counts=FrameCost.READ, scope=KeyScope.CHAT),
        ClientKind(struct=ToolDecision, answers=(ToolAck,), counts=FrameCost.READ, scope=KeyScope.CHAT),
        ClientKind(struct=Resume, answers=(Resumed, Gap), counts=FrameCost.READ, scope=KeyScope.READ),
        ClientKind(struct=History, answers=(HistoryPage,), counts=FrameCost.READ, scope=KeyScope.READ),
        ClientKind(
            struct=Conversations, answers=(ConversationsPage,), counts=FrameCost.READ, scope=KeyScope.READ
        ),
        ClientKind(struct=Search, answers=(Found,), counts=FrameCost.READ, scope=KeyScope.READ),
        ClientKind(struct=Rename, answers=(ConversationsPage,), counts=FrameCost.READ, scope=KeyScope.MANAGE),
        ClientKind(struct=Share, answers=(Shared,), counts=FrameCost.READ, scope=KeyScope.MANAGE),
        ClientKind(struct=Unshare, answers=(Shared,), counts=FrameCost.READ, scope=KeyScope.MANAGE),
        ClientKind(struct=Delete, answers=(Deleted,), counts=FrameCost.READ, scope=KeyScope.MANAGE),
        ClientKind(struct=Ack, answers=(), counts=FrameCost.NOTHING),
        ClientKind(struct=AuthRefresh, answers=(Ready,), counts=FrameCost.READ),
        ClientKind(struct=Ping, answers=(Pong,), counts=FrameCost.NOTHING, overtakes=True),
        ClientKind(struct=AudioStart, answers=(AudioStarted,), counts=FrameCost.READ, scope=KeyScope.CHAT),
        ClientKind(struct=AudioCommit, answers=(), counts=FrameCost.NOTHING, scope=KeyScope.CHAT),
        ClientKind(struct=AudioClear, answers=(), counts=FrameCost.NOTHING, scope=KeyScope.CHAT),
        ClientKind(
            struct=AudioStop,
            answers=(AudioStopped,),
            counts=FrameCost.NOTHING,
            scope=KeyScope.CHAT,
            overtakes=True,
        ),
        ClientKind(struct=Played, answers=(), counts=FrameCost.NOTHING, scope=KeyScope.CHAT, overtakes=True),
    )
}
"""All client frames. A new one needs its struct, its place in `Request`, a row here, and its answer in a handler."""


SERVER_FRAMES: dict[type[object], ServerKind] = {
    kind.struct: kind
    for kind in (
        ServerKind(struct=Ready),
        ServerKind(struct=Accepted),
        ServerKind(struct=Delta, merges=True),
        ServerKind(struct=Reasoning, feature=REASONING, merges=True),
        ServerKind(struct=ToolCall, feature=TOOLS),
        ServerKind(struct=ToolState, feature=TOOLS),
        ServerKind(struct=SourceText, feature=INTERPRET),
        ServerKind(struct=SourceAck, feature=INTERPRET),
        ServerKind(struct=Done),
        ServerKind(struct=Removed),
        ServerKind(struct=Cancelled),
        ServerKind(struct=ToolAck, feature=TOOLS),
        ServerKind(struct=Resumed),
        ServerKind(struct=Gap),
        ServerKind(struct=Snapshot),
        ServerKind(struct=HistoryPage),
        ServerKind(struct=ConversationsPage),
        ServerKind(struct=Found),
        ServerKind(struct=Shared),
        ServerKind(struct=Titled, feature=TITLES),
        ServerKind(struct=Deleted),
        ServerKind(struct=Pong),
        ServerKind(struct=Status),
        ServerKind(struct=LimitNear),
        ServerKind(struct=GoAway),
        ServerKind(struct=Error),
        ServerKind(struct=AudioStarted, feature=AUDIO),
        ServerKind(struct=AudioStopped, feature=AUDIO),
        ServerKind(struct=AudioReply, feature=AUDIO),
        ServerKind(struct=Speech, feature=AUDIO),
        ServerKind(struct=Heard, feature=AUDIO),
        ServerKind(struct=Marks, feature=AUDIO),
    )
}
"""All server frames of the native door."""


def cost_of(frame: object) -> FrameCost:
    """Return what a frame counts as; spoken messages count, too. Other doors' events count once they are frames."""
    kind = CLIENT_FRAMES.get(type(getattr(frame, "send", frame)))
    return FrameCost.NOTHING if kind is None else kind.counts


def scopes_of(frame: object) -> tuple[KeyScope, ...]:
    """Return the scopes that a frame needs. A history request that changes the active branch changes stored data."""
    if isinstance(frame, History) and frame.leaf is not None:
        return KeyScope.READ, KeyScope.MANAGE
    kind = CLIENT_FRAMES.get(type(getattr(frame, "send", frame)))
    return () if kind is None or kind.scope is None else (kind.scope,)


def bypasses_request_limit(frame: object) -> bool:
    """Return whether a frame is passed on even if its connection has its maximum of requests."""
    kind = CLIENT_FRAMES.get(type(frame))
    return kind is not None and kind.overtakes


def for_features(frame: Frame, features: frozenset[str]) -> Frame | None:
    """Return a frame for a client with these features; None: it does not get such frames.

    For a client without `tools`, a reply that calls some has ended.
    """
    if isinstance(frame, Done):
        if frame.reason is Reason.TOOLS and TOOLS not in features:
            frame = msgspec.structs.replace(frame, reason=Reason.STOP, open=())
        if frame.reasoning_chars and REASONING not in features:  # it got no reasoning
            frame = msgspec.structs.replace(frame, reasoning_chars=0)
        return frame
    if isinstance(frame, Status) and frame.state == "tool" and TOOLS not in features:
        return None
    kind = SERVER_FRAMES.get(type(frame))
    return frame if kind is None or kind.feature is None or kind.feature in features else None
