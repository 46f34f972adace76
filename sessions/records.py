"""The stored parts of a conversation: messages, turns and the facts about them."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import Literal, Self

import msgspec

from engine.vision.image import Image
from sessions.events import (
    Accepted,
    CallState,
    Done,
    Languages,
    Needs,
    Reason,
    ShownCall,
    ToolCall,
    ToolState,
    Usage,
    Where,
)

ANONYMOUS_PRINCIPAL = "anonymous"
"""The principal of every client, if the operator configured no authentication."""
KEY = "key:"
"""Prefix of a key's principal, before its name."""


class Owner(msgspec.Struct, frozen=True):
    """The owner of conversations: a person, or one client of a principal that is not a person.

    `client_id`: empty for a person, and never for a client.
    """

    principal: str
    client_id: str

    @property
    def is_person(self) -> bool:
        """Whether all clients of the principal share the conversations."""
        return not self.client_id

    def __str__(self) -> str:
        return f"{self.principal}/{self.client_id}"


class Client(msgspec.Struct, frozen=True):
    """The client of a connection: a person's device or an application's user, as a `client_id` of a principal."""

    principal: str
    client_id: str

    def __str__(self) -> str:
        return f"{self.principal}/{self.client_id}"


class CallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored call of a reply. `args`: the text of a JSON object, as the model wrote it; `tokens`: of the call.

    `seq`: of its `tool_call`; `state_seq`: of its newest `tool_state`, None before the first. `allowed`:
    other arguments to run with, which the user set when allowing it. `runner`: the replica that runs it, if
    the server does. `expires_at`: Unix milliseconds.
    """

    call_id: str
    index: int
    name: str
    args: str
    where: Where
    needs: Needs
    off: int
    tokens: int
    seq: int
    expires_at: int | None = None
    state: CallState = CallState.WAITING
    state_seq: int | None = None
    allowed: str | None = None
    content: str | None = None
    error: str | None = None
    runner: str = ""

    @property
    def runs_with(self) -> str:
        """The arguments that the call runs with."""
        return self.args if self.allowed is None else self.allowed

    @property
    def args_sha256(self) -> str:
        """The hash of `args`."""
        return digest(self.args)

    @classmethod
    def of(cls, event: ToolCall) -> Self:
        """Make the record of a published call."""
        return msgspec.convert(event, cls, from_attributes=True)

    def after(self, event: ToolState) -> CallRecord:
        """Return the call as it is after an event."""
        return msgspec.structs.replace(
            self,
            state=event.state,
            state_seq=event.seq,
            content=event.content,
            error=event.error,
            allowed=self.allowed if event.args is None else event.args,
        )

    def call_event(self, *, conversation_id: str, turn_id: str) -> ToolCall:
        """Return the event that published the call."""
        return ToolCall(
            conversation_id=conversation_id,
            turn_id=turn_id,
            seq=self.seq,
            call_id=self.call_id,
            index=self.index,
            name=self.name,
            args=self.args,
            args_sha256=self.args_sha256,
            where=self.where,
            needs=self.needs,
            off=self.off,
            tokens=self.tokens,
            expires_at=self.expires_at,
        )

    def moved(self, *, conversation_id: str, turn_id: str) -> ToolState | None:
        """Return the call's newest change of state as an event; None if there was none."""
        if self.state_seq is None:
            return None
        return ToolState(
            conversation_id=conversation_id,
            turn_id=turn_id,
            seq=self.state_seq,
            call_id=self.call_id,
            state=self.state,
            content=self.content,
            error=self.error,
            args=self.allowed,
            args_sha256=None if self.allowed is None else digest(self.allowed),
        )

    def shown(self) -> ShownCall:
        """Return the call as the history shows it."""
        run = msgspec.structs.replace(self, args=self.runs_with)
        return msgspec.convert(run, ShownCall, from_attributes=True)


PublishPolicy = Literal["agreement", "segment"]
"""When words of an unfinished sentence are published: once three hypotheses agree, or never."""


class SourceState(msgspec.Struct, frozen=True, array_like=True):
    """The request and the progress of a turn that answers a growing source.

    `publish_policy`: as in `interpret.start`. The reply's text before `off` answers the source before `src`.
    `is_final`: the source does not grow any more.
    """

    source: str
    target: str
    publish_policy: PublishPolicy
    src: int = 0
    off: int = 0
    is_final: bool = False

    @property
    def languages(self) -> Languages:
        """The source and the target language."""
        return Languages(self.source, self.target)


class MessageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored message. `status`: complete, running, or the reason its turn ended; `created_at`: Unix ms.

    `model`: the model that wrote a reply; None if that is not known. `reasoning`: the model's reasoning;
    `languages`: the message is a source, and its replies are translations. `images`: the images of a
    user's message, without their bytes.
    """

    message_id: str
    parent_id: str | None
    turn_id: str
    role: Literal["user", "assistant"]
    content: str
    status: str
    created_at: int
    usage: Usage | None = None
    model: str | None = None
    reasoning: str = ""
    calls: tuple[CallRecord, ...] = ()
    languages: Languages | None = None
    images: tuple[Image, ...] = ()


class ContinuedReply(msgspec.Struct, frozen=True, array_like=True):
    """A reply before a turn continued it: the lengths of its text and reasoning, and the turn that wrote their ends."""

    turn_id: str
    chars: int
    reasoning: int

    @classmethod
    def of(cls, reply: MessageRecord) -> Self:
        """Make one from a reply as it is now."""
        return cls(reply.turn_id, len(reply.content), len(reply.reasoning))

    def cut(self, reply: MessageRecord) -> MessageRecord:
        """Return the reply with the text and reasoning that it had before."""
        return msgspec.structs.replace(
            reply,
            content=reply.content[: self.chars],
            reasoning=reply.reasoning[: self.reasoning],
        )


class TurnRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored turn, which answers duplicates of its `client_msg_id`. `digest`: SHA-256 of the content.

    `text_seq`, `reasoning_seq`: of its first delta and of its first reasoning, if it has ended and has them. `follows`: the turn
    whose calls were settled before it; then `message_id` is the reply that made them. `model`: the requested one; `fallback`: the
    one that answered instead. Each is empty if there is none, or it has no name. `continues`: the state of the cut reply that it
    continued. `source`: its reply answers a source that grows.
    """

    turn_id: str
    client_msg_id: str
    digest: str
    message_id: str
    reply_id: str
    parent_id: str | None
    accepted_seq: int
    text_seq: int | None = None
    done: Done | None = None
    model: str = ""
    fallback: str = ""
    reasoning_seq: int | None = None
    follows: str = ""
    continues: ContinuedReply | None = None
    source: SourceState | None = None

    @property
    def leaf(self) -> str:
        """The last message of the turn's branch while it runs: the user's, or the continued reply."""
        return self.message_id if self.continues is None else self.reply_id

    def leaves_reply_unchanged(self, done: Done, calls: Sequence[CallRecord]) -> bool:
        """Return whether the continued reply stays as it was: nothing was added, and the turn did not complete it."""
        if self.continues is None or calls or done.reason in (Reason.STOP, Reason.LENGTH):
            return False
        return (done.chars, done.reasoning_chars) == (self.continues.chars, self.continues.reasoning)

    def accepted(self, conversation_id: str, epoch: str) -> Accepted:
        """Return the turn's `accepted`, without its message's content."""
        return Accepted(
            conversation_id=conversation_id,
            client_msg_id=self.client_msg_id,
            turn_id=self.turn_id,
            message_id=self.message_id,
            epoch=epoch,
            seq=self.accepted_seq,
            parent_id=self.parent_id,
            model=self.model or None,
            follows=self.follows or None,
            continues=None if self.continues is None else self.reply_id,
            interprets=None if self.source is None else self.source.languages,
        )

    def signed(self, done: Done) -> Done:
        """Return the turn's end, with the model that wrote the reply and the turn whose calls it followed."""
        done = with_model(done, self.model, self.fallback)
        return msgspec.structs.replace(done, follows=self.follows or None)

    @property
    def writer(self) -> str | None:
        """The model that writes the reply, as far as it is known."""
        return self.fallback or self.model or None


def with_model(done: Done, model: str, fallback: str) -> Done:
    """Return the end of a turn with its model: the requested one, or the fallback that answered."""
    requested = model if fallback else None
    return msgspec.structs.replace(done, model=fallback or model or None, requested_model=requested)


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a conversation. `seq`: of the last journalled event; `running`: the turn that has not ended.

    `runner`: the replica that ran the last turn, and runs `running`; `queue`: the turns that wait after `running`. `model`: the
    last one that was named; empty: none was.
    """

    epoch: str
    seq: int
    title: str
    leaf: str | None
    system: str
    context_from: str | None
    running: str | None
    runner: str | None
    queue: list[str]
    updated_at: int
    messages: int
    model: str = ""

    @classmethod
    def new(cls, epoch: str | None = None) -> Self:
        """Return the facts of a conversation without messages, by default in a new epoch."""
        return cls(
            epoch=secrets.token_hex(8) if epoch is None else epoch,
            seq=0,
            title="",
            leaf=None,
            system="",
            context_from=None,
            running=None,
            runner=None,
            queue=[],
            updated_at=0,
            messages=0,
        )


def user_message(
    record: TurnRecord, content: str, *, at_ms: int, images: tuple[Image, ...] = ()
) -> MessageRecord:
    """Return the message that begins a turn."""
    return MessageRecord(
        message_id=record.message_id,
        parent_id=record.parent_id,
        turn_id=record.turn_id,
        role="user",
        content=content,
        status="complete",
        created_at=at_ms,
        languages=None if record.source is None else record.source.languages,
        images=images,
    )


RUNNING = "running"
"""The status of a reply that has no end yet."""


def reply_message(
    turn: TurnRecord,
    done: Done | None,
    *,
    content: str,
    reasoning: str,
    calls: tuple[CallRecord, ...],
    created_at: int,
) -> MessageRecord:
    """Return the reply of a turn. `done`: its end; None: it runs."""
    return MessageRecord(
        message_id=turn.reply_id,
        parent_id=turn.message_id,
        turn_id=turn.turn_id,
        role="assistant",
        content=content,
        status=RUNNING if done is None else status_of(done.reason),
        created_at=created_at,
        usage=None if done is None else done.usage,
        model=turn.writer,
        reasoning=reasoning,
        calls=calls,
    )


def digest(content: str) -> str:
    """Return the SHA-256 of a text in UTF-8, in hex."""
    return hashlib.sha256(content.encode()).hexdigest()


def status_of(reason: Reason) -> str:
    """Return the status of a reply whose turn ended for this reason."""
    return "complete" if reason in (Reason.STOP, Reason.LENGTH, Reason.TOOLS) else reason.value
