"""Takes more of a source from clients, and passes it to the replica that translates it."""

from __future__ import annotations

import asyncio

from sessions.conversation.conversation import Conversation
from sessions.errors import Conflict, NotFound, OwnershipLost, StoreDown
from sessions.interpreting.source import Grown, Growth, Source
from sessions.replicas.rpc import Forwarder
from sessions.store.history.history import History
from sessions.translation.source_growth import SourceGrowth
from sessions.turn.turn import Turn

ATTEMPTS = 3
_AGAIN = "The interpretation is moving to another server; send it again in a moment."
_OVER = "The interpretation has ended; later text is not translated."


class SourceUpdateHandler:
    """Grows sources for one replica. Methods raise Refused."""

    def __init__(self, *, history: History, grower: SourceGrowth, forwarder: Forwarder) -> None:
        self._history = history
        self._grower = grower
        self._forwarder = forwarder

    async def grow(self, conversation: Conversation, growth: Growth) -> Grown:
        """Return the outcome of a growth, wherever its source is translated."""
        for _ in range(ATTEMPTS):
            if (grown := await self._here(conversation, growth)) is not None:
                return grown
            if (runner := await self._forwarder.runner_of(conversation)) is None:
                return await self._known(conversation, growth)
            if (there := await self._forwarder.grow(conversation, runner, growth)) is not None:
                return there
        raise StoreDown(_AGAIN)

    async def grow_here(self, conversation: Conversation, growth: Growth) -> Grown:
        """Return the outcome of a growth that another replica passed on."""
        return await self._here(conversation, growth) or await self._known(conversation, growth)

    async def _here(self, conversation: Conversation, growth: Growth) -> Grown | None:
        """Return None if the source is not translated here."""
        while (live := _target_turn(conversation, growth)) is not None:
            if not await asyncio.shield(live.accepted):
                continue
            await _ready(live)
            if (interpretation := live.tool_round.interpretation) is None:
                return None
            try:
                return await self._grower.grow(conversation, live, interpretation, growth)
            except OwnershipLost:  # another replica closed it while this one stalled
                await live.released.wait()
        return None

    async def _known(self, conversation: Conversation, growth: Growth) -> Grown:
        """Return the outcome from the store, for an interpretation that has ended."""
        record = (
            None if growth.turn_id is None else await self._history.turn(conversation.keys, growth.turn_id)
        )
        if record is None or record.interprets is None:
            raise NotFound("Nothing is being translated in this conversation; begin with `interpret.start`.")
        message = await self._history.message(conversation.keys, record.message_id)
        source = Source(message.content if message is not None else "", is_final=record.interprets.is_final)
        if message is None or source.news(growth) is not None:
            raise Conflict(_OVER)
        return Grown(turn_id=record.turn_id, chars=len(source.text), final=source.is_final, already=True)


def _target_turn(conversation: Conversation, growth: Growth) -> Turn | None:
    """Return the newest turn that translates, or may turn out to."""
    coming = [*conversation.turns, *conversation.accepting]
    meant = (live for live in reversed(coming) if growth.turn_id in (None, live.record.turn_id))
    return next((live for live in meant if _may_translate(live)), None)


def _may_translate(live: Turn) -> bool:
    is_coming = not live.accepted.done() and not live.forwarded
    goes_on = is_coming and live.tool_round.generation.continues
    return live.tool_round.interpretation is not None or live.send.interprets is not None or goes_on


async def _ready(live: Turn) -> None:
    """Wait until an accepted turn can use its journal, or has ended."""
    waits = [asyncio.ensure_future(one.wait()) for one in (live.ready, live.released)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
