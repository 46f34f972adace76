"""Takes a user's message in: duplicate? busy? does it fit? Then one atomic write makes its turn.

A refusal leaves no trace. Nothing is lost when the sender leaves meanwhile: sends run to their end.
"""

from __future__ import annotations

import secrets
from time import monotonic

import msgspec

from engine.door import Engine
from engine.errors import EngineError, PromptRejected
from engine.messages import Params, Request
from sessions import running
from sessions.context import Prompt, Room, fit
from sessions.conversation import Conversation, LiveTurn, Send, Subscriber
from sessions.errors import BadParams, Busy, EngineDown, NotFound, StoreDown
from sessions.events import Cause
from sessions.history import Beginning, Duplicate, History, Moved, now_ms
from sessions.index import Index
from sessions.ownership import Ownership, RunningTurn
from sessions.policy import SystemPrompt
from sessions.records import MessageRecord, Meta, TurnRecord, digest
from sessions.repeating import accepted_event, refuse_other_content, repeat_end, repeat_live
from sessions.requests import request_of
from sessions.turn import Turn, TurnIds

TITLE_CHARS = 80
DEFAULT_NEW_TOKENS = 512


class Generation(msgspec.Struct, frozen=True):
    """How the reply is made. `system` unset: the conversation's; empty: none of its own from now on."""

    params: Params = Params()
    system: str | None = None


class Sender:
    """Brings messages to the point where a turn may run.

    `unsettled` takes the turns of which nobody knows whether the store accepted them; the reaper withdraws those.
    `system_prompt` is the operator's.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        history: History,
        index: Index,
        ownership: Ownership,
        unsettled: set[str],
        system_prompt: str,
    ) -> None:
        self._engine = engine
        self._history = history
        self._index = index
        self._ownership = ownership
        self._unsettled = unsettled
        self._system_prompt = system_prompt

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
        # In the order of arrival, whichever answer of the store comes first.
        async with conversation.claiming:
            if await self._is_duplicate(conversation, live):
                return None
            for interrupted in conversation.claim(live):
                running.cancel(conversation, interrupted, Cause.INTERRUPT)
        conversation.attach(live.sender)
        while (before := conversation.before(live)) is not None:
            await running.ended(before)
        request = await self._accept(conversation, live, generation)
        live.accepted.set_result(True)
        return request

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
        reply = await self._history.message(conversation.keys, record.reply_id)
        meta = await self._history.load(conversation.keys)
        event = accepted_event(conversation, record, arrival.send, meta.epoch if meta else "", duplicate=True)
        arrival.sender.publish(event)
        conversation.attach(arrival.sender)
        if record.done is not None:  # else it runs on another replica
            repeat_end(arrival.sender, record, record.done, reply.content if reply else "")

    async def _accept(self, conversation: Conversation, live: LiveTurn, generation: Generation) -> Request:
        try:
            return await self._begin(conversation, live, generation)
        except Moved:
            conversation.forget()
        try:
            return await self._begin(conversation, live, generation)
        except Moved:
            raise Busy("Another reply of this conversation is being written.") from None

    async def _begin(self, conversation: Conversation, live: LiveTurn, generation: Generation) -> Request:
        if (known := await self._history.turn_of(conversation.keys, live.send.client_msg_id)) is not None:
            raise Duplicate(known)
        meta = await self._meta(conversation)
        record = live.record = msgspec.structs.replace(
            live.record,
            parent_id=await self._parent(conversation, meta, live.send),
            accepted_seq=meta.seq + 1,
        )
        message = _user_message(record, live.send)
        named = meta.system if generation.system is None else generation.system
        system = SystemPrompt(named, self._system_prompt)
        # A cancelled turn is accepted without its prompt where the engine takes too long, as while it restarts.
        prompt = await live.in_time(self._prompt(conversation, meta, message, system.text, generation))
        event = accepted_event(conversation, record, live.send, meta.epoch)
        beginning = Beginning(
            message=message,
            turn=record,
            event=msgspec.structs.replace(event, content=message.content),
            title=" ".join(message.content.split())[:TITLE_CHARS],
            system=system.named,
            context_from=prompt.context_from if prompt else meta.context_from or record.message_id,
        )
        await self._announce(conversation, record, message.created_at)
        await self._write(conversation, live, beginning)
        return request_of(conversation, record.turn_id, prompt, generation.params, system)

    async def _write(self, conversation: Conversation, live: LiveTurn, beginning: Beginning) -> None:
        """The atomic write. Where nobody knows whether it was done, the turn stays named for the reaper to undo it."""
        try:
            async with conversation.writing:
                _refuse_revoked(live)
                await self._history.begin(conversation.keys, beginning)
                live.turn.accept(now=monotonic())
                conversation.publish_accepted(live, msgspec.structs.replace(beginning.event, content=None))
        except (Duplicate, Moved, NotFound):
            await self._ownership.discard(beginning.turn.turn_id)
            raise
        except StoreDown:
            self._unsettled.add(beginning.turn.turn_id)
            raise

    async def _meta(self, conversation: Conversation) -> Meta:
        if conversation.meta is None:
            meta = await self._history.load(conversation.keys) or Meta.new(epoch=secrets.token_hex(8))
            conversation.know(meta)
        return conversation.meta  # type: ignore[return-value]

    async def _parent(self, conversation: Conversation, meta: Meta, send: Send) -> str | None:
        if isinstance(send.parent_id, msgspec.UnsetType):
            return meta.leaf
        if send.parent_id is None:
            return None
        parent = await self._history.message(conversation.keys, send.parent_id)
        if parent is None:
            raise NotFound(f"parent_id: no message {send.parent_id!r} in this conversation.")
        if parent.role != "assistant":
            raise BadParams("parent_id: must name an assistant message.")
        return send.parent_id

    async def _prompt(
        self,
        conversation: Conversation,
        meta: Meta,
        message: MessageRecord,
        system: str,
        generation: Generation,
    ) -> Prompt:
        records = [message]
        if message.parent_id is not None:
            branch = await self._history.branch(
                conversation.keys, leaf=message.parent_id, last=meta.context_from
            )
            records = [*branch.messages, message]
        try:
            facts = await self._engine.ready()
            asked = generation.params.max_new_tokens or facts.defaults.max_new_tokens or DEFAULT_NEW_TOKENS
            room = Room.of(facts.context_tokens, asked)
            return await fit(system, records, room=room, count=self._engine.count_tokens)
        except PromptRejected as error:
            raise BadParams(f"The model's chat template refuses these messages: {error}") from error
        except EngineError as error:
            raise EngineDown(str(error)) from error

    async def _announce(self, conversation: Conversation, record: TurnRecord, at_ms: int) -> None:
        await self._ownership.add(
            RunningTurn(
                owner=conversation.owner,
                conversation_id=conversation.conversation_id,
                turn_id=record.turn_id,
                replica=self._ownership.replica,
            )
        )
        await self._index.touch(conversation.owner, conversation.conversation_id, at_ms)


def arrive(conversation: Conversation, sender: Subscriber, send: Send) -> LiveTurn:
    """Notes a message that came in; from here on a cancel of its conversation finds it."""
    turn_id, message_id, reply_id = (f"{kind}_{secrets.token_hex(12)}" for kind in ("turn", "msg", "msg"))
    ids = TurnIds(
        conversation_id=conversation.conversation_id,
        turn_id=turn_id,
        message_id=message_id,
        reply_id=reply_id,
    )
    record = TurnRecord(
        turn_id=turn_id,
        client_msg_id=send.client_msg_id,
        digest=digest(send.content),
        message_id=message_id,
        reply_id=reply_id,
        parent_id=None,
        accepted_seq=0,
    )
    live = LiveTurn(Turn(ids), record, send, sender)
    conversation.arriving.append(live)
    return live


def _refuse_revoked(live: LiveTurn) -> None:
    if live.revoked:
        raise NotFound("The conversation was deleted before this message was taken in.")


def _user_message(record: TurnRecord, send: Send) -> MessageRecord:
    return MessageRecord(
        message_id=record.message_id,
        parent_id=record.parent_id,
        turn_id=record.turn_id,
        role="user",
        content=send.content,
        status="complete",
        created_at=now_ms(),
    )
