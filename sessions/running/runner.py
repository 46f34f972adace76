"""Runs an accepted turn to its end, which is stored before it is published.

Its text is journalled before it is published. If the store is slower than `PATIENCE_S`, the end is published as not saved, and
written when the store is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic

import msgspec
import structlog

from engine.messages import Request
from sessions.conversation.catch_up import gap_before, partial_reply
from sessions.conversation.conversation import Conversation
from sessions.errors import OwnershipLost, StoreDown, StoreFault
from sessions.events import (
    Cause,
    Delta,
    Done,
    Failure,
    Journalled,
    Reason,
    Reasoning,
    Timing,
    Usage,
)
from sessions.generation import Generation, Generator, Outcome, SourceReplies, TokenLatency
from sessions.observer import Observer
from sessions.records import Client, MessageRecord, Owner, TurnRecord, digest, reply_message
from sessions.store.codec import now_ms
from sessions.store.history import Ending, Follow
from sessions.store.journal import PATIENCE_S, TurnJournal
from sessions.store.storage import Storage
from sessions.titles import TitleGenerator
from sessions.turn.message_request import GenerationConfig, ProvidedReply
from sessions.turn.policy import ToolLimits
from sessions.turn.tool_calls import cancelled
from sessions.turn.turn import Turn, WaitingTurn
from sessions.turn.turn_state import TurnMessageIds

SAVE_AGAIN_S = 1.0
SAVED_WITHIN_S = 3.0
JOURNAL_RESTARTS = 2
"""Attempts to write an end with a new journal, if a working store refuses it."""

_GONE = Failure(code="internal", message="The store no longer has this reply.")
_log = structlog.get_logger("midstream.turn")


def publish_end(observer: Observer, conversation: Conversation, live: Turn, done: Done) -> None:
    """Report a turn's end to attached connections, the observer and the log. Call it once for each turn."""
    conversation.publish_done(done)
    report_end(observer, done, client_of(conversation.owner, live.send.client_id))


def client_of(owner: Owner, client_id: str) -> Client:
    """Return the client that began a turn. `client_id`: empty if it is the owner's own."""
    return Client(owner.principal, client_id or owner.client_id)


def report_end(observer: Observer, done: Done, client: Client) -> None:
    """Report an end to the observer and the log, once for each turn."""
    observer.ended(done, client)
    _log.info(
        "turn ended",
        conversation_id=done.conversation_id,
        turn_id=done.turn_id,
        reason=done.reason.value,
        model=done.model,
        requested_model=done.requested_model,
        cause=done.cancel.cause.value if done.cancel else None,
        steps_after=done.cancel.steps_after if done.cancel else None,
        generated_tokens=done.usage.generated_tokens,
        wasted_tokens=done.usage.wasted_tokens,
        first_token_ms=done.timing.first_token_ms,
        total_ms=done.timing.total_ms,
        open_calls=len(done.open),
        error=done.error.code if done.error else None,
    )


def reply_of(live: Turn, done: Done) -> MessageRecord:
    """Return the reply as it is stored."""
    base = live.tool_round.base
    return reply_message(
        live.record,
        done,
        content=live.turn.text,
        reasoning=live.turn.reasoning,
        calls=live.tool_round.calls.records,
        created_at=now_ms() if base is None else base.created_at,
    )


def with_calls(live: Turn, end: Done, *, may_call: bool) -> Done:
    """Return the end of a turn with its open calls. If no turn follows, the published ones are cancelled.

    `may_call`: the limit of calling turns is not reached, and the store is not full.
    """
    calls, cut = live.tool_round.calls, live.turn.cut
    if end.reason is Reason.TOOLS and may_call:
        return msgspec.structs.replace(end, open=tuple(call.call_id for call in calls.open))
    if calls.records:
        if cut is not None:
            calls.keep(-1 if cut.is_rollback else cut.kept.chars)
        for call in calls.open:
            calls.put(cancelled(call))
    reason = Reason.STOP if end.reason is Reason.TOOLS else end.reason
    return msgspec.structs.replace(end, reason=reason)


def with_precision(live: Turn, end: Done) -> Done:
    """Return the end of a turn; if it was cut while it was played, with the precision of the cut."""
    if live.player is None or end.cancel is None:
        return end
    facts = msgspec.structs.replace(end.cancel, precision=live.player.precision)
    return msgspec.structs.replace(end, cancel=facts)


def following_of(live: Turn) -> WaitingTurn:
    """Return the turn that waits for the calls of an ended one."""
    names, called, generation = TurnMessageIds.new(), live.record, live.tool_round.generation
    record = TurnRecord(
        turn_id=names.turn_id,
        client_msg_id=live.send.client_msg_id,
        digest=called.digest,
        message_id=called.reply_id,
        reply_id=names.reply_id,
        parent_id=called.message_id,
        accepted_seq=0,
        model=called.model,
        follows=called.turn_id,
    )
    return WaitingTurn(
        record=record,
        round=live.tool_round.round + 1,
        send=msgspec.structs.replace(live.send, content="", ref=None),
        generation=generation,
        then=None if generation.given is None else GenerationConfig(given=ProvidedReply()),
    )


class TurnRunner:
    """Runs turns. One `run` per turn; it raises only if it is cancelled."""

    def __init__(
        self,
        storage: Storage,
        *,
        generator: Generator,
        sources: SourceReplies,
        observer: Observer,
        tools: ToolLimits,
        titler: TitleGenerator | None = None,
    ) -> None:
        """`titler`: writes titles of new conversations; None: nobody does."""
        self._generator = generator
        self._sources = sources
        self._journal = storage.journal
        self._history = storage.history
        self._ownership = storage.ownership
        self._ledger = storage.ledger
        self._observer = observer
        self._tools = tools
        self._titler = titler
        self._storage = storage

    def stop_titles(self) -> None:
        """Write no more titles."""
        if self._titler is not None:
            self._titler.stop()

    def ready(self, conversation: Conversation, live: Turn) -> None:
        """Prepare a turn: messages accepted from here on can use its journal."""
        live.journal = TurnJournal(
            self._journal,
            keys=conversation.keys.pair(),
            turn_id=live.turn.ids.turn_id,
            ledger=self._ledger,
            subject=live.send.subject(conversation.owner),
        )
        live.ready.set()

    async def run(self, conversation: Conversation, live: Turn, request: Request) -> bool:
        """Run an accepted, prepared turn until its end is published and saved; return False if it was lost.

        With open calls it has a turn `following`, which the store lists as running.
        """
        journal = live.journal
        if journal is None:
            raise RuntimeError("The turn was not made ready.")
        run = Generation(
            conversation, live, journal, TokenLatency(self._observer, live.turn), self._tools.wait_s
        )
        self._observer.began(run.turn_id, request.model, live.turn.accepted_at or monotonic())
        try:
            await self._end(run, await self._after_player(live, await self._outcome(run, request)))
            is_generated = live.source is None and live.tool_round.generation.given is None
            if self._titler is not None and is_generated:
                self._titler.consider(conversation, live, request)
        except OwnershipLost:
            await self._drop_following(run)
            await self._give_up_lost(conversation, live)
            return False
        except Exception:  # noqa: BLE001 - a task's boundary: the reaper closes what could not be ended here
            _log.exception("turn not ended", turn_id=run.turn_id)
        finally:
            if live.player is not None:
                live.player.stop()
            journal.drop()
            conversation.note_change()
            conversation.release(live)
        return True

    async def _outcome(self, run: Generation, request: Request) -> Outcome:
        if run.live.failure is not None:
            return Outcome(Reason.ERROR, run.live.failure)
        if (given := run.live.tool_round.generation.given) is not None:
            await run.take(given)
            return Outcome(Reason.TOOLS if given.calls else Reason.STOP)
        if run.live.record.fallback:
            run.publish("fallback", model=request.model)
        if run.live.source is not None:
            return await self._sources.outcome(run, request)
        return await self._generator.outcome(run, request)

    @staticmethod
    async def _after_player(live: Turn, outcome: Outcome) -> Outcome:
        """Wait until the reply was played to its end; if it was cut, until it is known what was heard."""
        if (player := live.player) is None:
            return outcome
        if not live.turn.is_over:
            await player.over()
        if live.turn.cut is not None and not live.turn.cut.is_rollback:
            await player.settled()
            live.turn.shorten(player.heard)
        return outcome

    async def _end(self, run: Generation, outcome: Outcome) -> None:
        live, conversation = run.live, run.conversation
        async with conversation.order_lock:
            seq = conversation.next_seq()
            end = live.turn.end(outcome.reason, seq=seq, now=monotonic(), error=outcome.error)
            may_call = live.tool_round.round < self._tools.max_rounds and not self._ledger.memory.is_full
            end = with_calls(live, end, may_call=may_call)
            done = live.end = live.record.signed(with_precision(live, end))
            ending = _ending(live, done, self._follow(run, done))
            try:
                saved = await self._save_in_time(run, ending)
            except StoreFault as fault:
                publish_end(self._observer, conversation, live, _given_up(done, fault))
                await self._give_up(run)
                return
            published = done if saved else msgspec.structs.replace(done, saved=False)
            publish_end(self._observer, conversation, live, published)
        if not saved:
            await self._save_late(run, ending)

    @staticmethod
    def _follow(run: Generation, done: Done) -> Follow | None:
        """Return the turn that follows one with open calls; it has its place here at once."""
        if done.reason is not Reason.TOOLS:
            return None
        following = following_of(run.live)
        waiting = Turn.waiting(following, run.live.tool_round.calls, run.live.sender)
        run.conversation.follow(run.live, waiting)
        return Follow(following.record.turn_id, following.record.reply_id, following.encoded())

    async def _give_up(self, run: Generation) -> None:
        """Handle an end that can't be stored."""
        await self._drop_following(run)
        await self._ownership.discard(run.turn_id)

    async def _drop_following(self, run: Generation) -> None:
        """Drop the wait for calls of a turn that was lost, or whose end can't be stored."""
        tool_round = run.live.tool_round
        if (following := tool_round.following) is not None:
            tool_round.following = None
            run.conversation.release(following)
            with suppress(StoreDown):  # the reaper finds its row, which then has no effect
                await self._ownership.discard(following.record.turn_id)

    async def _save_in_time(self, run: Generation, ending: Ending) -> bool:
        """Return whether the end is stored. Raises StoreFault if it never will be."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._save(run, ending)
        except StoreFault:
            raise
        except (StoreDown, TimeoutError) as trouble:
            _log.warning(
                "turn end not saved yet",
                turn_id=run.turn_id,
                reason=type(trouble.__cause__ or trouble).__name__,
            )
            return False
        return True

    async def _save_late(self, run: Generation, ending: Ending) -> None:
        while True:
            await asyncio.sleep(SAVE_AGAIN_S)
            try:
                await self._save(run, ending)
            except StoreFault:  # logged there: the end can't be stored
                await self._give_up(run)
                return
            except StoreDown:
                continue
            return

    async def _save(self, run: Generation, ending: Ending) -> None:
        """Save an end. Raises StoreDown, OwnershipLost, or StoreFault once a new journal did not help."""
        keys = run.conversation.keys
        try:
            if ending.follow is not None:
                conversation = run.conversation
                await self._storage.register_turn(
                    conversation.owner, conversation.conversation_id, ending.follow.turn_id
                )
            await run.journal.write_rest()
            await self._history.finish(keys, ending, group=run.live.send.group)
        except StoreFault as fault:
            await self._restart_journal(run, ending, fault)
        await self._ownership.discard(run.turn_id)

    async def _restart_journal(self, run: Generation, ending: Ending, fault: StoreFault) -> None:
        run.journal.drop()
        for _ in range(JOURNAL_RESTARTS):
            try:
                await self._history.finish(
                    run.conversation.keys, ending, repairs=True, group=run.live.send.group
                )
            except StoreFault as still:
                fault = still
            else:
                _log.warning("journal restarted", turn_id=run.turn_id, incident=fault.incident)
                return
        raise fault

    async def _give_up_lost(self, conversation: Conversation, live: Turn) -> None:
        """Stop a lost turn, and publish its end unless that was done. If the store has none, a reaper will close it."""
        turn_id = live.record.turn_id
        _log.warning("turn lost", turn_id=turn_id)
        if live.engine.stream is not None:
            live.engine.stream.cancel()
        try:
            record = await self._history.turn(conversation.keys, turn_id)
            if record is None or record.done is not None:
                await self._ownership.discard(turn_id)
            published_differs = record is None or _store_is_behind(conversation, live, record)
            if published_differs:
                await self._history.renew(conversation.keys, conversation.published.epoch)
            if live.record.done is None:
                await self._publish_lost_end(conversation, live, record, anew=published_differs)
        except StoreDown:
            _log.warning("end of lost turn not readable", turn_id=turn_id)

    async def _publish_lost_end(
        self, conversation: Conversation, live: Turn, record: TurnRecord | None, *, anew: bool
    ) -> None:
        if record is None:
            publish_end(self._observer, conversation, live, _local_end(conversation, live))
        elif record.done is not None and anew:
            await self._publish_stored_end(conversation, live, record, record.done)
        elif record.done is not None:
            conversation.take_over(await self._unconfirmed_events(conversation, record.done))
            publish_end(self._observer, conversation, live, record.done)

    async def _publish_stored_end(
        self, conversation: Conversation, live: Turn, record: TurnRecord, done: Done
    ) -> None:
        """In a new epoch, publish a gap, and the turn's kept text right before its end."""
        since = await self._history.since(conversation.keys, done.seq)
        if since is None:  # it was deleted in the meantime
            publish_end(self._observer, conversation, live, _local_end(conversation, live))
            return
        reply = await self._history.message(conversation.keys, record.reply_id)
        conversation.enter_epoch(since.epoch)
        conversation.advance_to(done.seq - 1)
        for event in gap_before(done, since, reply):
            conversation.publish(event)
        publish_end(self._observer, conversation, live, done)

    async def _unconfirmed_events(self, conversation: Conversation, done: Done) -> list[Journalled]:
        """Return the unpublished events before `done`, which the store took without confirming them."""
        if done.seq <= conversation.published.seq + 1:
            return []
        events = await self._history.journal(conversation.keys, after_seq=conversation.published.seq)
        return [event for event in events if event.seq < done.seq]


def _local_end(conversation: Conversation, live: Turn) -> Done:
    """Return the end of a turn that the store does not know."""
    done = live.end
    if done is None:
        seq = conversation.next_seq()
        done = live.record.signed(live.turn.end(Reason.INTERRUPTED, seq=seq, now=monotonic(), error=_GONE))
    text = live.published_text  # later text was neither published nor stored
    return msgspec.structs.replace(done, chars=len(text), text_sha256=digest(text), saved=False)


def _store_is_behind(conversation: Conversation, live: Turn, record: TurnRecord) -> bool:
    """Return whether published events are missing in the store, or withdrawn text is in it."""
    done, cut = record.done, live.turn.cut
    if done is None or done.seq <= conversation.published.seq:
        return True
    return cut is not None and cut.chars < min(done.chars, live.published_off)


def _given_up(done: Done, fault: StoreFault) -> Done:
    """Return the end of a turn that can't be stored; a cancel stays a cancel."""
    if done.cancel is None:
        done = msgspec.structs.replace(done, reason=Reason.ERROR)
    return msgspec.structs.replace(done, saved=False, error=Failure.of(fault), open=())


async def ended(live: Turn) -> None:
    """Wait until the turn has ended and is stored. Raises StoreDown if its end can't be saved for some time."""
    await live.ended.wait()
    try:
        async with asyncio.timeout(SAVED_WITHIN_S):
            await live.released.wait()
    except TimeoutError:
        raise StoreDown("The end of the previous reply is not saved: the store does not answer.") from None


def cancel(conversation: Conversation, live: Turn, cause: Cause, *, seen_off: int | None = None) -> bool:
    """Decide a turn's end and ask the engine to stop; False if the end was decided before."""
    if not conversation.cancel(live, cause, seen_off=seen_off, now=monotonic()):
        return False
    live.engine.stop()
    return True


def cancel_unattended(conversation: Conversation) -> None:
    """Cancel turns that nobody waits for, at once or after their grace period; a returning connection stops that. Synchronous.

    Call it whenever a connection left the conversation, here or on another replica.
    """
    if conversation.is_attended:
        conversation.cancel_grace()
        return
    for live in conversation.blocking():
        if live.send.on_disconnect == "cancel" and live.grace is None:
            if live.send.grace_s > 0:
                loop = asyncio.get_running_loop()
                live.grace = loop.call_later(live.send.grace_s, _grace_expired, conversation, live)
            else:
                cancel(conversation, live, Cause.DISCONNECT)


def _grace_expired(conversation: Conversation, live: Turn) -> None:
    live.grace = None
    if not conversation.is_attended:
        cancel(conversation, live, Cause.DISCONNECT)


def _ending(live: Turn, done: Done, follow: Follow | None) -> Ending:
    turn = msgspec.structs.replace(
        live.record, done=done, text_seq=live.turn.text_seq, reasoning_seq=live.turn.reasoning_seq
    )
    if live.source is not None:
        turn = msgspec.structs.replace(turn, source=live.source.state(chars=done.chars))
    return Ending(
        reply=reply_of(live, done),
        turn=turn,
        follow=follow,
        stays=live.record.leaves_reply_unchanged(done, live.tool_round.calls.records),
    )


_DOWN = Failure(code="internal", message="The server that wrote this reply went down.")


def close_orphaned(
    conversation_id: str,
    record: TurnRecord,
    events: Sequence[Journalled],
    *,
    seq: int,
    base: MessageRecord | None = None,
) -> Ending:
    """Return the end of a turn from its events. Published calls are cancelled unless they were settled.

    `base`: the reply that it continued, which is unchanged if nothing was added.
    """
    own = [event for event in events if getattr(event, "turn_id", None) == record.turn_id]
    deltas = [event for event in own if isinstance(event, Delta)]
    thoughts = [event for event in own if isinstance(event, Reasoning)]
    known = partial_reply(own, record.turn_id, base)
    text, reasoning, calls = known.text, known.reasoning, tuple(map(cancelled, known.calls))
    thought = sum(part.tokens for part in thoughts)
    tokens = thought + sum(part.tokens for part in deltas) + sum(call.tokens for call in calls)
    done = Done(
        conversation_id=conversation_id,
        turn_id=record.turn_id,
        message_id=record.reply_id,
        seq=seq,
        reason=Reason.INTERRUPTED,
        chars=len(text),
        usage=_usage(tokens, reasoning_tokens=thought),
        timing=Timing(queued_ms=None, first_token_ms=None, total_ms=0.0),
        text_sha256=digest(text),
        saved=True,
        error=_DOWN,
        reasoning_chars=len(reasoning),
    )
    turn = msgspec.structs.replace(
        record,
        done=record.signed(done),
        text_seq=deltas[0].first_seq if deltas else None,
        reasoning_seq=thoughts[0].first_seq if thoughts else None,
    )
    created_at = now_ms() if base is None else base.created_at
    reply = reply_message(record, done, content=text, reasoning=reasoning, calls=calls, created_at=created_at)
    return Ending(reply=reply, turn=turn, stays=record.leaves_reply_unchanged(done, calls))


def _usage(tokens: int, *, reasoning_tokens: int) -> Usage:
    return Usage(
        prompt_tokens=0,
        cached_tokens=0,
        generated_tokens=tokens,
        sent_tokens=tokens,
        wasted_tokens=0,
        reasoning_tokens=reasoning_tokens,
    )
