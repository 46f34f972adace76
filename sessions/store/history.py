"""Conversations in the store: facts, messages along a branch, and the atomic writes that begin and end a turn.

One hash and one stream a conversation, under one hash tag (Redis Cluster keeps them together):
`ms:{owner/conversation}` and `ms:{owner/conversation}:journal`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any, cast

import msgspec
from redis.asyncio import Redis

from sessions.errors import Conflict, OwnershipLost, SessionError, StoreDown
from sessions.events import Accepted, Done, Journalled, Languages, Removed, decode_journalled, encode
from sessions.limits.shares import Subject
from sessions.records import CallRecord, MessageRecord, Meta, Owner, TurnRecord
from sessions.store.client import (
    ACCEPT,
    APPEND,
    BRANCH,
    DELETE,
    DESCRIBE,
    FINISH,
    GO_ON,
    NOTE,
    REMOVE,
    RENEW,
    SINCE,
    START,
    Durability,
    Script,
    WriteConfirmer,
    hash_fields,
    run_script,
)
from sessions.store.codec import (
    Keys,
    decode_call,
    decode_message,
    decode_turn,
    encode_call,
    encode_message,
    encode_turn,
    now_ms,
)
from sessions.store.journal import READ_BYTES, RESUME_WINDOW_S, JournalSlice, OlderTurn, rebuilt
from sessions.store.ledger import Ledger
from sessions.store_errors import store_error_of, store_errors

CONFIRMED_WITHIN_S = 1.5
"""How long a queued message, or a call's result, may take to become durable: its sender waits, and so may a running reply."""
LATE = "The store does not answer in time; send it again in a moment."
MAX_SIBLINGS = 200
"""Most siblings of a message that a page lists, so that it stays small."""
RESUME_WINDOW_MS = int(RESUME_WINDOW_S * 1000)
JOURNAL_KEPT = 10_000
"""Events that a conversation's journal keeps after a turn ends, approximately."""
NOTE_BYTES = 128
"""Bytes that a description takes in addition to its text, approximately."""
FACTS = (
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
    "model",
)
"""The fields of a conversation's hash that hold its facts."""


class StaleFacts(SessionError):
    """The conversation in the store is not as the caller knows it: load it again."""


class Duplicate(SessionError):
    """The `client_msg_id` has a turn already."""

    def __init__(self, turn: TurnRecord) -> None:
        super().__init__(turn.turn_id)
        self.turn = turn


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """All that is written when a turn is accepted. `message`: None if it is already in the history.

    `titled_by`: the languages that the title stands for, if any. `continues`: the message's parent must still be the active leaf.
    `model`: the one that the sender named, or empty. A turn that continues a reply has no message and adds no place to the tree.
    """

    message: MessageRecord | None
    turn: TurnRecord
    event: Accepted
    title: str
    titled_by: Languages | None = None
    system: str
    context_from: str
    continues: bool = False
    model: str = ""


class Follow(msgspec.Struct, frozen=True):
    """The turn that follows once calls are settled: its id, its reply's id, and the data to run it."""

    turn_id: str
    reply_id: str
    record: bytes


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """All that is written when a turn ends; `turn.done` is the event. `follow`: set if calls of its reply are open.

    `stays`: the reply that it continued stays as it was, since the turn added nothing.
    """

    reply: MessageRecord
    turn: TurnRecord
    follow: Follow | None = None
    stays: bool = False

    @property
    def done(self) -> Done:
        """The `done` event, which every ended turn has."""
        return cast("Done", self.turn.done)


class Siblings(msgspec.Struct, frozen=True):
    """A message and its siblings, oldest first.

    `shown_ids`: ids of the nearest ones, at most `MAX_SIBLINGS`; `count`: of all; `before`: how many precede the message.
    """

    shown_ids: list[str]
    count: int
    before: int


class Branch(msgspec.Struct, frozen=True):
    """Messages, oldest first, with their siblings. `older`: the message before them, if any.

    `pending`: unfinished replies among these messages, each with its siblings. `is_running`: whether a turn has not ended.
    """

    epoch: str
    seq: int
    messages: list[MessageRecord]
    siblings: list[Siblings]
    older: str | None
    pending: dict[str, Siblings] = {}
    is_running: bool = False


class Since(msgspec.Struct, frozen=True):
    """The journal after a seq, as the store has it at one moment. `first`: the seq of the oldest kept event.

    `running`: the turn that has not ended. `is_too_long`: the events exceed the caller's limit in bytes, and are left out.
    `awaited`: if no turn runs, all calls of the reply whose calls a turn waits for. `base`: the reply that `running` continues.
    """

    epoch: str
    seq: int
    running: TurnRecord | None
    first: int
    events: list[Journalled]
    is_too_long: bool = False
    awaited: tuple[CallRecord, ...] = ()
    base: MessageRecord | None = None


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
        return facts_from(await hash_fields(self._client, keys.conversation, *FACTS))

    async def look(self, keys: Keys, client_msg_id: str) -> tuple[TurnRecord | None, Meta | None]:
        """Return the turn that a `client_msg_id` began, if any, and the facts, in one round trip."""
        sent, *values = await hash_fields(self._client, keys.conversation, f"sent:{client_msg_id}", *FACTS)
        return await self.turn(keys, sent.decode()) if sent else None, facts_from(values)

    async def turn_of(self, keys: Keys, client_msg_id: str) -> TurnRecord | None:
        """Return the turn that a `client_msg_id` began, if any."""
        [turn_id] = await hash_fields(self._client, keys.conversation, f"sent:{client_msg_id}")
        return await self.turn(keys, turn_id.decode()) if turn_id else None

    async def turn(self, keys: Keys, turn_id: str) -> TurnRecord | None:
        """Return a turn by its id."""
        [record] = await hash_fields(self._client, keys.conversation, f"turn:{turn_id}")
        return turn_from(keys, turn_id, record) if record else None

    async def message(self, keys: Keys, message_id: str) -> MessageRecord | None:
        """Return a message by its id."""
        branch = await self.branch(keys, leaf=message_id, limit=1)
        return next((message for message in branch.messages if message.message_id == message_id), None)

    async def base(self, keys: Keys, record: TurnRecord) -> MessageRecord | None:
        """Return the reply that a turn continues, with text and reasoning as before the turn; None if it began a new reply."""
        if record.continues is None:
            return None
        reply = await self.message(keys, record.reply_id)
        return None if reply is None else record.continues.cut(reply)

    async def call(self, keys: Keys, call_id: str) -> CallRecord | None:
        """Return a call by its id, if its reply has ended."""
        [kept] = await hash_fields(self._client, keys.conversation, f"call:{call_id}")
        return decode_call(kept, call_id=call_id) if kept else None

    async def following(self, keys: Keys) -> bytes | None:
        """Return the turn that waits for calls, as last stored by `finish` or `continue_turn`; None if there is none."""
        return (await hash_fields(self._client, keys.conversation, "follow"))[0]

    async def continue_turn(self, keys: Keys, turn_id: str, *, next_id: str, following: bytes) -> bool | None:
        """Rename a waiting turn, which this replica takes over; None if `turn_id` does not wait for calls.

        Return whether other replicas watch the conversation.
        """
        named: list[str | bytes | int] = [turn_id, next_id, self._replica, following]
        watchers = await run_script(self._client, GO_ON, [keys.conversation], named)
        return None if watchers is None else self.others_in(watchers)

    async def parent(self, keys: Keys, message_id: str) -> str | None:
        """Return the parent of a message, even of an unfinished reply: empty at a root; None if there is no such message."""
        [parent] = await hash_fields(self._client, keys.conversation, f"parent:{message_id}")
        return None if parent is None else parent.decode()

    async def children(self, keys: Keys, message_id: str | None) -> int:
        """Return the number of children of a message. `message_id` None: of the root."""
        [names] = await hash_fields(self._client, keys.conversation, f"children:{message_id or ''}")
        return len(names.split()) if names else 0

    async def follower(self, keys: Keys, turn: TurnRecord) -> TurnRecord | None:
        """Return the accepted turn that follows the calls of `turn`; None if there is none so far."""
        fields = f"children:{turn.reply_id}", "running"
        names, running = await hash_fields(self._client, keys.conversation, *fields)
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
        """Return up to `limit` messages from `leaf` (default: the active one) towards the root, not beyond `last`.

        `most_bytes`: bytes of messages after which the store stops reading.
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

        `attached`: this replica watches from now on. Raises Duplicate; StaleFacts, also if a turn runs elsewhere.
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
        """Return whether other replicas are among the `watchers`."""
        return any(name != self._replica for name in watchers.decode().split())

    @property
    def term(self) -> int:
        """The current term: read it before a write, and pass it to `confirm`."""
        return self._confirmer.term

    async def confirm(self, keys: Keys, *, term: int) -> None:
        """Wait until writes to a conversation have the configured durability. `term`: as before the writes. Raises StoreDown."""
        await self._confirmer.confirm(keys.conversation, ttl_ms=self._ttl_ms, term=term)

    async def confirm_in_time(self, keys: Keys, *, term: int) -> None:
        """Like `confirm`, for `CONFIRMED_WITHIN_S` at most. Raises StoreDown."""
        try:
            async with asyncio.timeout(CONFIRMED_WITHIN_S):
                await self.confirm(keys, term=term)
        except TimeoutError:
            raise StoreDown(LATE) from None

    async def finish(self, keys: Keys, ending: Ending, *, repairs: bool = False, group: str = "") -> None:
        """Write the reply and `done`; repeating it is harmless. Raises OwnershipLost.

        `repairs`: the journal was unusable, and restarts with this `done`. `group`: the sender's key or address, if it is known.
        """
        turn, done, follow = ending.turn, ending.done, ending.follow
        header = {
            "turn_id": turn.turn_id,
            "seq": done.seq,
            "message_id": turn.message_id,
            "reply_id": turn.reply_id,
            "now": now_ms(),
            "ttl": self._ttl_ms,
            "window": RESUME_WINDOW_MS,
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

        `before`: the reply to restore, as it was before the turn continued it.
        """
        header: dict[str, object] = {
            "turn_id": turn.turn_id,
            "message_id": turn.message_id,
            "reply_id": turn.reply_id,
            "seq": event.seq,
            "ttl": self._ttl_ms,
            "window": RESUME_WINDOW_MS,
            "replica": self._replica,
        }
        left = encode_message(before) if before else b""
        match await self._write(REMOVE, keys, header, encode(event), left):
            case b"ok":
                return True
            case [b"ok", weighed]:
                self._ledger.recharge(keys.owner, weighed)
                return True
            case b"gone":
                return False
            case b"followed":
                raise Conflict(
                    "The conversation has continued after this exchange; only the last one can be removed."
                )
            case _:
                raise StaleFacts(turn.turn_id)

    async def withdraw(self, keys: Keys, turn: TurnRecord, event: Removed) -> None:
        """Undo a `begin` that was reported to the sender as failed; does nothing if it did fail, or was undone before."""
        patch = withdrawal(turn, "running", "", over=RESUME_WINDOW_MS)
        written: list[str | bytes | int] = [self._replica, turn.turn_id, 1, event.seq, encode(event), patch]
        [answer] = await run_script(self._client, APPEND, keys.pair(), written)
        if isinstance(answer, BaseException):
            raise store_error_of(answer)

    async def is_removed(self, keys: Keys, turn_id: str) -> bool:
        """Return whether an ended turn was rolled back."""
        [removed] = await hash_fields(self._client, keys.conversation, f"removed:{turn_id}")
        return removed is not None

    async def _write(self, script: Script, keys: Keys, header: dict[str, object], *payloads: bytes) -> Any:
        return await run_script(self._client, script, keys.pair(), [msgspec.json.encode(header), *payloads])

    async def journal(self, keys: Keys, *, after_seq: int) -> list[Journalled]:
        """Return the events after `after_seq`, oldest first."""
        with store_errors():
            rows = cast("list[Any]", await self._client.xrange(keys.journal, min=f"({after_seq}-0"))
        return [decode_journalled(fields[b"event"]) for _, fields in rows]

    async def since(self, keys: Keys, after_seq: int, *, most_bytes: int | None = None) -> Since | None:
        """Return the events after `after_seq`, with the facts of that moment; None if there is no conversation.

        `most_bytes`: the most bytes of events, approximately; if there are more, all events are left out.
        """
        arguments: list[str | bytes | int] = [
            after_seq,
            READ_BYTES,
            "" if most_bytes is None else most_bytes,
        ]
        answer = await run_script(self._client, SINCE, keys.pair(), arguments)
        if answer is None:
            return None
        epoch, seq, running, record, first, ended_seq, whole_from, events, rows, is_too_long, *rest = answer
        awaited, base = rest
        older = list(zip(*[iter(rows)] * 6, strict=True))
        complete_from, replay = rebuilt(
            JournalSlice(
                conversation_id=keys.conversation_id,
                epoch=epoch.decode(),
                after=after_seq,
                first=first,
                ended_seq=ended_seq,
                whole_from=whole_from,
                events=[decode_journalled(event) for event in events],
                turns=[
                    OlderTurn(
                        turn_from(keys, turn_id.decode(), kept),
                        message_from(message, message_calls),
                        message_from(reply, reply_calls),
                    )
                    for turn_id, kept, message, reply, message_calls, reply_calls in older
                    if kept != b"removed"
                ],
                removed=[
                    Removed(conversation_id=keys.conversation_id, turn_id=turn_id.decode(), seq=int(seq))
                    for turn_id, kept, seq, *_ in older
                    if kept == b"removed"
                ],
            )
        )
        live = turn_from(keys, running.decode(), record) if record else None
        return Since(
            epoch.decode(),
            seq,
            live,
            complete_from,
            replay,
            bool(is_too_long),
            calls_from(awaited),
            message_from(base, ()),
        )

    async def start(
        self, keys: Keys, turn_id: str, *, system: str | None = None, context_from: str = ""
    ) -> bool:
        """Start a queued turn; False if it is not the next one.

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
        """Begin a new epoch, since the store lost published events of `epoch`; does nothing if a new one has begun already."""
        await run_script(self._client, RENEW, [keys.conversation], [epoch, secrets.token_hex(8)])

    async def delete(self, keys: Keys, *, with_turns: bool = True) -> str | None:
        """Remove a whole conversation, and notify other replicas; return its epoch, None if there was no conversation.

        Without `with_turns` it raises StaleFacts if a turn runs or waits.
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


def withdrawal(turn: TurnRecord, *fields: str, over: int | None = None) -> bytes:
    """Return what the store changes with the removal of a turn that was refused after all (see `append.lua`).

    `fields`: of the conversation, each followed by its new value; `over`: milliseconds to keep the journal if no turn runs then.
    """
    patch: dict[str, object] = {
        "set": fields,
        "unset": [f"sent:{turn.client_msg_id}", f"turn:{turn.turn_id}"],
        "refused": [turn.turn_id, turn.message_id, turn.reply_id],
        "removed": turn.turn_id,
    }
    if over is not None:
        patch["over"] = over
    if turn.continues is None:
        patch["take_out"] = [turn.message_id, turn.reply_id]
    return msgspec.json.encode(patch)


def queue_exit(ending: Ending, queue: str) -> bytes:
    """Return what the store changes when a queued turn ends. `queue`: the turns that remain queued."""
    turn = ending.turn
    patch: dict[str, object] = {
        "set": ["queue", queue],
        "ended": [turn.turn_id, encode_turn(turn).decode()],
    }
    if ending.done.removed:
        patch["take_out"] = [turn.message_id, turn.reply_id]
    elif not ending.stays:
        patch["reply"] = [turn.message_id, turn.reply_id, encode_message(ending.reply).decode()]
    return msgspec.json.encode(patch)


class Notes:
    """Notes that endpoints store with turns: how each was requested.

    A note is deleted with its conversation. A conversation that began without a message has a description instead. Every method
    raises StoreDown.
    """

    def __init__(self, client: Redis, *, ttl_s: float, ledger: Ledger) -> None:
        self._client = client
        self._ledger = ledger
        self._ttl_ms = int(ttl_s * 1000)

    async def get(self, keys: Keys, turn_id: str) -> bytes | None:
        """Return the note of a turn; None if it has none."""
        return (await hash_fields(self._client, keys.conversation, _field(turn_id)))[0]

    async def keep(self, owner: Owner, conversation_id: str, turn_id: str, note: bytes) -> bool:
        """Keep a note; return False if the turn does not exist."""
        keys = Keys.of(owner, conversation_id)
        weighed = await run_script(self._client, NOTE, [keys.conversation], [turn_id, note, self._ttl_ms])
        if weighed is None:
            return False
        self._ledger.memory.grew(len(note))
        self._ledger.recharge(str(owner), weighed)
        return True

    async def description(self, keys: Keys) -> bytes | None:
        """Return the description of a conversation; None if it has none."""
        return (await hash_fields(self._client, keys.conversation, "description"))[0]

    async def describe(self, owner: Owner, conversation_id: str, text: bytes, *, group: str = "") -> None:
        """Create a conversation without messages, with a description; does nothing if there is one already.

        `group`: as in `Subject`. Raises StoreFull too.
        """
        keys = Keys.of(owner, conversation_id)
        await self._ledger.admit(Subject(str(owner), group), NOTE_BYTES + len(text), lifetime_s=0)
        epoch = secrets.token_hex(8)
        weighed = await run_script(
            self._client, DESCRIBE, [keys.conversation], [epoch, now_ms(), text, self._ttl_ms, group]
        )
        if weighed is not None:
            self._ledger.memory.grew(len(text))
            self._ledger.recharge(str(owner), weighed)

    async def forget(self, owner: Owner, conversation_id: str, turn_id: str) -> None:
        """Delete the note of a turn."""
        with store_errors():
            await self._client.hdel(Keys.of(owner, conversation_id).conversation, _field(turn_id))


def message_at(message_id: str, kept: bytes, parent: bytes, calls: Sequence[bytes]) -> MessageRecord:
    """Return a message of a branch with its current parent and its calls."""
    return decode_message(
        kept, message_id=message_id, parent_id=parent.decode() or None, calls=calls_from(calls)
    )


def calls_from(pairs_raw: Sequence[bytes]) -> tuple[CallRecord, ...]:
    """Return calls by id from a script's answer, without those whose records are gone."""
    pairs = zip(*[iter(pairs_raw)] * 2, strict=True)
    return tuple(decode_call(kept, call_id=call_id.decode()) for call_id, kept in pairs if kept)


def turn_from(keys: Keys, turn_id: str, kept: bytes) -> TurnRecord:
    """Return a turn from its record."""
    return decode_turn(kept, conversation_id=keys.conversation_id, turn_id=turn_id)


def message_from(kept: bytes, calls: Sequence[bytes]) -> MessageRecord | None:
    """Return a message without its parent; None if there is none."""
    return decode_message(kept, message_id="", parent_id=None, calls=calls_from(calls)) if kept else None


def facts_from(values: Sequence[bytes | None]) -> Meta | None:
    """Return the facts, given in the order of `FACTS`; None if there is no conversation."""
    if values[0] is None:
        return None
    epoch, seq, title, leaf, system, context_from, running, runner, queue, updated_at, messages, model = (
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
        model=model,
    )


def _field(turn_id: str) -> str:
    return f"note:{turn_id}"
