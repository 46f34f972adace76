"""One table of all frames: what answers each, what it counts for, who gets it. A frame that is not in it does not exist."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from connections.wire.audio import (
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
from connections.wire.features import AUDIO, INTERPRET, REASONING, TITLES, TOOLS
from connections.wire.frames import (
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
from connections.wire.scopes import KeyScope
from sessions.conversation.paging import HistoryPage
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


class Counts(StrEnum):
    """What a client frame counts for beside its bytes, which the line counts for every frame."""

    MESSAGE = "message"  # begins a turn
    READ = "read"  # asks the store
    NOTHING = "nothing"  # is answered from this process's memory, or must be heard in any case


class ClientKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of what clients send. `answers`: what answers it at once; any may be refused by an `error` besides.

    `scope`: what its sender's token has to have; None: any token will do. `overtakes`: it is handed on though the
    connection has as many requests as it may.
    """

    struct: type[ClientFrame]
    answers: tuple[type[Frame], ...]
    counts: Counts
    scope: KeyScope | None = None
    overtakes: bool = False


class ServerKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of what the server sends. `feature`: it goes only to clients that named this in `hello`; None: to all.

    `merges`: neighbours become one while their reader is late, so it is sized as it grows; every other kind is sized
    once, by its encoded bytes.
    """

    struct: type[Frame]
    feature: str | None = None
    merges: bool = False


CLIENT_FRAMES: dict[type[object], ClientKind] = {
    kind.struct: kind
    for kind in (
        ClientKind(struct=Hello, answers=(Ready,), counts=Counts.NOTHING),
        ClientKind(struct=Send, answers=(Accepted,), counts=Counts.MESSAGE, scope=KeyScope.CHAT),
        ClientKind(struct=Edit, answers=(Accepted,), counts=Counts.MESSAGE, scope=KeyScope.CHAT),
        ClientKind(struct=Regenerate, answers=(Accepted,), counts=Counts.MESSAGE, scope=KeyScope.CHAT),
        ClientKind(struct=Continue, answers=(Accepted,), counts=Counts.MESSAGE, scope=KeyScope.CHAT),
        ClientKind(struct=InterpretStart, answers=(Accepted,), counts=Counts.MESSAGE, scope=KeyScope.CHAT),
        ClientKind(struct=Source, answers=(SourceAck,), counts=Counts.READ, scope=KeyScope.CHAT),
        ClientKind(
            struct=Cancel, answers=(Cancelled,), counts=Counts.NOTHING, scope=KeyScope.CHAT, overtakes=True
        ),
        ClientKind(struct=ToolResult, answers=(ToolAck,), counts=Counts.READ, scope=KeyScope.CHAT),
        ClientKind(struct=ToolDecision, answers=(ToolAck,), counts=Counts.READ, scope=KeyScope.CHAT),
        ClientKind(struct=Resume, answers=(Resumed, Gap), counts=Counts.READ, scope=KeyScope.READ),
        ClientKind(struct=History, answers=(HistoryPage,), counts=Counts.READ, scope=KeyScope.READ),
        ClientKind(
            struct=Conversations, answers=(ConversationsPage,), counts=Counts.READ, scope=KeyScope.READ
        ),
        ClientKind(struct=Search, answers=(Found,), counts=Counts.READ, scope=KeyScope.READ),
        ClientKind(struct=Rename, answers=(ConversationsPage,), counts=Counts.READ, scope=KeyScope.MANAGE),
        ClientKind(struct=Share, answers=(Shared,), counts=Counts.READ, scope=KeyScope.MANAGE),
        ClientKind(struct=Unshare, answers=(Shared,), counts=Counts.READ, scope=KeyScope.MANAGE),
        ClientKind(struct=Delete, answers=(Deleted,), counts=Counts.READ, scope=KeyScope.MANAGE),
        ClientKind(struct=Ack, answers=(), counts=Counts.NOTHING),
        ClientKind(struct=AuthRefresh, answers=(Ready,), counts=Counts.READ),
        ClientKind(struct=Ping, answers=(Pong,), counts=Counts.NOTHING, overtakes=True),
        ClientKind(struct=AudioStart, answers=(AudioStarted,), counts=Counts.READ, scope=KeyScope.CHAT),
        ClientKind(struct=AudioCommit, answers=(), counts=Counts.NOTHING, scope=KeyScope.CHAT),
        ClientKind(struct=AudioClear, answers=(), counts=Counts.NOTHING, scope=KeyScope.CHAT),
        ClientKind(
            struct=AudioStop,
            answers=(AudioStopped,),
            counts=Counts.NOTHING,
            scope=KeyScope.CHAT,
            overtakes=True,
        ),
        ClientKind(struct=Played, answers=(), counts=Counts.NOTHING, scope=KeyScope.CHAT, overtakes=True),
    )
}
"""All that a client may send. A new frame is its struct, its place in `Request`, a row here, and its answer in a handler."""


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
"""All that the native door sends."""


def counts_of(frame: object) -> Counts:
    """What a frame counts for; a message that was spoken as any. Other doors' events count for nothing here: their handlers make frames of them."""
    kind = CLIENT_FRAMES.get(type(getattr(frame, "send", frame)))
    return Counts.NOTHING if kind is None else kind.counts


def scopes_of(frame: object) -> tuple[KeyScope, ...]:
    """What the token of a frame's sender has to have. A history that makes another branch the active one changes what is stored."""
    if isinstance(frame, History) and frame.leaf is not None:
        return KeyScope.READ, KeyScope.MANAGE
    kind = CLIENT_FRAMES.get(type(getattr(frame, "send", frame)))
    return () if kind is None or kind.scope is None else (kind.scope,)


def overtakes(frame: object) -> bool:
    """Whether a frame is handed on though its connection has as many requests as it may."""
    kind = CLIENT_FRAMES.get(type(frame))
    return kind is not None and kind.overtakes


def as_understood(frame: Frame, features: frozenset[str]) -> Frame | None:
    """A frame as a client gets it that understands these features; None: it gets no such frames.

    To who knows no tools, a reply that calls some has come to its end.
    """
    if isinstance(frame, Done):
        if frame.reason is Reason.TOOLS and TOOLS not in features:
            frame = msgspec.structs.replace(frame, reason=Reason.STOP, open=())
        if frame.reasoning_chars and REASONING not in features:  # it was told nothing of them
            frame = msgspec.structs.replace(frame, reasoning_chars=0)
        return frame
    if isinstance(frame, Status) and frame.state == "tool" and TOOLS not in features:
        return None
    kind = SERVER_FRAMES.get(type(frame))
    return frame if kind is None or kind.feature is None or kind.feature in features else None
