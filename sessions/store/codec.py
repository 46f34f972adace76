"""The store's keys of a conversation, and the stored form of messages and turns: short arrays.

What a field's name or another record says is not stored again. A turn's record may begin with the link to the previous end
(`lua/ends.lua`). `lua/since.lua` relies on the positions of the ids, the seq and the end.
"""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec

from engine.vision.image import Image
from sessions.events import (
    CancelFacts,
    Done,
    Failure,
    Languages,
    Reason,
    Timing,
    Usage,
)
from sessions.records import (
    CallRecord,
    ContinuedReply,
    MessageRecord,
    Owner,
    SourceState,
    TurnRecord,
    with_model,
)


class Keys(msgspec.Struct, frozen=True):
    """The store's keys of one conversation."""

    conversation: str
    journal: str

    @classmethod
    def of(cls, owner: Owner, conversation_id: str) -> Keys:
        """Both keys share the hash tag."""
        return cls.named(f"ms:{{{owner}/{conversation_id}}}")

    @classmethod
    def named(cls, conversation: str) -> Keys:
        """Return the keys of the conversation whose hash has this name."""
        return cls(conversation, f"{conversation}:journal")

    @property
    def owner(self) -> str:
        """The owner, as its keys name it."""
        return self.conversation.removeprefix("ms:{").rpartition("/")[0]

    @property
    def conversation_id(self) -> str:
        """The conversation's id within its owner, without a slash."""
        return self.conversation.rpartition("/")[2].rstrip("}")

    def pair(self) -> tuple[str, str]:
        """Return the keys as scripts take them."""
        return (self.conversation, self.journal)


def now_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


_Usage = tuple[int | float | None, ...]
"""The values of a `Usage`, in its order."""


class _Message(msgspec.Struct, array_like=True, frozen=True):
    turn_id: str
    role: Literal["user", "assistant"]
    status: str
    created_at: int
    content: str
    usage: _Usage | None
    model: str | None = None
    reasoning: str = ""
    unused: str = ""  # format 3: the reply as the model spelled it
    languages: tuple[str, str] | None = None
    images: tuple[Image, ...] = ()


class _Rest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Optional parts of an end."""

    saved: bool = True
    removed: bool = False
    first_seq: int | None = None
    cancel: CancelFacts | None = None
    error: Failure | None = None
    reasoning_seq: int | None = None
    reasoning_chars: int = 0
    open: tuple[str, ...] = ()


class _End(msgspec.Struct, array_like=True, frozen=True):
    seq: int
    text_seq: int | None
    reason: Reason
    chars: int
    text_sha256: str
    usage: _Usage
    timing: tuple[float | None, float | None, float]
    rest: _Rest


class _Turn(msgspec.Struct, array_like=True, frozen=True):
    client_msg_id: str
    digest: str
    message_id: str
    reply_id: str
    parent_id: str | None
    accepted_seq: int
    end: _End | None
    model: str = ""
    fallback: str = ""
    follows: str = ""
    continues: ContinuedReply | None = None
    source: SourceState | None = None


S = TypeVar("S", bound=msgspec.Struct)
_encode = msgspec.json.Encoder().encode
_message = msgspec.json.Decoder(_Message).decode
_call = msgspec.json.Decoder(list[Any]).decode
_turn = msgspec.json.Decoder(_Turn).decode


def encode_message(message: MessageRecord) -> bytes:
    """A message without its id and parent, which the surrounding fields name."""
    usage = None if message.usage is None else msgspec.structs.astuple(message.usage)
    return _encode(
        _Message(
            message.turn_id,
            message.role,
            message.status,
            message.created_at,
            message.content,
            usage,
            message.model,
            message.reasoning,
            "",
            None if message.languages is None else msgspec.structs.astuple(message.languages),
            message.images,
        )
    )


def encode_call(call: CallRecord) -> bytes:
    """A call without its id, which the surrounding field names."""
    return _encode(msgspec.structs.astuple(call)[1:])


def decode_call(kept: bytes, *, call_id: str) -> CallRecord:
    """Return the record of a call."""
    return _named(CallRecord, (call_id, *_call(kept)))


def decode_message(
    kept: bytes, *, message_id: str, parent_id: str | None, calls: tuple[CallRecord, ...] = ()
) -> MessageRecord:
    """Return a message with its current parent: the one that it answered may have been removed."""
    short = _message(kept)
    return MessageRecord(
        message_id=message_id,
        parent_id=parent_id,
        turn_id=short.turn_id,
        role=short.role,
        content=short.content,
        status=short.status,
        created_at=short.created_at,
        usage=None if short.usage is None else _named(Usage, short.usage),
        model=short.model,
        reasoning=short.reasoning,
        calls=calls,
        languages=None if short.languages is None else Languages(*short.languages),
        images=short.images,
    )


def encode_turn(turn: TurnRecord) -> bytes:
    """A turn without its id and its conversation's, which field and key name."""
    return _encode(
        _Turn(
            turn.client_msg_id,
            _shorter(turn.digest),
            turn.message_id,
            turn.reply_id,
            turn.parent_id,
            turn.accepted_seq,
            None if turn.done is None else _end(turn.done, turn.text_seq, turn.reasoning_seq),
            turn.model,
            turn.fallback,
            turn.follows,
            turn.continues,
            turn.source,
        )
    )


def decode_turn(kept: bytes, *, conversation_id: str, turn_id: str) -> TurnRecord:
    """Return the record of a turn."""
    short = _turn(kept[kept.find(b"\n") + 1 :])
    done = None
    if short.end is not None:
        done = _done(short.end, conversation_id=conversation_id, turn_id=turn_id, reply_id=short.reply_id)
        done = with_model(done, short.model, short.fallback)
        done = msgspec.structs.replace(done, follows=short.follows or None)
    return TurnRecord(
        turn_id=turn_id,
        client_msg_id=short.client_msg_id,
        digest=_longer(short.digest),
        message_id=short.message_id,
        reply_id=short.reply_id,
        parent_id=short.parent_id,
        accepted_seq=short.accepted_seq,
        text_seq=None if short.end is None else short.end.text_seq,
        done=done,
        model=short.model,
        fallback=short.fallback,
        reasoning_seq=None if short.end is None else short.end.rest.reasoning_seq,
        follows=short.follows,
        continues=short.continues,
        source=short.source,
    )


def _end(done: Done, text_seq: int | None, reasoning_seq: int | None) -> _End:
    timing = done.timing
    return _End(
        done.seq,
        text_seq,
        done.reason,
        done.chars,
        _shorter(done.text_sha256),
        msgspec.structs.astuple(done.usage),
        (timing.queued_ms, timing.first_token_ms, timing.total_ms),
        _Rest(
            saved=done.saved,
            removed=done.removed,
            first_seq=done.first_seq,
            cancel=done.cancel,
            error=done.error,
            reasoning_seq=reasoning_seq,
            reasoning_chars=done.reasoning_chars,
            open=done.open,
        ),
    )


def _done(end: _End, *, conversation_id: str, turn_id: str, reply_id: str) -> Done:
    queued_ms, first_token_ms, total_ms = end.timing
    return Done(
        conversation_id=conversation_id,
        turn_id=turn_id,
        message_id=reply_id,
        seq=end.seq,
        reason=end.reason,
        chars=end.chars,
        usage=_named(Usage, end.usage),
        timing=Timing(queued_ms=queued_ms, first_token_ms=first_token_ms, total_ms=total_ms),
        text_sha256=_longer(end.text_sha256),
        saved=end.rest.saved,
        first_seq=end.rest.first_seq,
        removed=end.rest.removed,
        cancel=end.rest.cancel,
        error=end.rest.error,
        reasoning_chars=end.rest.reasoning_chars,
        open=end.rest.open,
    )


def _named(kind: type[S], values: Sequence[Any]) -> S:
    """Return a struct of its fields' values, in their order; those that are missing at the end have defaults."""
    return msgspec.convert(dict(zip(kind.__struct_fields__, values, strict=False)), kind)


def _shorter(sha256_hex: str) -> str:
    return b64encode(bytes.fromhex(sha256_hex)).decode()


def _longer(sha256: str) -> str:
    return b64decode(sha256).hex()
