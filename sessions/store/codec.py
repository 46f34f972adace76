"""The store's keys of a conversation, and the stored form of messages and turns: short arrays.

What a field's name or another record has is not stored again. A turn's record may begin with the link to the previous end
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
        """Return the keys of an owner's conversation. Both have the same hash tag."""
        return cls.named(f"ms:{{{owner}/{conversation_id}}}")

    @classmethod
    def named(cls, conversation: str) -> Keys:
        """Return the keys of the conversation whose hash has this name."""
        return cls(conversation, f"{conversation}:journal")

    @property
    def owner(self) -> str:
        """The owner, as the keys name it."""
        return self.conversation.removeprefix("ms:{").rpartition("/")[0]

    @property
    def conversation_id(self) -> str:
        """The conversation's id within its owner, without a slash."""
        return self.conversation.rpartition("/")[2].rstrip("}")

    def pair(self) -> tuple[str, str]:
        """Return both keys, in the order that scripts expect."""
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
    unused: str = ""  # messages of earlier versions have a text in this place
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
    timing: tuple[float | None, ...]
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
    """Encode a message without its id and parent, which the hash's fields have."""
    kept = {name: getattr(message, name) for name in _Message.__struct_fields__ if name != "unused"}
    for name in ("usage", "languages"):
        kept[name] = None if kept[name] is None else msgspec.structs.astuple(kept[name])
    return _encode(_Message(**kept))


def encode_call(call: CallRecord) -> bytes:
    """Encode a call without its id, which its field's name has."""
    return _encode(msgspec.structs.astuple(call)[1:])


def decode_call(kept: bytes, *, call_id: str) -> CallRecord:
    """Return the record of a call."""
    return _named(CallRecord, (call_id, *_call(kept)))


def decode_message(
    kept: bytes, *, message_id: str, parent_id: str | None, calls: tuple[CallRecord, ...] = ()
) -> MessageRecord:
    """Return a message. `parent_id`: its current parent, since the original one may have been removed."""
    short = msgspec.structs.asdict(_message(kept))
    usage, languages, _ = short.pop("usage"), short.pop("languages"), short.pop("unused")
    return MessageRecord(
        message_id=message_id,
        parent_id=parent_id,
        calls=calls,
        usage=None if usage is None else _named(Usage, usage),
        languages=None if languages is None else Languages(*languages),
        **short,
    )


def encode_turn(turn: TurnRecord) -> bytes:
    """Encode a turn without its id and its conversation's id, which field and key have."""
    end = None if turn.done is None else _end(turn.done, turn.text_seq, turn.reasoning_seq)
    kept = {name: getattr(turn, name) for name in _Turn.__struct_fields__ if name != "end"}
    return _encode(_Turn(**kept | {"digest": _shorter(turn.digest), "end": end}))


def decode_turn(kept: bytes, *, conversation_id: str, turn_id: str) -> TurnRecord:
    """Return the record of a turn."""
    short = _turn(kept[kept.find(b"\n") + 1 :])
    record = msgspec.structs.asdict(short) | {"digest": _longer(short.digest)}
    if (end := record.pop("end")) is not None:
        done = _done(end, conversation_id=conversation_id, turn_id=turn_id, reply_id=short.reply_id)
        done = with_model(done, short.model, short.fallback)
        record["done"] = msgspec.structs.replace(done, follows=short.follows or None)
        record |= {"text_seq": end.text_seq, "reasoning_seq": end.rest.reasoning_seq}
    return TurnRecord(turn_id=turn_id, **record)


def _end(done: Done, text_seq: int | None, reasoning_seq: int | None) -> _End:
    rest = {name: getattr(done, name) for name in _Rest.__struct_fields__ if name != "reasoning_seq"}
    return _End(
        done.seq,
        text_seq,
        done.reason,
        done.chars,
        _shorter(done.text_sha256),
        msgspec.structs.astuple(done.usage),
        msgspec.structs.astuple(done.timing),
        _Rest(**rest, reasoning_seq=reasoning_seq),
    )


def _done(end: _End, *, conversation_id: str, turn_id: str, reply_id: str) -> Done:
    rest = msgspec.structs.asdict(end.rest)
    del rest["reasoning_seq"]
    return Done(
        conversation_id=conversation_id,
        turn_id=turn_id,
        message_id=reply_id,
        seq=end.seq,
        reason=end.reason,
        chars=end.chars,
        usage=_named(Usage, end.usage),
        timing=_named(Timing, end.timing),
        text_sha256=_longer(end.text_sha256),
        **rest,
    )


def _named(kind: type[S], values: Sequence[Any]) -> S:
    """Return a struct from `values` in the order of its fields; fields without a value get their defaults."""
    return msgspec.convert(dict(zip(kind.__struct_fields__, values, strict=False)), kind)


def _shorter(sha256_hex: str) -> str:
    return b64encode(bytes.fromhex(sha256_hex)).decode()


def _longer(sha256: str) -> str:
    return b64decode(sha256).hex()
