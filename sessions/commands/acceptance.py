"""Accepts a user's message: is it a duplicate, is the conversation busy, does it fit? Then one atomic write makes its turn.

A refusal leaves no trace. If the sender disconnects, nothing is lost: the work is completed.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

import msgspec

from engine.messages import Request
from engine.served_models import ServedModel
from sessions.commands.branches import ResolvedPlacement, resolve_placement
from sessions.commands.resumption import read_consistent
from sessions.commands.turn_queue import TurnQueue
from sessions.conversation.catch_up import catch_up_to
from sessions.conversation.conversation import Conversation, accepted_event, with_content
from sessions.errors import BadParams, Busy, Conflict, NotFound, StoreDown
from sessions.events import Cause, Journalled, Languages, Text
from sessions.generation import SourceReplies
from sessions.limits.slots import FairSlots
from sessions.observer import Observer
from sessions.records import MessageRecord, Meta, SourceState, TurnRecord
from sessions.replicas.forwarder import Forwarder, RunsElsewhere
from sessions.replicas.relay import Subscriptions
from sessions.replicas.rpc import RefusedElsewhere
from sessions.running import runner
from sessions.running.runner import reply_of
from sessions.store.history import Beginning, Duplicate, Since, StaleFacts
from sessions.store.journal import covered, merged, rebuilt_turn
from sessions.store.storage import Storage
from sessions.titles import first_title
from sessions.turn.interfaces import Player
from sessions.turn.message_request import (
    Append,
    Continue,
    GenerationConfig,
    MessageRequest,
    Placement,
    Regenerate,
    stored_message,
)
from sessions.turn.policy import Policy
from sessions.turn.prompt import HistoryPromptBuilder, Prompt, as_refusals
from sessions.turn.turn import SentOffsets, Subscriber, ToolRound, Turn
from sessions.turn.turn_state import TurnIds, TurnMessageIds, TurnState

_REFUSED = "This message was refused because the store did not answer; send it again in a moment."

ATTEMPTS = 3
MAX_CONCURRENT = 8
"""Messages that use the store at the same time. Others wait, fairly between keys and addresses.

If all asked at once, many would time out waiting for a connection, and be refused after all that work.
"""
MAX_CONCURRENT_HEAVY = 3
"""How many may be of heavy clients. More would not be accepted sooner: each step of each would wait for the steps of all."""


class MessageAcceptor:
    """Takes messages to the point where a turn may run."""

    def __init__(
        self,
        storage: Storage,
        *,
        prompts: HistoryPromptBuilder,
        sources: SourceReplies,
        policy: Policy,
        observer: Observer,
        watching: Subscriptions,
        forwarder: Forwarder,
    ) -> None:
        self._history = storage.history
        self._images = storage.images
        self._ledger = storage.ledger
        self._replica = storage.ownership.replica
        self._unsettled = storage.unsettled
        self._prompts = prompts
        self._sources = sources
        self._filters = policy.filters
        self._watching = watching
        self._forwarder = forwarder
        self._storage = storage
        self._queue = TurnQueue(storage, prompts=prompts, observer=observer, at_most=policy.max_queued)
        self._at_once = FairSlots(MAX_CONCURRENT, heavy_slots=MAX_CONCURRENT_HEAVY)

    async def take(
        self, conversation: Conversation, live: Turn, generation: GenerationConfig
    ) -> Request | None:
        """Accept a message and return what to run; None: a duplicate, taken elsewhere, or cancelled in the queue.

        Raises Refused.
        """
        try:
            return await self._take(conversation, live, generation)
        except Duplicate as known:
            record = await self._confirmed(conversation, live, generation, known.turn)
            await self._repeat(conversation, live, record)
            return None
        finally:
            if live.turn.accepted_at is None:
                live.accepted.set_result(False)
                conversation.release(live)

    async def _confirmed(
        self, conversation: Conversation, live: Turn, generation: GenerationConfig, record: TurnRecord
    ) -> TurnRecord:
        """Return a duplicate's turn; one at another replica counts once that replica confirms it. Raises Refused.

        Only that replica knows whether the message was refused and the turn will be withdrawn.
        """
        if record.done is not None or (runner := await self._forwarder.runner_of(conversation)) is None:
            return record
        refuse_other_content(record, live.send)
        if not live.was_attached:  # events that are published meanwhile follow the answer to the repeat
            conversation.leave(live.sender)
        try:
            await self._forwarder.repeat(conversation, live, generation, runner=runner)
        except RefusedElsewhere:
            # the turn had ended, so that replica took the message for a new one and had no capacity for it
            known = await self._known_turn(conversation, live.send)
            if known.done is None:
                raise
            return known
        return await self._known_turn(conversation, live.send)

    async def _take(
        self, conversation: Conversation, live: Turn, generation: GenerationConfig
    ) -> Request | None:
        await self._forwarder.lookups_done(conversation.owner)
        # in the order of arrival, whichever answer of the store comes first
        async with conversation.claim_lock:
            await conversation.resumes.wait(live.sender)
            live.was_attached = live.sender in conversation.subscribers
            if await self._answer_duplicate(conversation, live):
                return None
            await self._validate(conversation, live, generation)
            for interrupted in reversed(conversation.claim(live)):
                _interrupt(conversation, interrupted, live.send)
        conversation.attach(live.sender)
        if live.send.on_busy == "enqueue" and await self._queue.accept(conversation, live, generation):
            live.accepted.set_result(True)
            return await self._queue.next(conversation, live, generation)
        while (before := conversation.before(live)) is not None:
            await runner.ended(before)
        request = await self._accept_next(conversation, live, generation)
        if request is not None:
            live.accepted.set_result(True)
        return request

    async def _accept_next(
        self, conversation: Conversation, live: Turn, generation: GenerationConfig
    ) -> Request | None:
        """Return the request to run; None if another replica took the message. Raises Refused, Duplicate."""
        for _ in range(ATTEMPTS):
            await _check_waiting_turn(conversation, live)
            try:
                return await self._begin(conversation, live, generation)
            except StaleFacts:
                conversation.note_change()
                await self._forwarder.runner_of(conversation)
            except RunsElsewhere as elsewhere:
                conversation.note_change()
                if live.player is not None:
                    raise Busy("Another reply of this conversation is written by another server.") from None
                answer = await self._forwarder.send(conversation, live, generation, runner=elsewhere.runner)
                if answer is not None and not answer.already:
                    return None
        raise Busy("Another reply of this conversation is being written.")

    async def _answer_duplicate(self, conversation: Conversation, arrival: Turn) -> bool:
        """Answer a `client_msg_id` that has a turn, live or ended; False if none is known yet. Raises Refused, Duplicate."""
        while (live := conversation.earlier_duplicate(arrival)) is not None:
            if await live.accepted:
                _replay_local(conversation, live, arrival)
                return True
        if not conversation.blocking():
            return False  # the atomic write decides
        record = await self._history.turn_of(conversation.keys, arrival.send.client_msg_id)
        if record is None:
            return False
        if record.done is None:
            raise Duplicate(record)
        await self._repeat(conversation, arrival, record)
        return True

    async def _known_turn(self, conversation: Conversation, send: MessageRequest) -> TurnRecord:
        """Return the turn that a message began. Raises StoreDown if it was withdrawn meanwhile, as a refused one is."""
        if (record := await self._history.turn_of(conversation.keys, send.client_msg_id)) is None:
            raise StoreDown(_REFUSED)
        return record

    async def _repeat(self, conversation: Conversation, arrival: Turn, record: TurnRecord) -> None:
        """Answer with a turn that does not run here: `accepted`, then its text and `done` if it has ended. Raises Refused."""
        refuse_other_content(record, arrival.send)
        if record.turn_id in self._unsettled or _is_withdrawn(conversation, record):
            raise StoreDown(_REFUSED)
        # the replica that wrote it may have died, or be waiting, before it was durable enough
        await self._history.confirm(conversation.keys, term=self._history.term)
        if record.done is None:
            await self._watching.begin(conversation)
            since = await read_consistent(self._history, conversation, record.accepted_seq)
            if since.running is not None and since.running.turn_id == record.turn_id:
                _replay_remote(conversation, record, since, arrival)
                return
            record = await self._known_turn(conversation, arrival.send)
        await self._repeat_ended(conversation, arrival, record)

    async def _repeat_ended(self, conversation: Conversation, arrival: Turn, record: TurnRecord) -> None:
        await self._watching.try_to_begin(conversation)
        if (meta := await self._history.load(conversation.keys)) is not None:
            await catch_up_to(self._history, conversation, meta.epoch, meta.seq)
        reply = await self._history.message(conversation.keys, record.reply_id)
        if record.continues is not None and await self._history.is_removed(conversation.keys, record.turn_id):
            reply = None
        event = accepted_event(conversation, record, arrival.send, meta.epoch if meta else "", duplicate=True)
        arrival.sender.publish(event)
        conversation.attach(arrival.sender)
        if (done := record.done) is not None:
            kept = done if reply is not None else msgspec.structs.replace(done, removed=True)
            _replay_ended(arrival.sender, msgspec.structs.replace(record, done=kept), reply)

    async def _validate(self, conversation: Conversation, live: Turn, generation: GenerationConfig) -> None:
        """Raise Refused for a bad option, source or text, and for an interrupting message without a place or room."""
        self._prompts.choice.requested(generation.model, only=generation.only)
        _refuse_bound(generation)
        if (source := live.send.source) is not None:
            await self._check_source(conversation, live, generation, source)
        await self._filters.check(
            live.send.content, generation.system, generation.clients_spec, generation.given
        )
        if live.send.ends is not None and conversation.blocking():
            await self._validate_interrupting(conversation, live, generation)

    async def _check_source(
        self, conversation: Conversation, live: Turn, generation: GenerationConfig, source: SourceState
    ) -> None:
        """Raise BadParams if the model that will be asked can't answer a source."""
        kept = await self._history.load(conversation.keys)
        requested = self._prompts.requested(generation, kept.model if kept else "", source=source)

        async def able(model: ServedModel) -> None:
            with as_refusals():
                self._sources.refuse_unable(await model.engine.ready(), source)

        await live.engine.in_time(self._prompts.choice.first_that_can(requested, able))

    async def _validate_interrupting(
        self, conversation: Conversation, live: Turn, generation: GenerationConfig
    ) -> None:
        named = [one for one in conversation.turns if one.turn.ids.reply_id == _named(live.send.place)]
        if named:
            if live.send.ends is Cause.ROLLBACK and named[0].record.continues is None:
                raise NotFound("The named message is part of what is rolled back.")
            return
        size = live.send.stored_size(generation)
        await self._ledger.admit(live.send.subject(conversation.owner), size, lifetime_s=0)
        meta = await self._history.load(conversation.keys) or Meta.new("")
        placement = await resolve_placement(self._history, conversation.keys, live.send.place, meta)
        message = placement.answered or await stored_message(
            self._images, conversation.owner, conversation.keys, live.record, live.send
        )
        requested = self._prompts.requested(generation, placement.model, meta.model, source=live.send.source)
        live.record = msgspec.structs.replace(live.record, model=requested)
        messages = placement.prompt_tail(message)
        if live.send.source is not None:
            facts = self._prompts.choice.facts(requested)
            tried, generation = self._sources.trial_request(message, generation, live.send.source, facts)
            messages = [tried]
        await self._prompts.check(conversation.keys, live, messages, generation, meta)

    async def _begin(self, conversation: Conversation, live: Turn, generation: GenerationConfig) -> Request:
        """Return what is to run. Raises Refused, Duplicate, RunsElsewhere, and StaleFacts if the store changed meanwhile."""
        async with self._at_once.slot(live.send.group or live.send.client_id):
            meta, placement = await self._look(conversation, live)
        if placement.continued is not None:
            live.continue_from(placement.continued)
        source = live.send.source or placement.source
        requested = self._prompts.requested(generation, placement.model, meta.model, source=source)
        record = live.record = msgspec.structs.replace(
            live.record,
            model=requested,
            message_id=placement.answered.message_id if placement.answered else live.record.message_id,
            parent_id=placement.parent_id,
            accepted_seq=meta.seq + 1,
            source=source,
        )
        message = placement.answered or await stored_message(
            self._images, conversation.owner, conversation.keys, record, live.send
        )
        last_message = placement.prompt_tail(message)[-1]
        if source is not None:
            facts = self._prompts.choice.facts(requested)
            if facts is not None:
                self._sources.refuse_unable(facts, source)
            text = "" if placement.continued is None else placement.continued.content
            live.source = self._sources.open(source, message, text)
            last_message, generation = self._sources.trial_request(message, generation, source, facts)
        prompt: Prompt | None = None
        if generation.given is None:
            # a cancelled turn is accepted without its prompt if the engine takes too long, as during a restart
            prompt = await self._prompts.prompt(conversation.keys, live, last_message, generation, meta)
        record = live.record
        event = accepted_event(conversation, record, live.send, meta.epoch)
        titled_by = _titled_by(message)
        beginning = Beginning(
            message=None if placement.answered else message,
            turn=record,
            event=event if message.role == "assistant" else with_content(event, message),
            title="" if meta.title and meta.seq else _title(message, titled_by),
            titled_by=titled_by,
            system=self._prompts.system(meta, generation).named,
            context_from=prompt.context_from
            if prompt and source is None
            else meta.context_from or record.message_id,
            continues=live.send.place == Append(),
            model="" if source is not None else self._prompts.choice.named(generation.model),
        )
        async with self._at_once.slot(live.send.group or live.send.client_id):
            await self._storage.register_turn(
                conversation.owner,
                conversation.conversation_id,
                record.turn_id,
                subject=live.send.subject(conversation.owner),
                size=live.send.stored_size(generation),
            )
            await self._write(conversation, live, beginning)
        return self._prompts.request(conversation.keys, live, prompt, generation, meta)

    async def _look(self, conversation: Conversation, live: Turn) -> tuple[Meta, ResolvedPlacement]:
        """Return the conversation's facts, and the message's place in it. Raises Refused, Duplicate, RunsElsewhere."""
        known, meta = await self._history.look(conversation.keys, live.send.client_msg_id)
        if known is not None:
            raise Duplicate(known)
        if meta is None:
            meta = conversation.known.beginning = conversation.known.beginning or Meta.new()
        conversation.known.seq = meta.seq
        if (meta.running or meta.queue) and meta.runner not in (None, self._replica):
            raise RunsElsewhere(meta.runner or "")
        await catch_up_to(self._history, conversation, meta.epoch, meta.seq)
        return meta, await resolve_placement(self._history, conversation.keys, live.send.place, meta)

    async def _write(self, conversation: Conversation, live: Turn, beginning: Beginning) -> None:
        """Do the atomic write. If its outcome is not known, the turn stays listed for the reaper, which undoes the write."""
        try:
            others = conversation.others
            async with conversation.write_lock:
                live.refuse_revoked()
                attached, news = bool(conversation.subscribers), others.news
                watched = await self._history.begin(conversation.keys, beginning, attached=attached)
                others.entered(watched=watched, watching=attached, news=news)
                live.turn.accept(now=monotonic())
                live.fallback = beginning.turn.fallback
                conversation.publish_accepted(live, beginning.event)
        except (Duplicate, StaleFacts, NotFound):
            await self._storage.ownership.discard(beginning.turn.turn_id)
            raise
        except StoreDown:
            self._unsettled.add(beginning.turn.turn_id)
            raise


async def _check_waiting_turn(conversation: Conversation, live: Turn) -> None:
    """Wait for the turns before; interrupt one that was just taken over and waits for calls, or raise Busy."""
    while (before := conversation.before(live)) is not None:
        if before.waits and not before.turn.is_over:
            if live.send.ends is None:
                raise Busy("Calls of this conversation wait for their results.")
            _interrupt(conversation, before, live.send)
        await runner.ended(before)


def _interrupt(conversation: Conversation, live: Turn, send: MessageRequest) -> None:
    """End a turn at what the sender of `send` saw of it: nothing, if it follows the turn that they saw."""
    seen_off = send.seen_off if send.seen_turn_id in (None, live.turn.ids.turn_id) else None
    if send.seen_turn_id is not None and send.seen_turn_id == live.record.follows:
        seen_off = 0
    if (cause := send.ends) is not None:
        runner.cancel(conversation, live, cause, seen_off=seen_off)


def register_turn(
    conversation: Conversation,
    sender: Subscriber,
    send: MessageRequest,
    names: TurnMessageIds,
    generation: GenerationConfig,
    *,
    player: Player | None = None,
) -> Turn:
    """Register a message; from here on a cancel of its conversation finds it."""
    ids = TurnIds(
        conversation_id=conversation.conversation_id, turn_id=names.turn_id, reply_id=names.reply_id
    )
    record = TurnRecord(
        turn_id=names.turn_id,
        client_msg_id=send.client_msg_id,
        digest=send.digest,
        message_id=names.message_id,
        reply_id=names.reply_id,
        parent_id=None,
        accepted_seq=0,
        source=send.source,
    )
    live = Turn(TurnState(ids), record, send, sender, tool_round=ToolRound(generation), player=player)
    if player is not None:
        player.begin(names.turn_id)
    conversation.accepting.append(live)
    return live


def _is_withdrawn(conversation: Conversation, record: TurnRecord) -> bool:
    """Return whether a turn was queued here and refused, but its removal is not written yet."""
    runs_here = conversation.live is not None and conversation.live.journal is not None
    return record.done is None and runs_here and conversation.turn(record.turn_id) is None


def refuse_other_content(record: TurnRecord, send: MessageRequest) -> None:
    """Raise Conflict if the same id came with another text, or for another place."""
    if record.digest != send.digest:
        raise Conflict("`client_msg_id` was used before, for another message.")


def _replay_local(conversation: Conversation, live: Turn, arrival: Turn) -> None:
    """Answer a duplicate of a running turn. A connection that does not follow the turn yet gets the text so far as one delta."""
    refuse_other_content(live.record, arrival.send)
    reader = arrival.sender
    event = accepted_event(
        conversation, live.record, arrival.send, conversation.published.epoch, duplicate=True
    )
    if live.source is not None:
        event = msgspec.structs.replace(event, content=live.source.message.content)
    reader.publish(event)
    conversation.attach(reader)
    if live.record.done is not None:  # published, but not saved yet
        _replay_ended(reader, live.record, reply_of(live, live.record.done))
        return
    if reader in live.followers:
        return
    live.followers.add(reader)
    if live.wait is not None:
        reader.publish(live.wait)
    after, until = live.record.accepted_seq, conversation.published.seq
    _replay(reader, live.published_after(after, until=until), after=after, until=until, sent=live.sent)


def _replay_remote(conversation: Conversation, record: TurnRecord, since: Since, arrival: Turn) -> None:
    """Answer a duplicate of a turn that runs on another replica, as far as the journal has it."""
    reader = arrival.sender
    reader.publish(accepted_event(conversation, record, arrival.send, since.epoch, duplicate=True))
    conversation.attach(reader)
    if not arrival.was_attached:
        published_events = [event for event in since.events if event.turn_id == record.turn_id]
        _replay(reader, merged(published_events), after=record.accepted_seq, until=since.seq)


def _replay(
    reader: Subscriber,
    published_events: Sequence[Journalled],
    *,
    after: int,
    until: int,
    sent: SentOffsets | None = None,
) -> None:
    """Replay a running turn; its later events, after `until`, follow. `sent`: what was sent of it, if it runs here."""
    events = covered(published_events, after)
    if events and isinstance(events[-1], Text):
        events[-1] = msgspec.structs.replace(events[-1], seq=until)
    for event in events:
        reader.publish(event, sent=sent)


def _replay_ended(reader: Subscriber, record: TurnRecord, reply: MessageRecord | None) -> None:
    """Replay an ended turn: its text as one delta, and its end."""
    for event in rebuilt_turn(record, reply):
        reader.publish(event)


def _named(placement: Placement) -> object:
    """Return the reply that a place names, which may still be running."""
    match placement:
        case Append(parent_id):
            return parent_id
        case Regenerate(reply_id) | Continue(reply_id):
            return reply_id
    return None


def _refuse_bound(generation: GenerationConfig) -> None:
    """Raise BadParams for options of whole replies on a reply that is continued."""
    if not generation.continues:
        return
    if generation.format is not None:
        raise BadParams("`format` applies to whole replies, not to one that is continued.", field="format")
    if generation.tool_choice not in ("auto", "none"):
        raise BadParams(
            "`tool_choice` applies to whole replies, not to one that is continued.", field="tool_choice"
        )


def _titled_by(message: MessageRecord) -> Languages | None:
    """Return the languages that title a new conversation: those of a live translation without words."""
    return None if message.content.strip() else message.languages


def _title(message: MessageRecord, titled_by: Languages | None) -> str:
    """Return the title of a new conversation: its languages, or the message's first words."""
    if titled_by is None:
        return first_title(message.content)
    return f"{titled_by.source} → {titled_by.target}"
