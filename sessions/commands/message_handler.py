"""Takes a user's message: is it a duplicate, is the conversation busy, does it fit? Then one atomic write makes its turn.

A refusal leaves no trace. If the sender disconnects, nothing is lost: the work is completed.
"""

from __future__ import annotations

from engine.messages import Request
from sessions.commands.acceptance import TurnAcceptor
from sessions.commands.duplicates import DuplicateHandler, refuse_other_content
from sessions.commands.queued_turns import QueuedTurns
from sessions.commands.turn_queue import TurnQueue
from sessions.commands.validation import MessageValidator
from sessions.conversation.conversation import Conversation
from sessions.errors import Busy
from sessions.events import Cause
from sessions.observer import Observer
from sessions.records import TurnRecord
from sessions.replicas.forwarder import Forwarder, RunsElsewhere
from sessions.replicas.rpc import RefusedElsewhere
from sessions.replicas.subscriptions import Subscriptions
from sessions.running import runner
from sessions.running.registration import TurnRegistrar
from sessions.running.turn_end import EndPublisher
from sessions.store.history.transactions import Duplicate, StaleFacts
from sessions.store.storage import Storage
from sessions.turn.message_request import GenerationConfig, MessageRequest, Playback
from sessions.turn.policy import Policy
from sessions.turn.prompt import HistoryPromptBuilder
from sessions.turn.turn import Subscriber, ToolRound, Turn
from sessions.turn.turn_state import TurnIds, TurnMessageIds, TurnState

ATTEMPTS = 3


class MessageHandler:
    """Takes messages to the point where a turn may run."""

    def __init__(
        self,
        *,
        validator: MessageValidator,
        duplicates: DuplicateHandler,
        acceptor: TurnAcceptor,
        queue: TurnQueue,
        queued_turns: QueuedTurns,
        forwarder: Forwarder,
    ) -> None:
        self._validator = validator
        self._duplicates = duplicates
        self._acceptor = acceptor
        self._queue = queue
        self._queued_turns = queued_turns
        self._forwarder = forwarder

    async def take(
        self, conversation: Conversation, live: Turn, generation: GenerationConfig
    ) -> Request | None:
        """Accept a message and return what to run; None for a duplicate, which is answered here.

        Raises Refused.
        """
        try:
            return await self._take(conversation, live, generation)
        except Duplicate as known:
            record = await self._confirmed(conversation, live, generation, known.turn)
            await self._duplicates.repeat(conversation, live, record)
            return None
        finally:
            if live.turn.accepted_at is None:
                live.milestones.accepted.set_result(False)
                conversation.release(live)

    async def _confirmed(
        self, conversation: Conversation, live: Turn, generation: GenerationConfig, record: TurnRecord
    ) -> TurnRecord:
        """Answer with a turn that the store has; one at another replica counts once that replica confirms it. Raises Refused.

        Only that replica knows whether the message was refused and the turn will be withdrawn.
        """
        if record.done is not None or (runner := await self._forwarder.runner_of(conversation)) is None:
            return record
        refuse_other_content(record, live.send)
        if (
            not live.acceptance.was_attached
        ):  # events that are published meanwhile follow the answer to the repeat
            conversation.leave(live.sender)
        try:
            await self._forwarder.repeat(conversation, live, generation, runner=runner)
        except RefusedElsewhere:
            # the turn had ended, so it took the message for a new one and had no capacity for it
            known = await self._duplicates.known(conversation, live.send)
            if known.done is None:
                raise
            return known
        return await self._duplicates.known(conversation, live.send)

    async def _take(
        self, conversation: Conversation, live: Turn, generation: GenerationConfig
    ) -> Request | None:
        await self._forwarder.lookups_done(conversation.owner)
        # in the order of arrival, whichever answer of the store comes first
        async with conversation.locks.claiming:
            await conversation.resumes.wait(live.sender)
            live.acceptance.was_attached = live.sender in conversation.subscribers
            if await self._duplicates.answers(conversation, live):
                return None
            await self._validator.check(conversation, live, generation)
            for ended in reversed(conversation.claim(live)):
                _interrupt(conversation, ended, live.send)
        conversation.attach(live.sender)
        if live.send.on_busy == "enqueue" and await self._queue.accept(conversation, live, generation):
            live.milestones.accepted.set_result(True)
            return await self._queued_turns.next(conversation, live, generation)
        while (before := conversation.before(live)) is not None:
            await runner.ended(before)
        request = await self._accept(conversation, live, generation)
        if request is not None:
            live.milestones.accepted.set_result(True)
        return request

    async def _accept(
        self, conversation: Conversation, live: Turn, generation: GenerationConfig
    ) -> Request | None:
        """Return the request to run; None if another replica took the message. Raises Refused, Duplicate."""
        for _ in range(ATTEMPTS):
            await _check_waiting_turn(conversation, live)
            try:
                return await self._acceptor.accept(conversation, live, generation)
            except StaleFacts:
                conversation.forget()
                await self._forwarder.close_left_turns(conversation)
            except RunsElsewhere as elsewhere:
                conversation.forget()
                if live.delivery.playback is not None:
                    raise Busy("Another reply of this conversation is written by another server.") from None
                answer = await self._forwarder.send(conversation, live, generation, runner=elsewhere.runner)
                if answer is not None and not answer.already:
                    return None
        raise Busy("Another reply of this conversation is being written.")


async def _check_waiting_turn(conversation: Conversation, live: Turn) -> None:
    """Check for a turn that waits for calls and was just taken over from a dead replica. Raises Busy."""
    while (before := conversation.before(live)) is not None:
        if before.waits and not before.turn.is_over:
            if live.send.on_busy not in ("interrupt", "rollback"):
                raise Busy("Calls of this conversation wait for their results.")
            _interrupt(conversation, before, live.send)
        await runner.ended(before)


def _interrupt(conversation: Conversation, live: Turn, send: MessageRequest) -> None:
    """End a turn at what the sender of a message saw of it. Of one that follows the turn that they saw, that is nothing."""
    cause = Cause.ROLLBACK if send.on_busy == "rollback" else Cause.INTERRUPT
    seen_off = send.seen_off if send.seen_turn_id in (None, live.turn.ids.turn_id) else None
    if send.seen_turn_id is not None and send.seen_turn_id == live.record.follows:
        seen_off = 0
    runner.cancel(conversation, live, cause, seen_off=seen_off)


def register_turn(
    conversation: Conversation,
    sender: Subscriber,
    send: MessageRequest,
    names: TurnMessageIds,
    generation: GenerationConfig,
    *,
    playback: Playback | None = None,
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
        interprets=send.interprets,
    )
    live = Turn(TurnState(ids), record, send, sender, tool_round=ToolRound(generation), playback=playback)
    if playback is not None:
        playback.begin(names.turn_id)
    conversation.accepting.append(live)
    return live


def build_message_handler(
    storage: Storage,
    *,
    prompts: HistoryPromptBuilder,
    policy: Policy,
    observer: Observer,
    watching: Subscriptions,
    forwarder: Forwarder,
) -> MessageHandler:
    """The sender of one replica."""
    history, images, unsettled = storage.history, storage.images, storage.unsettled
    registrar = TurnRegistrar(ownership=storage.ownership, index=storage.index, ledger=storage.ledger)
    queue = TurnQueue(
        history=history,
        images=images,
        prompts=prompts,
        registrar=registrar,
        end_publisher=EndPublisher(observer),
        at_most=policy.max_queued,
        unsettled=unsettled,
    )
    return MessageHandler(
        validator=MessageValidator(
            history=history,
            images=images,
            prompts=prompts,
            filters=policy.filters,
            ledger=storage.ledger,
        ),
        duplicates=DuplicateHandler(history=history, watching=watching, unsettled=unsettled),
        acceptor=TurnAcceptor(
            history=history,
            images=images,
            registrar=registrar,
            prompts=prompts,
            replica=storage.ownership.replica,
            unsettled=unsettled,
        ),
        queue=queue,
        queued_turns=QueuedTurns(history=history, prompts=prompts, queue=queue),
        forwarder=forwarder,
    )
