"""The journal: all turns' writes in one call, one turn's events, and the replay to a reader that reconnects.

The journal keeps all that was written. A reader gets the events since a seq, merged, or rebuilt from the stored turn, without
what a cancel cut from a reply: the next event covers its seqs. The text of a rebuilt turn is one delta, right before its `done`;
its reasoning is one piece before the delta. Calls are unchanged, with their last states only. Each event covers the seqs of the
events that it replaces.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, cast

import msgspec
import redis.exceptions as errors
from redis.asyncio import Redis, RedisCluster

from sessions.errors import OwnershipLost, StoreDown, StoreFault
from sessions.events import (
    Accepted,
    Delta,
    Done,
    Journalled,
    KeptLength,
    Reasoning,
    Removed,
    SourceText,
    Text,
    ToolCall,
    ToolState,
    attachments_of,
    covering,
    encode,
    first_seq_of,
    kept_length,
    merge_text,
)
from sessions.limits.shares import Subject
from sessions.records import CallRecord, ContinuedReply, MessageRecord, TurnRecord, digest
from sessions.store.client import APPEND, load_scripts, queue_script, run_script
from sessions.store.ledger import EVENT_BYTES, Ledger
from sessions.store_errors import store_error_of, store_errors

AT_ONCE = 32
"""Turns that one call writes. Meanwhile the store serves nobody else, for less than a millisecond."""
PATIENCE_S = 0.25
COUNTED_BYTES = 64 * 1024
"""Bytes of a turn's events that are reported to the ledger at once."""
FAULTS = 3
"""Consecutive writes that a reachable store may refuse before the turn is ended."""
RESUME_WINDOW_S = 300.0
"""How long the journal is kept after a conversation's last end: so long a reader who left in between can resume to the character.

It has to cover a tunnel, a lift, a phone in a pocket, a restart of the service: minutes. For that long a delta takes as much room
as forty characters. A later reader still gets every whole reply, and a gap in the one that was partly seen.
"""
REPLAY_BYTES = 256 * 1024
"""Bytes that a reader may be sent at once: half of what may wait for a connection."""
READ_BYTES = 2 * REPLAY_BYTES
"""Stored bytes of the journal that are read for a returning reader, approximately: one that missed more gets a gap."""
_FRAME_BYTES = 512


class TurnJournal:
    """Writes the events of one turn, and keeps those that are not known to be stored. At most one write is under way.

    Events that the store did not take in time stay here and are written with the next ones, or by `catch_up`.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        keys: tuple[str, str],
        turn_id: str,
        ledger: Ledger,
        subject: Subject,
    ) -> None:
        """`ledger` counts the bytes of the turn's events for `subject`, `COUNTED_BYTES` at a time."""
        self._journal = journal
        self._keys = keys
        self._turn_id = turn_id
        self._unwritten: list[Entry] = []
        self._writing: asyncio.Future[bool] | None = None
        self._waiters: set[asyncio.Future[None]] = set()
        self._sent = 0
        self._late = False
        self._dropped = False
        self._faults = 0
        self._ledger = ledger
        self._subject = subject
        self._uncounted = 0
        self.watched = False
        """Whether other replicas watched the conversation at the last write."""

    def lacks(self, seq: int) -> bool:
        """Return whether an event up to `seq` is not known to be stored."""
        return any(entry.seq <= seq for entry in self._unwritten)

    async def write(self, event: Journalled, patch: bytes = b"") -> bool:
        """Write an event; return whether all is stored. Waits for the store, `PATIENCE_S` at most.

        `patch`: what else the event changes in the conversation. Raises OwnershipLost, and StoreFault if the store keeps refusing
        the journal.
        """
        if self._dropped:
            raise OwnershipLost(self._turn_id)
        entry = Entry(event.seq, encode(event), patch)
        self._unwritten.append(entry)
        self._count(len(entry.event) + EVENT_BYTES)
        self._refuse_faults(self._collect())
        while self._unwritten and not self._late:
            self._begin()
            await self._settled(PATIENCE_S)
            self._refuse_faults(self._collect())
            self._late = self._late or self._writing is not None
        if self._dropped:  # dropped during the write, as a queued turn that is given up
            raise OwnershipLost(self._turn_id)
        if self._unwritten:
            self._begin()
        return not self._unwritten

    async def catch_up(self) -> bool:
        """Retry what the store did not take in time; return whether all is stored. Waits and raises as `write` does."""
        self._refuse_faults(self._collect())
        if self._unwritten and not self._dropped:
            self._begin()
            await self._settled(PATIENCE_S)
            self._refuse_faults(self._collect())
        if self._dropped:
            raise OwnershipLost(self._turn_id)
        return not self._unwritten

    async def write_rest(self) -> None:
        """Wait until all is stored. Raises StoreDown, OwnershipLost."""
        while self._unwritten:
            self._begin()
            await self._settled(None)
            if (trouble := self._collect()) is not None:
                raise trouble

    def _count(self, size: int) -> None:
        self._uncounted += size
        if self._uncounted >= COUNTED_BYTES:
            self._charge()

    def _charge(self) -> None:
        if self._uncounted:
            self._ledger.journalled(self._subject, self._uncounted)
            self._uncounted = 0

    def drop(self) -> None:
        """Stop writing; a write under way is ignored."""
        self._charge()
        self._dropped = True
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
            self._wake()
        self._unwritten.clear()

    def _begin(self) -> None:
        if self._writing is None:
            self._sent = len(self._unwritten)
            self._writing = self._journal.put_nowait(
                self._keys, self._turn_id, list(self._unwritten), on_written=self._wake
            )

    async def _settled(self, within_s: float | None) -> None:
        """Wait for the write that is under way, if there is one; a timeout does not cancel it."""
        if self._writing is not None and not self._writing.done():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                async with asyncio.timeout(within_s):
                    await waiter
            except TimeoutError:
                return
            finally:
                self._waiters.discard(waiter)

    def _wake(self) -> None:
        """Wake all waiters. There may be several: the turn's tools write while its text grows."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _refuse_faults(self, trouble: StoreDown | None) -> None:
        if isinstance(trouble, StoreFault) and self._faults >= FAULTS:
            raise trouble

    def _collect(self) -> StoreDown | None:
        """Drop the stored entries; return the failure of a write. Raises OwnershipLost."""
        if self._writing is None or not self._writing.done():
            return None
        writing, self._writing = self._writing, None
        try:
            self.watched = writing.result()
        except StoreDown as trouble:
            self._late = True
            self._faults = self._faults + 1 if isinstance(trouble, StoreFault) else 0
            return trouble
        except OwnershipLost:
            self._dropped = True
            raise
        self._late = False
        self._faults = 0
        del self._unwritten[: self._sent]
        return None


class Entry(msgspec.Struct, frozen=True):
    """An encoded event. `patch`: what else it changes in the conversation (see `append.lua`)."""

    seq: int
    event: bytes
    patch: bytes = b""


class Journal:
    """Appends the events of all turns in one call. `run` must be running."""

    def __init__(self, client: Redis, *, replica: str) -> None:
        self._client = client
        self._replica = replica
        self._waiting: list[_Write] = []
        self._wake = asyncio.Event()
        # in a cluster a script sees one conversation's keys only; elsewhere one call is cheaper than many
        self._at_once = 1 if isinstance(cast("object", client), RedisCluster) else AT_ONCE
        self.pipelines = 0
        self.bytes = 0

    def put_nowait(
        self,
        keys: tuple[str, str],
        turn_id: str,
        entries: Sequence[Entry],
        *,
        on_written: Callable[[], None] = lambda: None,
    ) -> asyncio.Future[bool]:
        """Append with the next call. The returned future is done when the store has the entries.

        Its result is whether other replicas watch the conversation. It fails with StoreDown, or with OwnershipLost if the caller
        no longer owns the turn. Appending again is harmless, and so is cancelling the future. `on_written` is called as soon as
        the future is done: a done callback would run an event-loop iteration later.
        """
        self.bytes += sum(len(entry.event) for entry in entries)
        write = _Write(keys, turn_id, entries, asyncio.get_running_loop().create_future(), on_written)
        self._waiting.append(write)
        self._wake.set()
        return write.written

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            writes, self._waiting = self._waiting, []
            try:
                answers = await self._execute(writes)
            except StoreDown as trouble:
                answers = [trouble] * len(writes)
            for write, answer in zip(writes, answers, strict=True):
                if not write.written.done():  # not cancelled: its turn still waits
                    self._resolve(write, answer)
                    write.on_written()

    async def _execute(self, writes: Sequence[_Write]) -> list[Any]:
        self.pipelines += 1
        calls = [writes[start : start + self._at_once] for start in range(0, len(writes), self._at_once)]
        if len(calls) == 1 and self._at_once > 1:  # a cluster's pipeline takes none of the client's slots
            return self._answers(calls, [await run_script(self._client, APPEND, *self._command(writes))])
        with store_errors():
            answers = await self._pipeline(calls)
            if any(isinstance(answer, errors.NoScriptError) for answer in answers):
                await load_scripts(self._client)
                answers = await self._pipeline(calls)
        return self._answers(calls, answers)

    async def _pipeline(self, calls: Sequence[Sequence[_Write]]) -> list[Any]:
        pipe = self._client.pipeline(transaction=False)
        for call in calls:
            queue_script(pipe, APPEND, *self._command(call))
        return await pipe.execute(raise_on_error=False)

    def _command(self, writes: Sequence[_Write]) -> tuple[list[str], list[str | bytes | int]]:
        """Return the keys and the arguments of one call."""
        keys = [key for write in writes for key in write.keys]
        return keys, [self._replica, *(part for write in writes for part in _parts(write))]

    @staticmethod
    def _answers(calls: Sequence[Sequence[_Write]], answers: Sequence[Any]) -> list[Any]:
        """Return the answer to each write."""
        return [
            one
            for call, answer in zip(calls, answers, strict=True)
            for one in (answer if isinstance(answer, list) else [answer] * len(call))
        ]

    @staticmethod
    def _resolve(write: _Write, answer: Any) -> None:
        match answer:
            case b"ok":
                write.written.set_result(False)
            case bytes() if answer.startswith(b"ok "):
                write.written.set_result(True)
            case b"lost" | b"behind":
                write.written.set_exception(OwnershipLost(write.turn_id))
            case StoreDown():
                write.written.set_exception(answer)
            case BaseException():
                write.written.set_exception(store_error_of(answer))
            case _:
                write.written.set_exception(store_error_of(ValueError(f"an answer of {len(answer)} bytes")))


class _Write(msgspec.Struct):
    keys: tuple[str, str]
    turn_id: str
    entries: Sequence[Entry]
    written: asyncio.Future[bool]
    on_written: Callable[[], None]


def _parts(write: _Write) -> list[str | bytes | int]:
    parts: list[str | bytes | int] = [write.turn_id, len(write.entries)]
    for entry in write.entries:
        parts += (entry.seq, entry.event, entry.patch)
    return parts


class JournalSlice(msgspec.Struct, frozen=True, kw_only=True):
    """What the store has, at one moment, of a conversation's events after `after`.

    `events`: those in the journal, which begins at seq `first`. `ended_seq`: the seq of the newest end in `turns`; `whole_from`:
    all ends from that seq on are in `turns`.
    """

    conversation_id: str
    epoch: str
    after: int
    first: int
    ended_seq: int
    whole_from: int
    events: list[Journalled]
    turns: list[OlderTurn]
    removed: list[Removed]


class OlderTurn(msgspec.Struct, frozen=True):
    """A turn some of whose events the journal lacks. `message` and `reply`: None if they were removed from the history."""

    record: TurnRecord
    message: MessageRecord | None
    reply: MessageRecord | None


def rebuilt(journal: JournalSlice) -> tuple[int, list[Journalled]]:
    """Return the seq from which events are complete, and all events after `after`, as far as they are kept."""
    if not journal.turns and not journal.removed:
        return journal.whole_from, journal.events
    gone = {event.turn_id for event in (*journal.removed, *journal.events) if isinstance(event, Removed)}
    turns = [_as_it_ended(turn, is_gone=turn.record.turn_id in gone) for turn in journal.turns]
    merged = {turn.record.turn_id: texts for turn in turns if (texts := _merged(turn, journal))}
    events: list[Journalled] = [
        event for event in journal.events if not (isinstance(event, Text) and event.turn_id in merged)
    ]
    events += [event for event in journal.removed if event.seq < journal.first]
    for turn in turns:
        events += _bare(turn, journal)
    taken = {event.seq for event in events}
    texts = [text for several in merged.values() for text in _with_seqs(several, taken)]
    by_seq = {event.seq: event for event in (*events, *texts)}
    events = [by_seq[seq] for seq in sorted(by_seq)]
    missed = [event for event in events if event.seq > journal.after]
    return _first(journal, texts), covered(missed, journal.after)


def _as_it_ended(turn: OlderTurn, *, is_gone: bool) -> OlderTurn:
    """Return a turn with only its own part of the reply, which several turns may have written; rolled back, it has none."""
    done, reply, base = turn.record.done, turn.reply, turn.record.continues
    if done is None or reply is None:
        return turn
    if base is not None and is_gone:
        done = _without_its_own(done, base, reply)
    begins, thought = (0, 0) if base is None else (base.chars, base.reasoning)
    own = msgspec.structs.replace(
        reply,
        content=reply.content[begins : done.chars],
        reasoning=reply.reasoning[thought : done.reasoning_chars],
        calls=reply.calls if reply.turn_id == turn.record.turn_id else (),
    )
    return OlderTurn(msgspec.structs.replace(turn.record, done=done), turn.message, own)


def rebuilt_turn(record: TurnRecord, reply: MessageRecord | None) -> list[Journalled]:
    """Return all events of an ended turn but `accepted`; only its end if its reply was removed."""
    done = record.done
    if done is None or reply is None:
        return [] if done is None else [done]
    journal = JournalSlice(
        conversation_id=done.conversation_id,
        epoch="",
        after=record.accepted_seq,
        first=done.seq + 1,
        ended_seq=done.seq,
        whole_from=record.accepted_seq,
        events=[],
        turns=[OlderTurn(record, None, reply)],
        removed=[],
    )
    return rebuilt(journal)[1]


def _first(journal: JournalSlice, texts: Sequence[Text]) -> int:
    for text in texts:
        if text.first_seq <= journal.after < text.seq:  # the reader has a part of it
            return text.seq + 1
    if journal.first <= journal.after + 1:
        return journal.first
    lost = set(range(max(journal.after, journal.ended_seq) + 1, journal.first))
    if lost - {turn.record.accepted_seq for turn in journal.turns}:  # they belong to a turn that runs
        return journal.first
    return journal.whole_from


def _merged(turn: OlderTurn, journal: JournalSlice) -> list[Text]:
    """Return the text and the reasoning of an ended turn, in this order, if the journal lacks a part of them."""
    record, done, reply, base = turn.record, turn.record.done, turn.reply, turn.record.continues
    first_seq = min(record.text_seq or record.accepted_seq + 1, record.reasoning_seq or journal.first)
    if done is None or reply is None or first_seq >= journal.first:
        return []
    tokens = done.usage.reasoning_tokens
    texts: list[Text] = []
    if reply.content:
        texts.append(
            Delta(
                conversation_id=journal.conversation_id,
                turn_id=record.turn_id,
                seq=done.seq - 1,
                first_seq=record.text_seq or record.accepted_seq + 1,
                off=base.chars if base else 0,
                text=reply.content,
                tokens=done.usage.sent_tokens - tokens,
                src_off=None if record.source is None or turn.message is None else len(turn.message.content),
            )
        )
    if reply.reasoning:
        texts.append(
            Reasoning(
                conversation_id=journal.conversation_id,
                turn_id=record.turn_id,
                seq=done.seq - 1,
                first_seq=record.reasoning_seq or record.accepted_seq + 1,
                off=base.reasoning if base else 0,
                text=reply.reasoning,
                tokens=tokens,
            )
        )
    return texts


def _with_seqs(texts: Sequence[Text], taken: AbstractSet[int]) -> Iterator[Text]:
    """Yield the texts with final seqs, earlier where one is `taken`: a call or a queued message may precede the end."""
    seq = texts[0].seq
    for text in texts:
        while seq in taken:
            seq -= 1
        yield msgspec.structs.replace(text, seq=seq)
        seq = min(seq, text.first_seq) - 1 if texts[-1].first_seq < text.first_seq else seq - 1


def _bare(turn: OlderTurn, journal: JournalSlice) -> list[Journalled]:
    """Return a turn's beginning, end and calls, as far as the journal lacks them."""
    record, done = turn.record, turn.record.done
    events: list[Journalled] = []
    if record.accepted_seq < journal.first:
        events.append(_accepted(turn, journal))
    if done is not None and done.seq < journal.first:
        events.append(done if turn.reply is not None else _without_text(done))
    return [*events, *(event for event in _calls(turn, journal) if event.seq < journal.first)]


def _calls(turn: OlderTurn, journal: JournalSlice) -> Iterator[Journalled]:
    """Yield the calls of the turn's reply, and the outcomes of the calls that the turn follows."""
    record, conversation_id = turn.record, journal.conversation_id
    if record.done is not None:
        for call in turn.reply.calls if turn.reply is not None else ():
            yield call.call_event(conversation_id=conversation_id, turn_id=record.turn_id)
            if call.state_seq is not None and call.state_seq < record.done.seq:
                yield from _state(call, conversation_id, record.turn_id)
    if record.follows and turn.message is not None:
        for call in turn.message.calls:
            if call.state_seq is not None and call.state_seq < record.accepted_seq:
                yield from _state(call, conversation_id, record.follows)


def _state(call: CallRecord, conversation_id: str, turn_id: str) -> Iterator[Journalled]:
    if (moved := call.moved(conversation_id=conversation_id, turn_id=turn_id)) is not None:
        yield moved


def _accepted(turn: OlderTurn, journal: JournalSlice) -> Accepted:
    return msgspec.structs.replace(
        turn.record.accepted(journal.conversation_id, journal.epoch),
        content=_content(turn.message),
        attachments=attachments_of(turn.message.images if turn.message is not None else ()),
    )


def _content(message: MessageRecord | None) -> str | None:
    """Return the content for the turn's `accepted`: empty if the message was removed, None if the turn follows calls."""
    if message is None:
        return ""
    return message.content if message.role == "user" else None


def _without_its_own(done: Done, base: ContinuedReply, reply: MessageRecord) -> Done:
    """Return the end of a turn that continued a reply and was rolled back, without what it added."""
    text = digest(reply.content[: base.chars])
    return msgspec.structs.replace(
        done, chars=base.chars, text_sha256=text, reasoning_chars=base.reasoning, open=()
    )


def _without_text(done: Done) -> Done:
    """Return the end of a turn whose reply was removed later, without the reply."""
    return msgspec.structs.replace(done, chars=0, text_sha256=digest(""), reasoning_chars=0, open=())


def replayed(events: Sequence[Journalled], cuts: Mapping[str, KeptLength]) -> list[Journalled]:
    """Return the events in order, with each turn's text, reasoning and calls cut to what is kept of them.

    `cuts`: by turn, what is kept of those whose end is decided, but not among the events. What a cut takes out leaves no gap:
    `first_seq` of each event follows the seq of the one before.
    """
    kept = {**cuts, **{event.turn_id: kept_length(event) for event in events if isinstance(event, Done)}}
    result: list[Journalled] = []
    withdrawn: int | None = None
    for event in events:
        left: Journalled | None = event
        if isinstance(event, Delta | Reasoning | ToolCall) and event.turn_id in kept:
            left = kept[event.turn_id].of(event)
        if left is None:
            withdrawn = first_seq_of(event) if withdrawn is None else withdrawn
            continue
        result.append(left if withdrawn is None else covering(left, withdrawn))
        withdrawn = None
    return result


def covered(events: Sequence[Journalled], after: int) -> list[Journalled]:
    """Return the events, each covering all seqs since the event before it; the first one covers those since `after`."""
    result: list[Journalled] = []
    for event in events:
        result.append(_following(event, after + 1))
        after = event.seq
    return result


def _following(event: Journalled, first_seq: int) -> Journalled:
    """Return an event that covers the seqs from `first_seq` on."""
    if isinstance(event, Text):
        return msgspec.structs.replace(event, first_seq=first_seq)
    return covering(event, first_seq)


def merged(events: Sequence[Journalled]) -> list[Journalled]:
    """Return the events in order, with neighbouring pieces of a text merged."""
    result: list[Journalled] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, Text) and type(last) is type(event) and last.turn_id == event.turn_id:
            text, tokens = last.text + event.text, last.tokens + event.tokens
            result[-1] = merge_text(last, event, text=text, tokens=tokens)
        else:
            result.append(event)
    return result


def is_too_long(events: Sequence[Journalled]) -> bool:
    """Return whether this is more than a connection's outbox would hold."""
    return sum(map(_bytes, events)) > REPLAY_BYTES


def _bytes(event: Journalled) -> int:
    match event:
        case Delta() | Reasoning():
            return sys.getsizeof(event.text)
        case Accepted(content=str(content)) | ToolCall(args=str(content)) | SourceText(text=content):
            return _FRAME_BYTES + sys.getsizeof(content)
        case ToolState():
            return _FRAME_BYTES + sum(map(sys.getsizeof, (event.content, event.error, event.args)))
        case _:
            return _FRAME_BYTES
