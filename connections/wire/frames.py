"""The frames of wire protocol v1, as types, and one table of them. Events of a conversation are frames as they are (`sessions.events`).

Types are checked here; ranges of generation parameters in `connections.wire.params`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from connections.wire.features import Features
from sessions.conversation.paging import HistoryPage
from sessions.events import (
    Accepted,
    Deleted,
    Delta,
    Done,
    Event,
    Gap,
    Removed,
    Resumed,
    Snapshot,
    Status,
)
from sessions.store.history.index import Listed

Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._:-]+\Z")]
Ref = Annotated[str, Meta(max_length=128)]
Id = Annotated[str, Meta(min_length=1, max_length=128)]
Content = Annotated[str, Meta(min_length=1)]
Title = Annotated[str, Meta(min_length=1, max_length=200)]
ModelName = Annotated[str, Meta(min_length=1, max_length=256)]
Token = Annotated[str, Meta(max_length=16_384)]
PageSize = Annotated[int, Meta(ge=1, le=200)]

DEFAULT_CONVERSATION = "default"
MAX_SEQ = 2**53
"""The largest integer that every JSON reader takes exactly."""


class ClientFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The root of what clients send."""

    ref: Ref | None = None


class Params(msgspec.Struct, frozen=True, kw_only=True):
    """How the reply is made; see `sessions` and `engine` for the meaning. `model`: by its name or an alias, from now on."""

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


class Hello(ClientFrame, frozen=True, kw_only=True, tag="hello"):
    """The first frame. A client without a `client_id` is given one. `features`: what it understands beyond the base."""

    client_id: Name | None = None
    token: Token | None = None
    features: Features = ()


class TurnFrame(ClientFrame, frozen=True, kw_only=True):
    """The root of what begins a turn."""

    client_msg_id: Id
    conversation_id: Name = DEFAULT_CONVERSATION
    on_busy: Literal["reject", "enqueue", "interrupt", "rollback"] = "reject"
    on_disconnect: Literal["cancel", "continue"] = "cancel"
    grace_s: Annotated[float, Meta(ge=0, le=60)] = 0
    params: Params = Params()


class Send(TurnFrame, frozen=True, kw_only=True, tag="send"):
    """A user's message."""

    content: Content
    parent_id: Id | msgspec.UnsetType | None = msgspec.UNSET


class Edit(TurnFrame, frozen=True, kw_only=True, tag="edit"):
    """A user's message in the place of another one, which is kept beside it."""

    message_id: Id
    content: Content


class Regenerate(TurnFrame, frozen=True, kw_only=True, tag="regenerate"):
    """Asks for another reply beside one that was given."""

    message_id: Id


class Cancel(ClientFrame, frozen=True, kw_only=True, tag="cancel"):
    """Stops a turn, or all turns of a conversation."""

    turn_id: Id | None = None
    conversation_id: Name | None = None
    mode: Literal["keep", "rollback"] = "keep"
    seen_off: Annotated[int, Meta(ge=0)] | None = None


class Resume(ClientFrame, frozen=True, kw_only=True, tag="resume"):
    """Asks for what was missed behind `after_seq` of an epoch, and attaches."""

    conversation_id: Name
    epoch: Ref
    after_seq: Annotated[int, Meta(ge=0, le=MAX_SEQ)]


class History(ClientFrame, frozen=True, kw_only=True, tag="history"):
    """Asks for a page of the active branch, and attaches. `leaf`: the branch through that message becomes the active one."""

    conversation_id: Name = DEFAULT_CONVERSATION
    limit: PageSize = 50
    before: Id | None = None
    leaf: Id | None = None


class Conversations(ClientFrame, frozen=True, kw_only=True, tag="conversations"):
    """Asks for the owner's conversations; `before` is the last one of the page before."""

    limit: PageSize = 50
    before: Name | None = None


class Ack(ClientFrame, frozen=True, kw_only=True, tag="ack"):
    """Says that all events up to `seq` have come; no answer."""

    conversation_id: Name
    seq: Annotated[int, Meta(ge=0, le=MAX_SEQ)]


class Rename(ClientFrame, frozen=True, kw_only=True, tag="rename"):
    """Gives a conversation another title."""

    conversation_id: Name
    title: Title


class Delete(ClientFrame, frozen=True, kw_only=True, tag="delete"):
    """Removes a conversation."""

    conversation_id: Name


class Ping(ClientFrame, frozen=True, kw_only=True, tag="ping"):
    """Asks for a `pong` with the same `t`."""

    t: int | float | str | None = None


class AuthRefresh(ClientFrame, frozen=True, kw_only=True, tag="auth.refresh"):
    """Shows a new token of the same principal."""

    token: Token


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the server holds its clients to; None: no limit."""

    max_frame_bytes: int
    max_content_chars: int
    max_new_tokens: int
    context_tokens: int
    max_active_turns: int
    max_queued_turns: int
    messages_per_minute: int | None


class Model(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model that may be named. `context_tokens`: its window; None while it was not loaded yet.

    `unsupported`: the params that it can't follow. `fallbacks`: models that answer where it can't, the first ones first.
    """

    name: str
    aliases: tuple[str, ...] = ()
    context_tokens: int | None = None
    unsupported: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()


class ServerFacts(msgspec.Struct, frozen=True):
    """Who answers."""

    name: str
    version: str


class ServerFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """The root of what the server sends besides events."""

    ref: str | None = None


class Ready(ServerFrame, frozen=True, kw_only=True, tag="ready"):
    """Answers `hello` and `auth.refresh`. `features`: what the server has beyond the base.

    `models`: those that may be named in `params`; `model`: the default, which `limits` are of.
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


class Cancelled(ServerFrame, frozen=True, kw_only=True, tag="cancelled"):
    """Answers `cancel`: the end is decided."""

    turn_id: str | msgspec.UnsetType | None = msgspec.UNSET
    already: bool | msgspec.UnsetType = msgspec.UNSET


class ConversationsPage(ServerFrame, frozen=True, kw_only=True, tag="conversations"):
    """Answers `conversations`."""

    conversations: list[Listed]
    has_more: bool | msgspec.UnsetType = msgspec.UNSET


class Pong(ServerFrame, frozen=True, kw_only=True, tag="pong"):
    """Answers `ping`."""

    t: int | float | str | None = None


class LimitNear(ServerFrame, frozen=True, kw_only=True, tag="limits"):
    """A limit has little room left. `name`: the setting's; `reset_s`: seconds until it has more."""

    name: str
    remaining: int
    reset_s: int


class GoAway(ServerFrame, frozen=True, kw_only=True, tag="goaway"):
    """The server is about to stop: this connection closes 1012 in `drain_ms` at the latest."""

    drain_ms: int
    reason: str


class Error(ServerFrame, frozen=True, kw_only=True, tag="error"):
    """A request was refused; it left no trace."""

    code: str
    message: str
    retryable: bool | msgspec.UnsetType = msgspec.UNSET
    retry_after_ms: int | None = None


Turning = Send | Edit | Regenerate
Request = (
    Hello | Turning | Cancel | Resume | History | Conversations | Rename | Delete | Ack | AuthRefresh | Ping
)
Frame = ServerFrame | Event


class Counts(StrEnum):
    """What a client frame counts for beside its bytes, which the line counts for every frame."""

    MESSAGE = "message"  # begins a turn
    READ = "read"  # asks the store
    NOTHING = "nothing"  # is answered from this process's memory, or must be heard in any case


class ClientKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of what clients send. `answers`: what answers it at once; any may be refused by an `error` besides.

    `overtakes`: it is handed on though the connection has as many requests as it may.
    """

    struct: type[ClientFrame]
    answers: tuple[type[Frame], ...]
    counts: Counts
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
        ClientKind(struct=Send, answers=(Accepted,), counts=Counts.MESSAGE),
        ClientKind(struct=Edit, answers=(Accepted,), counts=Counts.MESSAGE),
        ClientKind(struct=Regenerate, answers=(Accepted,), counts=Counts.MESSAGE),
        ClientKind(struct=Cancel, answers=(Cancelled,), counts=Counts.NOTHING, overtakes=True),
        ClientKind(struct=Resume, answers=(Resumed, Gap), counts=Counts.READ),
        ClientKind(struct=History, answers=(HistoryPage,), counts=Counts.READ),
        ClientKind(struct=Conversations, answers=(ConversationsPage,), counts=Counts.READ),
        ClientKind(struct=Rename, answers=(ConversationsPage,), counts=Counts.READ),
        ClientKind(struct=Delete, answers=(Deleted,), counts=Counts.READ),
        ClientKind(struct=Ack, answers=(), counts=Counts.NOTHING),
        ClientKind(struct=AuthRefresh, answers=(Ready,), counts=Counts.READ),
        ClientKind(struct=Ping, answers=(Pong,), counts=Counts.NOTHING, overtakes=True),
    )
}
"""All that a client may send. A new frame is its struct, its place in `Request`, a row here, and its answer in a handler."""


SERVER_FRAMES: dict[type[object], ServerKind] = {
    kind.struct: kind
    for kind in (
        ServerKind(struct=Ready),
        ServerKind(struct=Accepted),
        ServerKind(struct=Delta, merges=True),
        ServerKind(struct=Done),
        ServerKind(struct=Removed),
        ServerKind(struct=Cancelled),
        ServerKind(struct=Resumed),
        ServerKind(struct=Gap),
        ServerKind(struct=Snapshot),
        ServerKind(struct=HistoryPage),
        ServerKind(struct=ConversationsPage),
        ServerKind(struct=Deleted),
        ServerKind(struct=Pong),
        ServerKind(struct=Status),
        ServerKind(struct=LimitNear),
        ServerKind(struct=GoAway),
        ServerKind(struct=Error),
    )
}
"""All that the native door sends."""


def counts_of(frame: object) -> Counts:
    """What a frame counts for. Other doors' events count for nothing here: their handlers make frames of them."""
    kind = CLIENT_FRAMES.get(type(frame))
    return Counts.NOTHING if kind is None else kind.counts


def overtakes(frame: object) -> bool:
    """Whether a frame is handed on though its connection has as many requests as it may."""
    kind = CLIENT_FRAMES.get(type(frame))
    return kind is not None and kind.overtakes
