"""Conversations in the store: facts, messages along a branch, and the atomic writes that begin and end a turn.

One hash and one stream a conversation, under one hash tag (Redis Cluster keeps them together):
`ms:{owner/conversation}` and `ms:{owner/conversation}:journal`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import Any, cast

import msgspec
from redis.asyncio import Redis

from sessions.errors import Conflict, OwnershipLost, SessionError
from sessions.events import Accepted, Done, Journalled, Removed, decode_journalled, encode
from sessions.records import MessageRecord, Meta, Owner, TurnRecord
from sessions.store import ACCEPT, BRANCH, FINISH, REMOVE, WITHDRAW, run_script, store_errors

JOURNAL_KEPT = 10_000
"""Events that a conversation's journal keeps after a turn, about."""

_message = msgspec.json.Decoder(MessageRecord).decode
_turn = msgspec.json.Decoder(TurnRecord).decode
_FACTS = ("epoch", "seq", "title", "leaf", "system", "context_from", "running", "updated_at", "messages")


class Keys(msgspec.Struct, frozen=True):
    """The store's names for one conversation."""

    conversation: str
    journal: str

    @classmethod
    def of(cls, owner: Owner, conversation_id: str) -> Keys:
        """Both keys share the hash tag."""
        tag = f"ms:{{{owner}/{conversation_id}}}"
        return cls(tag, f"{tag}:journal")

    def pair(self) -> tuple[str, str]:
        """As scripts take them."""
        return (self.conversation, self.journal)


class Moved(SessionError):
    """The store knows more (or less) of the conversation than the caller: load it again."""


class Duplicate(SessionError):
    """The `client_msg_id` has its turn already."""

    def __init__(self, turn: TurnRecord) -> None:
        super().__init__(turn.turn_id)
        self.turn = turn


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """All that is written when a turn is accepted."""

    message: MessageRecord
    turn: TurnRecord
    event: Accepted
    title: str
    system: str
    context_from: str


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """All that is written when a turn ends; `turn.done` is the event."""

    reply: MessageRecord
    turn: TurnRecord

    @property
    def done(self) -> Done:
        """The event. A turn that ends has one."""
        return cast("Done", self.turn.done)


class Branch(msgspec.Struct, frozen=True):
    """Messages oldest first with their siblings, and the older message that comes before them, if any."""

    epoch: str
    seq: int
    messages: list[MessageRecord]
    siblings: list[list[str]]
    older: str | None


class History:
    """Reads and writes conversations. Every method raises StoreDown when the store does not answer."""

    def __init__(self, client: Redis, *, ttl_s: float) -> None:
        self._client = client
        self._ttl_ms = int(ttl_s * 1000)

    async def load(self, keys: Keys) -> Meta | None:
        """The facts of a conversation; None where it does not exist."""
        with store_errors():
            values = await cast("Awaitable[list[Any]]", self._client.hmget(keys.conversation, list(_FACTS)))
        return _meta(values)

    async def turn_of(self, keys: Keys, client_msg_id: str) -> TurnRecord | None:
        """The turn that a `client_msg_id` began, if it did."""
        with store_errors():
            turn_id = await cast(
                "Awaitable[bytes | None]", self._client.hget(keys.conversation, f"sent:{client_msg_id}")
            )
        return await self.turn(keys, turn_id.decode()) if turn_id else None

    async def turn(self, keys: Keys, turn_id: str) -> TurnRecord | None:
        """A turn by its id."""
        with store_errors():
            record = await cast(
                "Awaitable[bytes | None]", self._client.hget(keys.conversation, f"turn:{turn_id}")
            )
        return _turn(record) if record else None

    async def message(self, keys: Keys, message_id: str) -> MessageRecord | None:
        """A message by its id."""
        with store_errors():
            record = await cast(
                "Awaitable[bytes | None]", self._client.hget(keys.conversation, f"message:{message_id}")
            )
        return _message(record) if record else None

    async def branch(
        self, keys: Keys, *, leaf: str | None = None, limit: int = 1_000_000, last: str | None = None
    ) -> Branch:
        """Up to `limit` messages from `leaf` (the active one by default) towards the root, or to `last` if met."""
        epoch, seq, older, rows = await run_script(
            self._client, BRANCH, [keys.conversation], [leaf or "", limit, last or ""]
        )
        messages = [_message(row) for row in rows[::2]]
        siblings = [row.decode().split() for row in rows[1::2]]
        return Branch(epoch.decode(), seq, messages[::-1], siblings[::-1], older.decode() or None)

    async def begin(self, keys: Keys, beginning: Beginning) -> None:
        """Writes the user's message and `accepted`. Raises Duplicate, Moved; a turn that runs elsewhere is Moved too."""
        turn, event = beginning.turn, beginning.event
        answer = await run_script(
            self._client,
            ACCEPT,
            keys.pair(),
            [
                turn.client_msg_id,
                turn.turn_id,
                turn.message_id,
                turn.parent_id or "",
                event.epoch,
                event.seq,
                msgspec.json.encode(beginning.message),
                msgspec.json.encode(turn),
                encode(event),
                beginning.message.created_at,
                self._ttl_ms,
                beginning.title,
                beginning.system,
                beginning.context_from,
            ],
        )
        match answer:
            case [b"accepted"]:
                return
            case [b"duplicate", record]:
                raise Duplicate(_turn(record))
            case _:
                raise Moved(answer[0].decode())

    async def finish(self, keys: Keys, ending: Ending) -> None:
        """Writes the reply and `done`; repeating it is harmless. Raises OwnershipLost."""
        turn, done = ending.turn, ending.done
        answer = await run_script(
            self._client,
            FINISH,
            keys.pair(),
            [
                turn.turn_id,
                done.seq,
                turn.message_id,
                turn.reply_id,
                msgspec.json.encode(ending.reply),
                msgspec.json.encode(turn),
                encode(done),
                now_ms(),
                self._ttl_ms,
                JOURNAL_KEPT,
                "1" if done.removed else "0",
            ],
        )
        if answer != b"ok":
            raise OwnershipLost(turn.turn_id)

    async def remove(self, keys: Keys, turn: TurnRecord, event: Removed) -> bool:
        """Takes an ended exchange out of the history; False where it had left before. Raises Conflict, Moved."""
        args: list[str | bytes | int] = [
            turn.turn_id,
            event.seq,
            turn.message_id,
            turn.reply_id,
            encode(event),
        ]
        match await run_script(self._client, REMOVE, keys.pair(), args):
            case b"ok":
                return True
            case b"gone":
                return False
            case b"followed":
                raise Conflict(
                    "The conversation went on from this exchange; only the last one can be taken back."
                )
            case _:
                raise Moved(turn.turn_id)

    async def withdraw(self, keys: Keys, turn: TurnRecord, event: Removed) -> None:
        """Undoes `begin` where its sender was told that it failed; nothing where it did, or was undone before."""
        await run_script(
            self._client,
            WITHDRAW,
            keys.pair(),
            [turn.turn_id, turn.client_msg_id, turn.message_id, event.seq, encode(event)],
        )

    async def journal(self, keys: Keys, *, after_seq: int) -> list[Journalled]:
        """The events behind `after_seq`, oldest first."""
        with store_errors():
            rows = cast("list[Any]", await self._client.xrange(keys.journal, min=f"({after_seq}-0"))
        return [decode_journalled(fields[b"event"]) for _, fields in rows]

    async def delete(self, keys: Keys) -> bool:
        """Removes all of a conversation; False where there was none."""
        with store_errors():
            return bool(await self._client.unlink(*keys.pair()))


def _meta(values: list[Any]) -> Meta | None:
    if values[0] is None:
        return None
    epoch, seq, title, leaf, system, context_from, running, updated_at, messages = (
        value.decode() if value is not None else "" for value in values
    )
    return Meta(
        epoch=epoch,
        seq=int(seq),
        title=title,
        leaf=leaf or None,
        system=system,
        context_from=context_from or None,
        running=running or None,
        updated_at=int(updated_at or 0),
        messages=int(messages or 0),
    )


def now_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000
