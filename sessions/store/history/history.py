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
from sessions.records import CallRecord, MessageRecord, Meta, TurnRecord
from sessions.store.history.codec import Keys, decode_call, encode_call, encode_message, encode_turn, now_ms
from sessions.store.history.rebuild import Journal, rebuilt
from sessions.store.history.replay import READ_BYTES
from sessions.store.history.transactions import (
    FACTS,
    MAX_SIBLINGS,
    Beginning,
    Branch,
    Duplicate,
    Ending,
    Siblings,
    Since,
    StaleFacts,
    calls_from,
    facts_from,
    is_removal,
    message_at,
    message_from,
    older_turn,
    turn_from,
)
from sessions.store.ledger import Ledger
from sessions.store.redis.client import (
    ACCEPT,
    BRANCH,
    DELETE,
    FINISH,
    GO_ON,
    REMOVE,
    RENEW,
    SINCE,
    START,
    WITHDRAW,
    Script,
    run_script,
    store_errors,
)
from sessions.store.redis.durability import Durability, WriteConfirmer

JOURNAL_KEPT = 10_000
"""Events that a conversation's journal keeps after a turn, approximately."""
OLDER_BYTES = READ_BYTES
"""Bytes that are read at most of turns whose events have left the journal: a reader who missed more gets a gap."""


class History:
    """Reads and writes conversations. Every method raises StoreDown if the store does not answer."""

    def __init__(
        self,
        client: Redis,
        *,
        ttl_s: float,
        replica: str,
        durability: Durability = Durability.MEMORY,
        ledger: Ledger | None = None,
    ) -> None:
        self._client = client
        self._ledger = ledger or Ledger(client)
        self._confirmer = WriteConfirmer(client, durability)
        self._replica = replica
        self._ttl_ms = int(ttl_s * 1000)

    async def load(self, keys: Keys) -> Meta | None:
        """Return the facts of a conversation; None if it does not exist."""
        with store_errors():
            values = await cast("Awaitable[list[Any]]", self._client.hmget(keys.conversation, list(FACTS)))
        return facts_from(values)

    async def look(self, keys: Keys, client_msg_id: str) -> tuple[TurnRecord | None, Meta | None]:
        """Return the turn that a `client_msg_id` began, if any, and the facts, in one round trip."""
        with store_errors():
            sent, *values = await cast(
                "Awaitable[list[Any]]",
                self._client.hmget(keys.conversation, [f"sent:{client_msg_id}", *FACTS]),
            )
        return await self.turn(keys, sent.decode()) if sent else None, facts_from(values)

    async def turn_of(self, keys: Keys, client_msg_id: str) -> TurnRecord | None:
        """Return the turn that a `client_msg_id` began, if any."""
        with store_errors():
            turn_id = await cast(
                "Awaitable[bytes | None]", self._client.hget(keys.conversation, f"sent:{client_msg_id}")
            )
        return await self.turn(keys, turn_id.decode()) if turn_id else None

    async def turn(self, keys: Keys, turn_id: str) -> TurnRecord | None:
        """Return a turn by its id."""
        with store_errors():
            record = await cast(
                "Awaitable[bytes | None]", self._client.hget(keys.conversation, f"turn:{turn_id}")
            )
        return turn_from(keys, turn_id, record) if record else None

    async def message(self, keys: Keys, message_id: str) -> MessageRecord | None:
        """Return a message by its id."""
        branch = await self.branch(keys, leaf=message_id, limit=1)
        return next((message for message in branch.messages if message.message_id == message_id), None)

    async def base(self, keys: Keys, record: TurnRecord) -> MessageRecord | None:
        """Return the reply that a turn continues, with text and reasoning as before it; None if the turn began one."""
        if record.continues is None:
            return None
        reply = await self.message(keys, record.reply_id)
        return None if reply is None else record.continues.cut(reply)

    async def call(self, keys: Keys, call_id: str) -> CallRecord | None:
        """Return a call by its id, if its reply has ended."""
        with store_errors():
            kept = await cast(
                "Awaitable[bytes | None]", self._client.hget(keys.conversation, f"call:{call_id}")
            )
        return decode_call(kept, call_id=call_id) if kept else None

    async def following(self, keys: Keys) -> bytes | None:
        """Return the turn that waits for calls, as `finish` was given it; None if there is none."""
        with store_errors():
            return await cast("Awaitable[bytes | None]", self._client.hget(keys.conversation, "follow"))

    async def continue_turn(self, keys: Keys, turn_id: str, *, next_id: str, following: bytes) -> bool | None:
        """Rename a turn that waits for calls, which waits here now; None if it does not wait under the old name.

        Return whether other replicas watch the conversation.
        """
        named: list[str | bytes | int] = [turn_id, next_id, self._replica, following]
        watchers = await run_script(self._client, GO_ON, [keys.conversation], named)
        return None if watchers is None else self.others_in(watchers)

    async def parent(self, keys: Keys, message_id: str) -> str | None:
        """Return the parent of a message, even of an unfinished reply: empty at a root; None if there is no such message."""
        with store_errors():
            parent = await cast(
                "Awaitable[bytes | None]", self._client.hget(keys.conversation, f"parent:{message_id}")
            )
        return None if parent is None else parent.decode()

    async def children(self, keys: Keys, message_id: str | None) -> int:
        """Return the number of children of a message; None: of the root."""
        with store_errors():
            names = await cast(
                "Awaitable[bytes | None]",
                self._client.hget(keys.conversation, f"children:{message_id or ''}"),
            )
        return len(names.split()) if names else 0

    async def follower(self, keys: Keys, turn: TurnRecord) -> TurnRecord | None:
        """The turn that follows the calls of another one, once it was accepted; None where there is none so far."""
        with store_errors():
            names, running = await cast(
                "Awaitable[list[bytes | None]]",
                self._client.hmget(keys.conversation, [f"children:{turn.reply_id}", "running"]),
            )
        for name in names.decode().split() if names else ():
            reply = await self.message(keys, name)
            turn_id = reply.turn_id if reply is not None else (running or b"").decode()
            found = await self.turn(keys, turn_id) if turn_id else None
            if found is not None and found.follows == turn.turn_id:
                return found
        return None

    async def branch(
        self,
        keys: Keys,
        *,
        leaf: str | None = None,
        limit: int = 1_000_000,
        last: str | None = None,
        most_bytes: int | None = None,
    ) -> Branch:
        """Return up to `limit` messages from `leaf` (default: the active one) towards the root, or to `last` if met.

        `most_bytes`: the store stops reading after so many bytes.
        """
        most = "" if most_bytes is None else most_bytes
        epoch, seq, older, running, rows = await run_script(
            self._client, BRANCH, [keys.conversation], [leaf or "", limit, last or "", MAX_SIBLINGS, most]
        )
        messages: list[MessageRecord] = []
        siblings: list[Siblings] = []
        pending: dict[str, Siblings] = {}
        for message_id, message, parent, sibling_ids, count, before, calls in zip(
            *[iter(rows)] * 7, strict=True
        ):
            nearest = Siblings(sibling_ids.decode().split(), count, before)
            if message:
                messages.append(message_at(message_id.decode(), message, parent, calls))
                siblings.append(nearest)
            else:
                pending[message_id.decode()] = nearest
        branch = Branch(epoch.decode(), seq, messages[::-1], siblings[::-1], older.decode() or None, pending)
        return msgspec.structs.replace(branch, is_running=bool(running))

    async def begin(self, keys: Keys, beginning: Beginning, *, attached: bool = False) -> bool:
        """Write the user's message, if it is new, and `accepted`; return whether other replicas watch the conversation.

        `attached`: this one watches from now on. Raises Duplicate; Moved, also if a turn runs elsewhere.
        """
        turn, event, titled_by = beginning.turn, beginning.event, beginning.titled_by
        header = {
            "client_msg_id": turn.client_msg_id,
            "turn_id": turn.turn_id,
            "message_id": turn.message_id,
            "reply_id": turn.reply_id,
            "parent_id": turn.parent_id or "",
            "epoch": event.epoch,
            "seq": event.seq,
            "now": now_ms(),
            "ttl": self._ttl_ms,
            "title": beginning.title,
            "titled_by": " ".join(msgspec.structs.astuple(titled_by)) if titled_by else "",
            "system": beginning.system,
            "context_from": beginning.context_from,
            "model": beginning.model,
            "replica": self._replica,
            "attached": attached,
            "continues": beginning.continues,
            "goes_on": turn.continues is not None,
        }
        message = encode_message(beginning.message) if beginning.message else b""
        term = self.term
        answer = await self._write(ACCEPT, keys, header, message, encode_turn(turn), encode(event))
        match answer:
            case [b"accepted", watchers]:
                await self.confirm(keys, term=term)
                return self.others_in(watchers)
            case [b"duplicate", turn_id, record]:
                raise Duplicate(turn_from(keys, turn_id.decode(), record))
            case _:
                raise StaleFacts(answer[0].decode())

    def others_in(self, watchers: bytes) -> bool:
        """Return whether other replicas are among those that watch."""
        return any(name != self._replica for name in watchers.decode().split())

    @property
    def term(self) -> int:
        """What to confirm writes with that come after it."""
        return self._confirmer.term

    async def confirm(self, keys: Keys, *, term: int) -> None:
        """Wait until all writes to a conversation since a `term` have the configured durability. Raises StoreDown."""
        await self._confirmer.confirm(keys.conversation, ttl_ms=self._ttl_ms, term=term)

    async def finish(self, keys: Keys, ending: Ending, *, repairs: bool = False, group: str = "") -> None:
        """Write the reply and `done`; repeating it is harmless. Raises OwnershipLost.

        `repairs`: the journal was unusable, and begins anew with this end. `group`: the sender's key or address, if it is known.
        """
        turn, done, follow = ending.turn, ending.done, ending.follow
        header = {
            "turn_id": turn.turn_id,
            "seq": done.seq,
            "message_id": turn.message_id,
            "reply_id": turn.reply_id,
            "now": now_ms(),
            "ttl": self._ttl_ms,
            "kept": JOURNAL_KEPT,
            "removed": done.removed,
            "mends": repairs,
            "stays": ending.stays,
            "group": group,
            "replica": self._replica,
            "next": "" if follow is None else follow.turn_id,
            "next_reply": "" if follow is None else follow.reply_id,
        }
        payloads = [encode_message(ending.reply), encode_turn(turn), encode(done)]
        payloads.append(b"" if follow is None else follow.record)
        for call in ending.reply.calls:
            payloads += (call.call_id.encode(), encode_call(call))
        term = self.term
        outcome, *weighed = await self._write(FINISH, keys, header, *payloads)
        if outcome != b"ok":
            raise OwnershipLost(turn.turn_id)
        for notes in weighed:
            self._ledger.recharge(keys.owner, notes)
        await self.confirm(keys, term=term)

    async def remove(
        self, keys: Keys, turn: TurnRecord, event: Removed, *, before: MessageRecord | None = None
    ) -> bool:
        """Remove an ended exchange from the history; False if it was removed before. Raises Conflict, StaleFacts.

        `before`: the reply before the turn continued it, which is restored.
        """
        left = encode_message(before) if before else b""
        match await self._write(REMOVE, keys, self._removal(turn, event), encode(event), left):
            case b"ok":
                return True
            case [b"ok", weighed]:
                self._ledger.recharge(keys.owner, weighed)
                return True
            case b"gone":
                return False
            case b"followed":
                raise Conflict(
                    "The conversation went on from this exchange; only the last one can be taken back."
                )
            case _:
                raise StaleFacts(turn.turn_id)

    async def withdraw(self, keys: Keys, turn: TurnRecord, event: Removed) -> None:
        """Undo a `begin` whose sender was told that it failed; does nothing if it did fail, or was undone before."""
        await self._write(WITHDRAW, keys, self._removal(turn, event), encode(event))

    def _removal(self, turn: TurnRecord, event: Removed) -> dict[str, object]:
        return {
            "turn_id": turn.turn_id,
            "client_msg_id": turn.client_msg_id,
            "message_id": turn.message_id,
            "reply_id": turn.reply_id,
            "goes_on": turn.continues is not None,
            "seq": event.seq,
            "ttl": self._ttl_ms,
            "replica": self._replica,
        }

    async def is_removed(self, keys: Keys, turn_id: str) -> bool:
        """Return whether an ended turn was rolled back."""
        with store_errors():
            return bool(
                await cast("Awaitable[int]", self._client.hexists(keys.conversation, f"removed:{turn_id}"))
            )

    async def _write(self, script: Script, keys: Keys, header: dict[str, object], *payloads: bytes) -> Any:
        return await run_script(self._client, script, keys.pair(), [msgspec.json.encode(header), *payloads])

    async def journal(self, keys: Keys, *, after_seq: int) -> list[Journalled]:
        """Return the events after `after_seq`, oldest first."""
        with store_errors():
            rows = cast("list[Any]", await self._client.xrange(keys.journal, min=f"({after_seq}-0"))
        return [decode_journalled(fields[b"event"]) for _, fields in rows]

    async def since(self, keys: Keys, after_seq: int, *, most_bytes: int | None = None) -> Since | None:
        """Return the events after `after_seq`, with the facts of that moment; None if there is no conversation.

        `most_bytes`: the store reads at most about so much of the journal; if there is more, it returns no events.
        """
        arguments: list[str | bytes | int] = [
            after_seq,
            OLDER_BYTES,
            "" if most_bytes is None else most_bytes,
        ]
        answer = await run_script(self._client, SINCE, keys.pair(), arguments)
        if answer is None:
            return None
        epoch, seq, running, record, first, ended_seq, whole_from, events, rows, is_too_long, *rest = answer
        awaited, base = rest
        older = list(zip(*[iter(rows)] * 6, strict=True))
        replay = rebuilt(
            Journal(
                conversation_id=keys.conversation_id,
                epoch=epoch.decode(),
                after=after_seq,
                first=first,
                ended_seq=ended_seq,
                whole_from=whole_from,
                events=[decode_journalled(event) for event in events],
                turns=[older_turn(keys, row) for row in older if row[1] != b"removed"],
                removed=[is_removal(keys, row) for row in older if row[1] == b"removed"],
            )
        )
        live = turn_from(keys, running.decode(), record) if record else None
        return Since(
            epoch.decode(),
            seq,
            live,
            replay.first,
            replay.events,
            bool(is_too_long),
            calls_from(awaited),
            message_from(base, ()),
        )

    async def start(
        self, keys: Keys, turn_id: str, *, system: str | None = None, context_from: str = ""
    ) -> bool:
        """Start a turn of the queue; False if it is not the next.

        `system`: the conversation's new system prompt; None keeps it.
        """
        named = [] if system is None else [system, context_from]
        answer = await run_script(self._client, START, [keys.conversation], [turn_id, self._replica, *named])
        return bool(answer == b"ok")

    async def epoch(self, keys: Keys) -> str:
        """Return the epoch of a conversation; empty if it does not exist."""
        meta = await self.load(keys)
        return "" if meta is None else meta.epoch

    async def renew(self, keys: Keys, epoch: str) -> None:
        """Begin a new epoch, since the store lost published events of this one; nothing if a new one has begun."""
        await run_script(self._client, RENEW, [keys.conversation], [epoch, secrets.token_hex(8)])

    async def delete(self, keys: Keys, *, with_turns: bool = True) -> str | None:
        """Remove a whole conversation, and tell other replicas; return its epoch, None if there was none.

        Without `with_turns` it raises Moved if a turn runs or waits.
        """
        answer = await run_script(
            self._client, DELETE, keys.pair(), [self._replica, "1" if with_turns else "0"]
        )
        if answer == b"":
            raise StaleFacts(keys.conversation)
        if answer is None:
            return None
        epoch, *charged = answer
        await self._ledger.deleted(keys.owner, charged)
        return epoch.decode() or None
