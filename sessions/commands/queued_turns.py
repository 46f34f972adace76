"""Begins a queued turn once it is the next one: only then is its prompt known."""

from __future__ import annotations

import asyncio

from engine.messages import Request
from sessions.commands.acceptance import known_meta, reserve_images
from sessions.commands.turn_queue import AGAIN_S, TurnQueue
from sessions.conversation.conversation import Conversation
from sessions.conversation.engine_requests import client_key, turn_request
from sessions.errors import Refused, StoreDown, StoreFault
from sessions.events import Failure
from sessions.records import Meta
from sessions.store.history.history import History
from sessions.turn.message_request import GenerationConfig
from sessions.turn.policy import SystemPrompt
from sessions.turn.prompt import HistoryPromptBuilder, ModelRoute, Prompt
from sessions.turn.turn import Turn


class QueuedTurns:
    """Takes turns out of the queue. They were accepted, so one that can't run ends with an error."""

    def __init__(self, *, history: History, prompts: HistoryPromptBuilder, queue: TurnQueue) -> None:
        self._history = history
        self._prompts = prompts
        self._queue = queue

    async def next(
        self, conversation: Conversation, live: Turn, generation: GenerationConfig
    ) -> Request | None:
        """Return what is to run once all before it has ended; None if it was cancelled. Raises OwnershipLost."""
        if not await self._queue.begin(conversation, live):
            return None
        conversation.forget()
        try:
            return await self._started(conversation, live, generation)
        except StoreFault as fault:  # its `done` says so
            live.failure = Failure(code=fault.code, message=str(fault))
        return turn_request(
            conversation,
            live.record.turn_id,
            None,
            generation,
            SystemPrompt("", ""),
            group=live.send.group,
            answering=ModelRoute(live.record.model),
        )

    async def _started(self, conversation: Conversation, live: Turn, generation: GenerationConfig) -> Request:
        meta = await self._lasting_meta(conversation)
        system = self._prompts.system(meta, generation)
        prompt = await self._prompt(conversation, live, generation, meta)
        context_from = prompt.context_from if prompt else meta.context_from or live.record.message_id
        requested = live.record.model
        answering = self._prompts.choice.answering(requested, prompt.model if prompt else requested)
        live.choose(answering.model)
        await self._queue.start(conversation, live, named=system.named, context_from=context_from)
        return turn_request(
            conversation,
            live.record.turn_id,
            prompt,
            generation,
            system,
            group=live.send.group,
            answering=answering,
        )

    async def _prompt(
        self, conversation: Conversation, live: Turn, generation: GenerationConfig, meta: Meta
    ) -> Prompt | None:
        try:
            message = await self._history.message(conversation.keys, live.record.leaf)
            if message is not None and not live.turn.is_over:
                requested = live.record.model
                client = client_key(conversation.owner, live.send.group)
                prompt = self._prompts.prompt(
                    conversation.keys, message, generation, meta, requested=requested, client=client
                )
                if (made := await live.engine.in_time(prompt)) is not None:
                    reserve_images(live, made)
                return made
        except Refused as refused:  # too late to refuse it: its `done` says why
            live.failure = Failure(
                code=refused.code, message=str(refused), retry_after_ms=refused.retry_after_ms
            )
        return None

    async def _lasting_meta(self, conversation: Conversation) -> Meta:
        """Return the facts of a conversation with an accepted turn; wait if the store does not answer."""
        while True:
            try:
                return await known_meta(self._history, conversation)
            except StoreFault:
                raise
            except StoreDown:
                await asyncio.sleep(AGAIN_S)
