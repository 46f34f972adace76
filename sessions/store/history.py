"""Conversations in the store: facts, messages along a branch, and the atomic writes that begin and end a turn.

One hash and one stream a conversation, under one hash tag (Redis Cluster keeps them together):
`ms:{owner/conversation}` and `ms:{owner/conversation}:journal`.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable
from typing import Any, cast

import msgspec
from redis.asyncio import Redis

from sessions.errors import Conflict, OwnershipLost
from sessions.events import Journalled, Removed, decode_journalled, encode
from sessions.records import MessageRecord, Meta, TurnRecord
from sessions.store.client import (
    ACCEPT,
    BRANCH,
    DELETE,
    FINISH,
    REMOVE,
    RENEW,
    SINCE,
    START,
    WITHDRAW,
    run_script,
    store_errors,
)
from sessions.store.durability import Confirming, Durability
from sessions.store.keys import Keys, now_ms
from sessions.store.transactions import Beginning, Branch, Duplicate, Ending, Moved, Since

JOURNAL_KEPT = 10_000
"""Events that a conversation's journal keeps after a turn, about."""

_message = msgspec.json.Decoder(MessageRecord).decode
_turn = msgspec.json.Decoder(TurnRecord).decode
_FACTS = (
    "epoch",
    "seq",
    "title",
    "leaf",
    "system",
    "context_from",
    "running",
    "runner",
    "queue",
    "updated_at",
    "messages",
)


class History:
    """Reads and writes conversations. Every method raises StoreDown when the store does not answer."""

    def __init__(
        self, client: Redis, *, ttl_s: float, replica: str, durability: Durability = Durability.EVERYSEC
    ) -> None:
        self._client = client
        self._confirming = Confirming(client, durability)
        self._replica = replica
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
        fields = [f"message:{message_id}", f"parent:{message_id}"]
        with store_errors():
            record, parent = await cast(
                "Awaitable[list[bytes | None]]", self._client.hmget(keys.conversation, fields)
            )
        return _placed(record, parent or b"") if record else None

    async def parent(self, keys: Keys, message_id: str) -> str | None:
        """What a message answers, be it a reply without an end: empty at a root; None where there is no such message."""
        with store_errors():
            parent = await cast(
                "Awaitable[bytes | None]", self._client.hget(keys.conversation, f"parent:{message_id}")
            )
        return None if parent is None else parent.decode()

    async def branch(
        self, keys: Keys, *, leaf: str | None = None, limit: int = 1_000_000, last: str | None = None
    ) -> Branch:
        """Up to `limit` messages from `leaf` (the active one by default) towards the root, or to `last` if met."""
        epoch, seq, older, rows = await run_script(
            self._client, BRANCH, [keys.conversation], [leaf or "", limit, last or ""]
        )
        messages: list[MessageRecord] = []
        siblings: list[list[str]] = []
        pending: dict[str, list[str]] = {}
        for message_id, message, parent, beside in zip(*[iter(rows)] * 4, strict=True):
            if message:
                messages.append(_placed(message, parent))
                siblings.append(beside.decode().split())
            else:
                pending[message_id.decode()] = beside.decode().split()
        return Branch(epoch.decode(), seq, messages[::-1], siblings[::-1], older.decode() or None, pending)

    async def begin(self, keys: Keys, beginning: Beginning, *, attached: bool = False) -> bool:
        """Writes the user's message, where it is a new one, and `accepted`; tells whether other replicas watch the conversation.

        `attached`: this one does from now on. Raises Duplicate, Moved; a turn that runs elsewhere is Moved too.
        """
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
                msgspec.json.encode(beginning.message) if beginning.message else b"",
                msgspec.json.encode(turn),
                encode(event),
                now_ms(),
                self._ttl_ms,
                beginning.title,
                beginning.system,
                beginning.context_from,
                self._replica,
                "1" if attached else "0",
                turn.reply_id,
                "1" if beginning.continues else "0",
            ],
        )
        match answer:
            case [b"accepted", watchers]:
                await self._confirming.confirm(keys.conversation, ttl_ms=self._ttl_ms)
                return self.others_in(watchers)
            case [b"duplicate", record]:
                raise Duplicate(_turn(record))
            case _:
                raise Moved(answer[0].decode())

    def others_in(self, watchers: bytes) -> bool:
        """Whether replicas beside this one are among those that watch."""
        return any(name != self._replica for name in watchers.decode().split())

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
                self._replica,
            ],
        )
        if answer != b"ok":
            raise OwnershipLost(turn.turn_id)
        await self._confirming.confirm(keys.conversation, ttl_ms=self._ttl_ms)

    async def remove(self, keys: Keys, turn: TurnRecord, event: Removed) -> bool:
        """Takes an ended exchange out of the history; False where it had left before. Raises Conflict, Moved."""
        args: list[str | bytes | int] = [
            turn.turn_id,
            event.seq,
            turn.message_id,
            turn.reply_id,
            encode(event),
            self._replica,
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
            [
                turn.turn_id,
                turn.client_msg_id,
                turn.message_id,
                turn.reply_id,
                event.seq,
                encode(event),
                self._replica,
            ],
        )

    async def journal(self, keys: Keys, *, after_seq: int) -> list[Journalled]:
        """The events behind `after_seq`, oldest first."""
        with store_errors():
            rows = cast("list[Any]", await self._client.xrange(keys.journal, min=f"({after_seq}-0"))
        return [decode_journalled(fields[b"event"]) for _, fields in rows]

    async def since(self, keys: Keys, after_seq: int) -> Since | None:
        """The events behind `after_seq`, with the facts of that moment; None where there is no conversation."""
        answer = await run_script(self._client, SINCE, keys.pair(), [after_seq])
        if answer is None:
            return None
        epoch, seq, _, record, first, events = answer
        running = _turn(record) if record else None
        return Since(epoch.decode(), seq, running, first, [decode_journalled(event) for event in events])

    async def start(
        self, keys: Keys, turn_id: str, *, system: str | None = None, context_from: str = ""
    ) -> bool:
        """The next turn of the queue runs from here on; False where it is not the next.

        `system`: the conversation's prompt from now on; None: it stays.
        """
        named = [] if system is None else [system, context_from]
        answer = await run_script(self._client, START, [keys.conversation], [turn_id, self._replica, *named])
        return bool(answer == b"ok")

    async def epoch(self, keys: Keys) -> str:
        """The epoch of a conversation; empty where it does not exist."""
        meta = await self.load(keys)
        return "" if meta is None else meta.epoch

    async def renew(self, keys: Keys, epoch: str) -> None:
        """The store lost events of this epoch that were told: another one begins, unless it has."""
        await run_script(self._client, RENEW, [keys.conversation], [epoch, secrets.token_hex(8)])

    async def delete(self, keys: Keys, *, with_turns: bool = True) -> str | None:
        """Removes all of a conversation, of which other replicas are told; its epoch, None where there was none.

        Without `with_turns` it raises Moved where a turn runs or waits.
        """
        answer = await run_script(
            self._client, DELETE, keys.pair(), [self._replica, "1" if with_turns else "0"]
        )
        if answer == b"":
            raise Moved(keys.conversation)
        return answer.decode() if answer is not None else None


def _placed(record: bytes, parent: bytes) -> MessageRecord:
    """A message where it stands now: what it answered may have been taken out."""
    message, parent_id = _message(record), parent.decode() or None
    if message.parent_id == parent_id:
        return message
    return msgspec.structs.replace(message, parent_id=parent_id)


def _meta(values: list[Any]) -> Meta | None:
    if values[0] is None:
        return None
    epoch, seq, title, leaf, system, context_from, running, runner, queue, updated_at, messages = (
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
        runner=runner or None,
        queue=queue.split(),
        updated_at=int(updated_at or 0),
        messages=int(messages or 0),
    )
