"""Takes a user's message in: duplicate? busy? does it fit? Then one atomic write makes its turn.

A refusal leaves no trace. Nothing is lost when the sender leaves meanwhile: sends run to their end.
"""

from __future__ import annotations

import asyncio
import secrets
from time import monotonic

import msgspec

from engine.messages import Request
from sessions import running
from sessions.announcing import Announcer
from sessions.branches import placed
from sessions.context import Prompt
from sessions.conversation import Conversation
from sessions.errors import Busy, NotFound, Refused, StoreDown
from sessions.events import Cause, Failure
from sessions.following import follow_up_to
from sessions.foresight import Foresight
from sessions.forwarding import Elsewhere, Forwarder
from sessions.history import History
from sessions.keys import now_ms
from sessions.live_turn import LiveTurn, Subscriber
from sessions.ownership import Ownership
from sessions.places import Behind, digest_of
from sessions.policy import Policy, SystemPrompt
from sessions.prompting import Prompts
from sessions.queueing import AGAIN_S, Queue
from sessions.records import Meta, TurnRecord, user_message
from sessions.repeating import accepted_event, refuse_other_content, repeat_elsewhere, repeat_end, repeat_live
from sessions.requests import request_of
from sessions.resuming import steady
from sessions.sends import Generation, Send
from sessions.transactions import Beginning, Duplicate, Moved
from sessions.turn import Names, Turn, TurnIds
from sessions.watching import Watching

TITLE_CHARS = 80
ATTEMPTS = 3


class Sender:
    """Brings messages to the point where a turn may run.

    `unsettled` takes the turns of which nobody knows whether the store accepted them; the reaper withdraws those.
    """

    def __init__(
        self,
        *,
        history: History,
        ownership: Ownership,
        announcer: Announcer,
        prompts: Prompts,
        queue: Queue,
        watching: Watching,
        forwarder: Forwarder,
        unsettled: set[str],
        policy: Policy,
    ) -> None:
        self._history = history
        self._ownership = ownership
        self._announcer = announcer
        self._prompts = prompts
        self._queue = queue
        self._watching = watching
        self._forwarder = forwarder
        self._unsettled = unsettled
        self._system_prompt = policy.system_prompt
        self._filters = policy.filters
        self._foresight = Foresight(history=history, prompts=prompts, system=policy.system_prompt)

    async def take(
        self, conversation: Conversation, live: LiveTurn, generation: Generation
    ) -> Request | None:
        """Accepts an arrived message and gives back what to run; None for a duplicate, which is answered here.

        Raises Refused.
        """
        try:
            request = await self._take(conversation, live, generation)
        except Duplicate as known:
            await self._repeat(conversation, live, known.turn)
            request = None
        finally:
            if live.turn.accepted_at is None:
                live.accepted.set_result(False)
                conversation.release(live)
        return request

    async def _take(
        self, conversation: Conversation, live: LiveTurn, generation: Generation
    ) -> Request | None:
        await self._forwarder.places_found(conversation.owner)
        # In the order of arrival, whichever answer of the store comes first.
        async with conversation.claiming:
            if await self._is_duplicate(conversation, live):
                return None
            await self._filters.check(live.send.content, generation.system)
            if live.send.on_busy in ("interrupt", "rollback") and conversation.blocking():
                await self._foresight.check(conversation, live, generation)
            cause = Cause.ROLLBACK if live.send.on_busy == "rollback" else Cause.INTERRUPT
            for ended in reversed(conversation.claim(live)):
                running.cancel(conversation, ended, cause)
        conversation.attach(live.sender)
        if live.send.on_busy == "enqueue" and await self._enqueue(conversation, live, generation):
            return await self._next(conversation, live, generation)
        while (before := conversation.before(live)) is not None:
            await running.ended(before)
        request = await self._accept(conversation, live, generation)
        if request is not None:
            live.accepted.set_result(True)
        return request

    async def _enqueue(self, conversation: Conversation, live: LiveTurn, generation: Generation) -> bool:
        if not await self._queue.accept(conversation, live, generation, system=self._system_prompt):
            return False
        live.accepted.set_result(True)
        return True

    async def _next(
        self, conversation: Conversation, live: LiveTurn, generation: Generation
    ) -> Request | None:
        """The request of a turn that was accepted in the queue, once it is the next; None where it has its end."""
        if not await self._queue.begin(conversation, live):
            return None
        conversation.forget()
        meta = await self._lasting_meta(conversation)
        named = meta.system if generation.system is None else generation.system
        system = SystemPrompt(named, self._system_prompt)
        prompt: Prompt | None = None
        try:
            message = await self._history.message(conversation.keys, live.record.message_id)
            if message is not None and not live.turn.is_over:
                prompt = await live.engine.in_time(
                    self._prompts.prompt(
                        conversation.keys,
                        message,
                        generation,
                        system=system.text,
                        context_from=meta.context_from,
                    )
                )
        except Refused as refused:  # too late to refuse it: its end says why
            live.failure = Failure(code=refused.code, message=str(refused))
        context_from = prompt.context_from if prompt else meta.context_from or live.record.message_id
        await self._queue.start(conversation, live, named=named, context_from=context_from)
        return request_of(conversation, live.record.turn_id, prompt, generation.params, system)

    async def _lasting_meta(self, conversation: Conversation) -> Meta:
        """The facts of a conversation that has an accepted turn: waits for a store that does not answer."""
        while True:
            try:
                return await self._meta(conversation)
            except StoreDown:
                await asyncio.sleep(AGAIN_S)

    async def _is_duplicate(self, conversation: Conversation, arrival: LiveTurn) -> bool:
        """Answers a `client_msg_id` that has its turn, live or ended."""
        while (live := conversation.twin(arrival)) is not None:
            if await live.accepted:
                repeat_live(conversation, live, arrival)
                return True
        if not conversation.blocking():
            return False  # the atomic write will tell
        record = await self._history.turn_of(conversation.keys, arrival.send.client_msg_id)
        if record is None:
            return False
        await self._repeat(conversation, arrival, record)
        return True

    async def _repeat(self, conversation: Conversation, arrival: LiveTurn, record: TurnRecord) -> None:
        """Answers a duplicate of a turn that does not run here: `accepted`, and where it has ended its text and `done`."""
        refuse_other_content(record, arrival.send)
        if record.turn_id in self._unsettled:
            raise StoreDown(
                "This message was refused when the store did not answer; send it again in a moment."
            )
        if record.done is None:
            await self._watching.begin(conversation)
            since = await steady(self._history, conversation, record.accepted_seq)
            if since.running is not None and since.running.turn_id == record.turn_id:
                repeat_elsewhere(conversation, record, since, arrival)
                return
            record = await self._history.turn(conversation.keys, record.turn_id) or record
        await self._watching.try_to_begin(conversation)
        if (meta := await self._history.load(conversation.keys)) is not None:
            await follow_up_to(self._history, conversation, meta.epoch, meta.seq)
        reply = await self._history.message(conversation.keys, record.reply_id)
        event = accepted_event(conversation, record, arrival.send, meta.epoch if meta else "", duplicate=True)
        arrival.sender.publish(event)
        conversation.attach(arrival.sender)
        if (done := record.done) is not None:
            kept = done if reply is not None else msgspec.structs.replace(done, removed=True)
            repeat_end(arrival.sender, record, kept, reply.content if reply else "")

    async def _accept(
        self, conversation: Conversation, live: LiveTurn, generation: Generation
    ) -> Request | None:
        """The request to run; None where another replica took the message in. Raises Refused, Duplicate."""
        for _ in range(ATTEMPTS):
            try:
                return await self._begin(conversation, live, generation)
            except Moved:
                conversation.forget()
            except Elsewhere as elsewhere:
                conversation.forget()
                answer = await self._forwarder.send(conversation, live, generation, runner=elsewhere.runner)
                if answer is not None and not answer.already:
                    return None
        raise Busy("Another reply of this conversation is being written.")

    async def _begin(self, conversation: Conversation, live: LiveTurn, generation: Generation) -> Request:
        if (known := await self._history.turn_of(conversation.keys, live.send.client_msg_id)) is not None:
            raise Duplicate(known)
        meta = await self._meta(conversation)
        if (meta.running or meta.queue) and meta.runner not in (None, self._ownership.replica):
            raise Elsewhere(meta.runner or "")
        await follow_up_to(self._history, conversation, meta.epoch, meta.seq)
        place = await placed(self._history, conversation.keys, live.send.place, meta)
        record = live.record = msgspec.structs.replace(
            live.record,
            message_id=place.answered.message_id if place.answered else live.record.message_id,
            parent_id=place.parent_id,
            accepted_seq=meta.seq + 1,
        )
        message = place.answered or user_message(record, live.send.content, at_ms=now_ms())
        named = meta.system if generation.system is None else generation.system
        system = SystemPrompt(named, self._system_prompt)
        # A cancelled turn is accepted without its prompt where the engine takes too long, as while it restarts.
        prompt = await live.engine.in_time(
            self._prompts.prompt(
                conversation.keys,
                message,
                generation,
                system=system.text,
                context_from=meta.context_from,
            )
        )
        event = accepted_event(conversation, record, live.send, meta.epoch)
        beginning = Beginning(
            message=None if place.answered else message,
            turn=record,
            event=msgspec.structs.replace(event, content=message.content),
            title=" ".join(message.content.split())[:TITLE_CHARS],
            system=system.named,
            context_from=prompt.context_from if prompt else meta.context_from or record.message_id,
            continues=live.send.place == Behind(),
        )
        await self._announcer.announce(conversation, record.turn_id)
        await self._write(conversation, live, beginning)
        return request_of(conversation, record.turn_id, prompt, generation.params, system)

    async def _write(self, conversation: Conversation, live: LiveTurn, beginning: Beginning) -> None:
        """The atomic write. Where nobody knows whether it was done, the turn stays named for the reaper to undo it."""
        try:
            others = conversation.others
            async with conversation.writing, others.entering:
                _refuse_revoked(live)
                attached, news = bool(conversation.subscribers), others.news
                watched = await self._history.begin(conversation.keys, beginning, attached=attached)
                others.entered(watched=watched, watching=attached, news=news)
                live.turn.accept(now=monotonic())
                conversation.publish_accepted(live, beginning.event)
        except (Duplicate, Moved, NotFound):
            await self._announcer.withdraw(beginning.turn.turn_id)
            raise
        except StoreDown:
            self._unsettled.add(beginning.turn.turn_id)
            raise

    async def _meta(self, conversation: Conversation) -> Meta:
        if conversation.meta is None:
            meta = await self._history.load(conversation.keys) or Meta.new(epoch=secrets.token_hex(8))
            conversation.know(meta)
        return conversation.meta  # type: ignore[return-value]


def arrive(conversation: Conversation, sender: Subscriber, send: Send, names: Names) -> LiveTurn:
    """Notes a message that came in; from here on a cancel of its conversation finds it."""
    ids = TurnIds(
        conversation_id=conversation.conversation_id, turn_id=names.turn_id, reply_id=names.reply_id
    )
    record = TurnRecord(
        turn_id=names.turn_id,
        client_msg_id=send.client_msg_id,
        digest=digest_of(send.content, send.place),
        message_id=names.message_id,
        reply_id=names.reply_id,
        parent_id=None,
        accepted_seq=0,
    )
    live = LiveTurn(Turn(ids), record, send, sender)
    live.was_attached = sender in conversation.subscribers
    conversation.arriving.append(live)
    return live


def _refuse_revoked(live: LiveTurn) -> None:
    if live.revoked:
        raise NotFound("The conversation was deleted before this message was taken in.")
