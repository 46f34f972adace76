"""Messages that wait behind a running reply (`on_busy: enqueue`): accepted at once, run one after the other.

While a turn runs, all seqs come from this replica's memory, and only that turn's journal writes to the store. So that journal
writes changes of the queue, too, as events with their side effects. A message is accepted once that write is confirmed and
durable enough. The running reply waits meanwhile, since its next seqs come after it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from time import monotonic

import msgspec

from engine.messages import Request
from sessions.commands.branches import ResolvedPlacement, resolve_placement
from sessions.conversation.conversation import Conversation, accepted_event, with_content
from sessions.errors import BadParams, NotFound, OwnershipLost, QueueFull, Refused, StoreDown, StoreFault
from sessions.events import Done, Failure, Journalled, Reason, Removed
from sessions.observer import Observer
from sessions.records import MessageRecord, Meta
from sessions.running import runner
from sessions.running.runner import publish_end, reply_of
from sessions.store.codec import encode_message, encode_turn, now_ms
from sessions.store.history import LATE, Duplicate, Ending, queue_exit, withdrawal
from sessions.store.journal import TurnJournal
from sessions.store.storage import Storage
from sessions.store_errors import until_answered
from sessions.turn.message_request import Append, Continue, GenerationConfig, stored_message
from sessions.turn.prompt import HistoryPromptBuilder, Prompt
from sessions.turn.turn import Turn, first_of
from sessions.turn.turn_state import EngineCount

_NO_QUEUE = "`on_busy` can't be enqueue for a translation: wait for the running reply, or interrupt it."


class TurnQueue:
    """Queues messages behind running turns, at most `at_most` in a conversation.

    `storage.unsettled` takes turns that were refused although the store may have them.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        prompts: HistoryPromptBuilder,
        observer: Observer,
        at_most: int,
    ) -> None:
        self._history = storage.history
        self._images = storage.images
        self._unsettled = storage.unsettled
        self._prompts = prompts
        self._storage = storage
        self._observer = observer
        self._at_most = at_most

    async def accept(self, conversation: Conversation, live: Turn, generation: GenerationConfig) -> bool:
        """Accept a message behind the running turn, or behind the next one if that is about to end; False if none runs.

        Raises Refused, Duplicate.
        """
        await _accepted_before(conversation, live)
        while await _has_head(conversation):
            if await self._accept(conversation, live, generation):
                return True
        return False

    async def _accept(self, conversation: Conversation, live: Turn, generation: GenerationConfig) -> bool:
        if len(_queued(conversation)) >= self._at_most:
            raise QueueFull(f"{self._at_most} messages wait in this conversation already.")
        if (known := await self._history.turn_of(conversation.keys, live.send.client_msg_id)) is not None:
            raise Duplicate(known)
        placement = await self._resolve_placement(conversation, live)
        if placement.source is not None:
            raise BadParams(_NO_QUEUE, field="on_busy")
        message = placement.answered or await stored_message(
            self._images, conversation.owner, conversation.keys, live.record, live.send
        )
        kept = await self._history.load(conversation.keys) or Meta.new("")
        requested = self._prompts.requested(generation, placement.model, kept.model)
        live.record = msgspec.structs.replace(live.record, model=requested)
        messages = placement.prompt_tail(message)
        await self._prompts.check(conversation.keys, live, messages, generation, Meta.new(""))
        await self._storage.register_turn(
            conversation.owner,
            conversation.conversation_id,
            live.record.turn_id,
            subject=live.send.subject(conversation.owner),
            size=live.send.stored_size(generation),
        )
        head = conversation.live
        try:
            named = self._prompts.choice.named(generation.model)
            if await self._write(conversation, live, placement, message, named):
                return True
        except OwnershipLost:  # this message was not written; the running turn will notice it, too
            if head is not None:
                head.tool_round.lose()
                await head.released.wait()
        await self._storage.ownership.discard(live.record.turn_id)
        return False

    async def _resolve_placement(self, conversation: Conversation, live: Turn) -> ResolvedPlacement:
        """Return a message's place; without a parent if it follows the reply before it, which is not known yet."""
        if live.send.place == Append():
            return ResolvedPlacement(parent_id=None)
        if live.send.place in [Continue(one.record.reply_id) for one in _accepted(conversation)]:
            raise NotFound("This reply is still being written; it can be continued once it has ended.")
        return await resolve_placement(self._history, conversation.keys, live.send.place, Meta.new(""))

    async def _write(
        self,
        conversation: Conversation,
        live: Turn,
        placement: ResolvedPlacement,
        message: MessageRecord,
        named: str,
    ) -> bool:
        async with conversation.order_lock:
            journal = _head(conversation)
            if journal is None:
                return False
            if not await journal.catch_up():
                raise StoreDown(LATE)
            if _head(conversation) is not journal:
                return False
            live.refuse_revoked()
            position = len(_queued(conversation)) + 1
            if placement.continued is not None:
                live.continue_from(placement.continued)
            live.record = msgspec.structs.replace(
                live.record,
                message_id=message.message_id,
                parent_id=conversation.known.newest_reply
                if live.send.place == Append()
                else placement.parent_id,
                accepted_seq=conversation.next_seq(),
            )
            message = msgspec.structs.replace(message, parent_id=live.record.parent_id)
            epoch = conversation.published.epoch
            event = accepted_event(conversation, live.record, live.send, epoch)
            if message.role == "user":
                event = with_content(event, message)
            event = msgspec.structs.replace(event, queue_position=position)
            patch = _entry(conversation, live, None if placement.answered else message, named)
            try:
                await self._keep(conversation, journal, event, patch)
            except StoreFault:
                raise
            except StoreDown:
                await self._take_back(conversation, live, journal)
                raise
            live.turn.accept(now=monotonic())
            conversation.publish_accepted(live, event)
            return True

    async def _keep(
        self, conversation: Conversation, journal: TurnJournal, event: Journalled, patch: bytes
    ) -> None:
        """Wait until an event is in the store and durable enough. Raises StoreDown, OwnershipLost."""
        term = self._history.term
        if not await journal.write(event, patch):
            if conversation.live is not None:  # a turn that waits for calls has nothing else to write
                conversation.live.tool_round.news.set()
            raise StoreDown(LATE)
        await self._history.confirm_in_time(conversation.keys, term=term)

    async def _take_back(self, conversation: Conversation, live: Turn, journal: TurnJournal) -> None:
        """Undo an unpublished message, after its own writes, so that it may be sent again under the same id."""
        self._unsettled.add(live.record.turn_id)
        seq = live.record.accepted_seq
        removed = Removed(
            conversation_id=conversation.conversation_id,
            turn_id=live.record.turn_id,
            seq=conversation.next_seq(),
        )
        with suppress(OwnershipLost):  # the new owner of the conversation ends what waits there
            await journal.write(removed, withdrawal(live.record, "queue", _ids(conversation)))
        conversation.publish_removed(msgspec.structs.replace(removed, first_seq=seq))

    async def next(
        self, conversation: Conversation, live: Turn, generation: GenerationConfig
    ) -> Request | None:
        """Return what is to run once all earlier turns have ended; None if it was cancelled. Raises OwnershipLost."""
        if not await self._begin(conversation, live):
            return None
        try:
            return await self._started(conversation, live, generation)
        except StoreFault as fault:  # its `done` says so
            live.failure = Failure.of(fault)
        return self._prompts.request(conversation.keys, live, None, generation, Meta.new(""))

    async def _started(self, conversation: Conversation, live: Turn, generation: GenerationConfig) -> Request:
        meta = await until_answered(partial(self._history.load, conversation.keys)) or Meta.new()
        conversation.known.seq = meta.seq
        prompt = await self._prompt(conversation, live, generation, meta)
        turn_id = live.record.turn_id
        start = partial(
            self._history.start,
            conversation.keys,
            turn_id,
            system=self._prompts.system(meta, generation).named,
            context_from=prompt.context_from if prompt else meta.context_from or live.record.message_id,
        )
        if not await until_answered(start):
            raise OwnershipLost(turn_id)
        return self._prompts.request(conversation.keys, live, prompt, generation, meta)

    async def _prompt(
        self, conversation: Conversation, live: Turn, generation: GenerationConfig, meta: Meta
    ) -> Prompt | None:
        try:
            message = await self._history.message(conversation.keys, live.record.leaf)
            if message is not None and not live.turn.is_over:
                return await self._prompts.prompt(conversation.keys, live, message, generation, meta)
        except Refused as refused:  # too late to refuse it: its `done` says why
            live.failure = Failure.of(refused)
        return None

    async def _begin(self, conversation: Conversation, live: Turn) -> bool:
        """Wait for all turns before it; False if it was cancelled meanwhile, and has ended. Raises OwnershipLost."""
        while (before := conversation.before(live)) is not None:
            await first_of(before.released, live.engine.stopping)
            if live.turn.is_over and conversation.before(live) is not None:
                if await self._end(conversation, live):
                    return False
                await before.released.wait()
        return True

    async def _end(self, conversation: Conversation, live: Turn) -> bool:
        """End a turn that never ran; False if the running one is about to end: then this one ends after it."""
        async with conversation.order_lock:
            head = conversation.live
            if head is None or head.journal is None or head.end is not None:
                return False
            journal = head.journal
            live.turn.count = EngineCount(generated_tokens=0, steps_after=0)
            done = live.turn.end(Reason.CANCELLED, seq=conversation.next_seq(), now=monotonic())
            done = live.record.signed(done)
            conversation.turns.remove(live)
            if done.removed and conversation.known.newest_reply == live.record.reply_id:
                conversation.known.newest_reply = _accepted(conversation)[-1].record.reply_id
            saved = await self._is_kept(conversation, journal, done, _exit(conversation, live, done))
            publish_end(
                self._observer,
                conversation,
                live,
                done if saved else msgspec.structs.replace(done, saved=False),
            )
        live.record = msgspec.structs.replace(live.record, done=done)
        conversation.release(live)
        await self._storage.ownership.discard(live.record.turn_id)
        return True

    async def _is_kept(
        self, conversation: Conversation, journal: TurnJournal, done: Done, patch: bytes
    ) -> bool:
        try:
            await self._keep(conversation, journal, done, patch)
        except StoreFault:
            raise
        except StoreDown:
            return False
        return True


def _head(conversation: Conversation) -> TurnJournal | None:
    """Return the running turn's journal, unless that turn is about to end."""
    live = conversation.live
    return None if live is None or live.turn.is_over else live.journal


def _queued(conversation: Conversation) -> list[Turn]:
    return [live for live in _accepted(conversation)[1:] if live.tool_round.awaited is None]


def _accepted(conversation: Conversation) -> list[Turn]:
    """The turn that runs or waits for calls, and the turns queued behind it."""
    return [live for live in conversation.turns if live.is_in_history]


async def _has_head(conversation: Conversation) -> bool:
    """Wait until a turn runs that is not about to end; False if there is none."""
    while (head := conversation.live) is not None:
        if head.turn.is_over:
            await runner.ended(head)
        elif head.journal is None:
            await first_of(head.ready, head.engine.stopping, head.released)
        else:
            return True
    return False


async def _accepted_before(conversation: Conversation, live: Turn) -> None:
    """Wait until the fate of all earlier messages is known: seqs follow their order."""
    for before in conversation.turns[: conversation.turns.index(live)]:
        await asyncio.shield(before.accepted)


def _ids(conversation: Conversation) -> str:
    return " ".join(live.record.turn_id for live in _queued(conversation))


def _entry(conversation: Conversation, live: Turn, message: MessageRecord | None, named: str) -> bytes:
    """Return what else a queued message changes in the store. `message`: None if stored before. `named`: its model."""
    record = live.record
    fields = {
        f"sent:{record.client_msg_id}": record.turn_id,
        f"turn:{record.turn_id}": encode_turn(record).decode(),
        "leaf": record.leaf,
        "queue": f"{_ids(conversation)} {record.turn_id}".strip(),
        "updated_at": str(now_ms()),
    } | ({"model": named} if named else {})
    children = [[record.message_id, record.reply_id]] if record.continues is None else []
    if message is not None:
        fields[f"message:{record.message_id}"] = encode_message(message).decode()
        children.insert(0, [record.parent_id or "", record.message_id])
    return msgspec.json.encode(
        {
            "begun": record.turn_id,
            "set": _flat(fields),
            "children": children,
            "messages": 0 if message is None else 1,
        }
    )


def _exit(conversation: Conversation, live: Turn, done: Done) -> bytes:
    """Return what else the store changes when a turn ends in the queue."""
    record = msgspec.structs.replace(live.record, done=done)
    ending = Ending(reply=reply_of(live, done), turn=record, stays=record.continues is not None)
    return queue_exit(ending, _ids(conversation))


def _flat(fields: dict[str, str]) -> list[str]:
    return [part for pair in fields.items() for part in pair]
