"""Accepts a message that runs at once: one atomic write makes its turn and publishes `accepted`."""

from __future__ import annotations

import secrets
from time import monotonic

import msgspec

from engine.messages import Request
from sessions.commands.branches import ResolvedPlacement, resolve_placement
from sessions.conversation.catch_up import catch_up_to
from sessions.conversation.conversation import Conversation
from sessions.conversation.engine_requests import accepted_event, client_key, turn_request, with_content
from sessions.errors import NotFound, StoreDown
from sessions.events import Languages
from sessions.interpreting.interpretation import Interpretation
from sessions.records import MessageRecord, Meta, TurnRecord, user_message
from sessions.replicas.forwarder import RunsElsewhere
from sessions.running.registration import TurnRegistrar
from sessions.store.history.codec import now_ms
from sessions.store.history.history import History
from sessions.store.history.transactions import Beginning, Duplicate, StaleFacts
from sessions.store.images import Images
from sessions.store.redis.fair_slots import CappedFairSlots
from sessions.titles.title_generator import first_title
from sessions.translation.segment_request import refuse_unable, trial_request
from sessions.turn.message_request import Append, GenerationConfig, MessageRequest
from sessions.turn.prompt import HistoryPromptBuilder, Prompt
from sessions.turn.turn import Turn

MAX_CONCURRENT = 8
"""Messages that use the store at the same time. Others wait, fairly between keys and addresses. If all asked at once, many would time out waiting for a connection, and be refused after all that work."""
MAX_CONCURRENT_HEAVY = 3
"""How many of them may be of a crowd. More would not be accepted sooner: each step of each would wait for the steps of all."""


class TurnAcceptor:
    """Accepts messages. `unsettled` takes turns of which it is not known whether the store accepted them; the reaper withdraws those."""

    def __init__(
        self,
        *,
        history: History,
        images: Images,
        registrar: TurnRegistrar,
        prompts: HistoryPromptBuilder,
        replica: str,
        unsettled: set[str],
    ) -> None:
        self._history = history
        self._images = images
        self._registrar = registrar
        self._prompts = prompts
        self._replica = replica
        self._unsettled = unsettled
        self._at_once = CappedFairSlots(MAX_CONCURRENT, heavy_slots=MAX_CONCURRENT_HEAVY)

    async def accept(self, conversation: Conversation, live: Turn, generation: GenerationConfig) -> Request:
        """Return what is to run. Raises Refused, Duplicate, RunsElsewhere, and Moved if the store changed meanwhile."""
        async with self._at_once.slot(live.send.group or live.send.client_id):
            meta, placement = await self._look(conversation, live)
        if placement.continued is not None:
            live.continue_from(placement.continued)
        interprets = live.send.interprets or placement.interprets
        requested = self._prompts.choice.requested(
            generation.model,
            placement.model,
            meta.model,
            only=generation.only,
            translates=interprets or generation.translation,
        )
        record = live.record = msgspec.structs.replace(
            live.record,
            model=requested,
            message_id=placement.answered.message_id if placement.answered else live.record.message_id,
            parent_id=placement.parent_id,
            accepted_seq=meta.seq + 1,
            interprets=interprets,
        )
        message = placement.answered or await message_of(self._images, conversation, record, live.send)
        system = self._prompts.system(meta, generation)
        # a cancelled turn is accepted without its prompt if the engine takes too long, as during a restart
        client = client_key(conversation.owner, live.send.group)
        last_message = placement.prompt_tail(message)[-1]
        if interprets is not None:
            facts = self._prompts.choice.facts(requested)
            if facts is not None:
                refuse_unable(facts, interprets)
            text = "" if placement.continued is None else placement.continued.content
            live.tool_round.interpretation = Interpretation(interprets, message, text)
            last_message, generation = trial_request(message, generation, interprets, facts)
        prompt: Prompt | None = None
        if generation.given is None:
            making = self._prompts.prompt(
                conversation.keys, last_message, generation, meta, requested=requested, client=client
            )
            prompt = await live.engine.in_time(making)
        if prompt is not None:
            reserve_images(live, prompt)
        answering = self._prompts.choice.answering(requested, prompt.model if prompt else requested)
        record = live.choose(answering.model)
        event = accepted_event(conversation, record, live.send, meta.epoch)
        titled_by = _titled_by(message)
        beginning = Beginning(
            message=None if placement.answered else message,
            turn=record,
            event=event if message.role == "assistant" else with_content(event, message),
            title=_title(message, titled_by),
            titled_by=titled_by,
            system=system.named,
            context_from=prompt.context_from
            if prompt and interprets is None
            else meta.context_from or record.message_id,
            continues=live.send.place == Append(),
            model="" if interprets is not None else self._prompts.choice.named(generation.model),
        )
        async with self._at_once.slot(live.send.group or live.send.client_id):
            await self._registrar.register_message(conversation, record.turn_id, live.send, generation)
            await self._write(conversation, live, beginning)
        return turn_request(
            conversation,
            record.turn_id,
            prompt,
            generation,
            system,
            group=live.send.group,
            answering=answering,
        )

    async def _look(self, conversation: Conversation, live: Turn) -> tuple[Meta, ResolvedPlacement]:
        """Return the conversation's facts, and the message's place in it. Raises Refused, Duplicate, RunsElsewhere."""
        meta = await self._facts(conversation, live)
        if (meta.running or meta.queue) and meta.runner not in (None, self._replica):
            raise RunsElsewhere(meta.runner or "")
        await catch_up_to(self._history, conversation, meta.epoch, meta.seq)
        return meta, await resolve_placement(self._history, conversation.keys, live.send.place, meta)

    async def _facts(self, conversation: Conversation, live: Turn) -> Meta:
        """Return the conversation's facts, read unless they are known. Raises Duplicate."""
        read: Meta | None = None
        if (meta := conversation.known.meta) is not None:
            known = await self._history.turn_of(conversation.keys, live.send.client_msg_id)
        else:
            known, read = await self._history.look(conversation.keys, live.send.client_msg_id)
        if known is not None:
            raise Duplicate(known)
        if meta is None:
            conversation.know(meta := meta_or_new(read))
        return meta

    async def _write(self, conversation: Conversation, live: Turn, beginning: Beginning) -> None:
        """Do the atomic write. If its outcome is not known, the turn stays listed for the reaper, which undoes it."""
        try:
            others = conversation.others
            async with conversation.locks.writing, others.entering:
                _refuse_revoked(live)
                attached, news = bool(conversation.subscribers), others.news
                watched = await self._history.begin(conversation.keys, beginning, attached=attached)
                others.entered(watched=watched, watching=attached, news=news)
                live.turn.accept(now=monotonic())
                live.delivery.fallback = beginning.turn.fallback
                conversation.publish_accepted(live, beginning.event)
        except (Duplicate, StaleFacts, NotFound):
            await self._registrar.withdraw(beginning.turn.turn_id)
            raise
        except StoreDown:
            self._unsettled.add(beginning.turn.turn_id)
            raise


def _titled_by(message: MessageRecord) -> Languages | None:
    """Return the languages that title a new conversation: those of a live translation without words."""
    return None if message.content.strip() else message.interprets


def _title(message: MessageRecord, titled_by: Languages | None) -> str:
    """Return the title of a new conversation: its languages, or the message's first words."""
    if titled_by is None:
        return first_title(message.content)
    return f"{titled_by.source} → {titled_by.target}"


def reserve_images(live: Turn, prompt: Prompt) -> None:
    """Count what a prompt shows. Raises Overloaded where the server holds as many images as it can."""
    if size := sum(len(image.data) for message in prompt.messages for image in message.images):
        live.acceptance.hold(size)


async def message_of(
    images: Images, conversation: Conversation, record: TurnRecord, send: MessageRequest
) -> MessageRecord:
    """Return a user's message as it will be stored, and put its images into the conversation. Raises Refused."""
    shown = await images.show(conversation.owner, conversation.keys, send.images, group=send.group)
    if send.shown:
        positions = zip(shown, send.shown, strict=True)
        shown = tuple(msgspec.structs.replace(one, at=at, detail=detail) for one, (at, detail) in positions)
    return user_message(record, send.content, at_ms=now_ms(), images=shown)


async def known_meta(history: History, conversation: Conversation) -> Meta:
    """Return the store's facts of a conversation, read unless they are known. Raises StoreDown."""
    if (meta := conversation.known.meta) is None:
        meta = meta_or_new(await history.load(conversation.keys))
        conversation.know(meta)
    return meta


def meta_or_new(read: Meta | None) -> Meta:
    """Return the facts that were read, or those of a new conversation."""
    return read or Meta.new(epoch=secrets.token_hex(8))


def _refuse_revoked(live: Turn) -> None:
    if live.acceptance.revoked:
        raise NotFound("The conversation was deleted before this message was accepted.")
