"""Checks a message before it ends the running reply: a message that will be refused must leave no trace."""

from __future__ import annotations

from engine.served_models import ServedModel
from sessions.commands.acceptance import message_of
from sessions.commands.branches import resolve_placement
from sessions.conversation.conversation import Conversation
from sessions.conversation.engine_requests import client_key
from sessions.errors import BadParams, NotFound
from sessions.filters.chain import Filters
from sessions.records import Interpreting, Meta
from sessions.running.registration import size_of, subject_of
from sessions.store.history.history import History
from sessions.store.images import Images
from sessions.store.ledger import Ledger
from sessions.translation.segment_request import refuse_unable, trial_request
from sessions.turn.message_request import Append, Continue, GenerationConfig, Placement, Regenerate
from sessions.turn.prompt import HistoryPromptBuilder, as_refusals
from sessions.turn.turn import Turn


class MessageValidator:
    """Checks messages before they take their place."""

    def __init__(
        self,
        *,
        history: History,
        images: Images,
        prompts: HistoryPromptBuilder,
        filters: Filters,
        ledger: Ledger,
    ) -> None:
        self._history = history
        self._images = images
        self._prompts = prompts
        self._filters = filters
        self._ledger = ledger

    async def check(self, conversation: Conversation, live: Turn, generation: GenerationConfig) -> None:
        """Raise Refused if a filter does, or if a message would interrupt although its place is missing, or there is no room for it."""
        self._prompts.choice.requested(generation.model, only=generation.only)
        _refuse_bound(generation)
        if (interpreting := live.send.interprets) is not None:
            await self._refuse_unable(conversation, live, generation, interpreting)
        await self._filters.check(
            live.send.content, generation.system, generation.clients_spec, generation.given
        )
        if live.send.on_busy in ("interrupt", "rollback") and conversation.blocking():
            await self._check(conversation, live, generation)

    async def _refuse_unable(
        self, conversation: Conversation, live: Turn, generation: GenerationConfig, interpreting: Interpreting
    ) -> None:
        """Raise BadParams if the model that will be asked can't interpret."""
        kept = await self._history.load(conversation.keys)
        requested = self._prompts.choice.requested(
            generation.model,
            kept.model if kept is not None else "",
            only=generation.only,
            translates=interpreting,
        )

        async def able(model: ServedModel) -> None:
            with as_refusals():
                refuse_unable(await model.engine.ready(), interpreting)

        await live.engine.in_time(self._prompts.choice.first_that_can(requested, able))

    async def _check(self, conversation: Conversation, live: Turn, generation: GenerationConfig) -> None:
        named = [one for one in conversation.turns if one.turn.ids.reply_id == _named(live.send.place)]
        if named:
            if live.send.on_busy == "rollback" and named[0].record.continues is None:
                raise NotFound("The named message is part of what is rolled back.")
            return
        size = size_of(live.send, generation)
        await self._ledger.admit(subject_of(conversation, live.send), size, lifetime_s=0)
        meta = await self._history.load(conversation.keys) or Meta.new("")
        placement = await resolve_placement(self._history, conversation.keys, live.send.place, meta)
        message = placement.answered or await message_of(self._images, conversation, live.record, live.send)
        requested = self._prompts.choice.requested(
            generation.model,
            placement.model,
            meta.model,
            only=generation.only,
            translates=live.send.interprets or generation.translation,
        )
        client = client_key(conversation.owner, live.send.group)
        messages = placement.prompt_tail(message)
        if live.send.interprets is not None:
            facts = self._prompts.choice.facts(requested)
            tried, generation = trial_request(message, generation, live.send.interprets, facts)
            messages = [tried]
        check = self._prompts.check(messages, generation, meta, requested=requested, client=client)
        await live.engine.in_time(check)


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
