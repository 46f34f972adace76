"""Responses that are kept: turns of conversations. A response is a place in a conversation's tree, so going on from any is free."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec
import structlog

from connections.limits.caller import Caller
from connections.openai.problems import Problem
from connections.responses.kept.ids import BEGUN_HERE, Place, place_of
from connections.responses.kept.notes import (
    Note,
    Outputs,
    Said,
    decode_note,
    encode_note,
    open_in,
    read_in,
)
from connections.responses.kept.stored import StoredReply
from engine.messages import Message
from sessions.commands.resuming import Position
from sessions.conversation.guarding import guarded
from sessions.conversation.kept import KeptTurn
from sessions.errors import NotFound, Refused
from sessions.records import MessageRecord, Owner
from sessions.service import Sessions
from sessions.turn.calls import Result
from sessions.turn.cancelling import Cancel
from sessions.turn.live_turn import Nobody
from sessions.turn.positions import Behind
from sessions.turn.sends import Generation, Send
from sessions.turn.turn import Names

ENDED_S = 5.0
"""How long a cancel waits for the end that it decided."""

_log = structlog.get_logger("midstream.responses")


class Kept(msgspec.Struct, frozen=True):
    """A response that is kept, and what was said up to its end."""

    place: Place
    turn: KeptTurn
    note: Note
    path: tuple[MessageRecord, ...] = ()

    @property
    def said(self) -> tuple[Message, ...]:
        """What a model reads that goes on from it."""
        return read_in(self.path, self.note)

    @property
    def open_calls(self) -> tuple[str, ...]:
        """The calls that wait for their outputs."""
        return open_in(self.turn)


class Where(msgspec.Struct, frozen=True):
    """Where a response is to go. `behind`: the one that it goes on from; None: it goes on with all of the conversation."""

    conversation_id: str
    behind: Kept | None


class Keeper:
    """Finds responses for their owners, and begins turns that are kept."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._cancelling: set[asyncio.Task[object]] = set()

    async def find(self, owner: Owner, response_id: str, *, with_path: bool = False) -> Kept | None:
        """A response; None where this owner has no such, or it is kept nowhere. Raises StoreDown."""
        if (place := place_of(response_id)) is None:
            return None
        turn = await self._sessions.kept.turn(owner, place.conversation_id, place.turn_id)
        if turn is None:
            return None
        path: Sequence[MessageRecord] = ()
        if with_path:
            leaf = turn.record.message_id if turn.reply is None else turn.record.reply_id
            path = await self._sessions.kept.path(owner, place.conversation_id, leaf)
        return Kept(place, turn, decode_note(turn.note), tuple(path))

    async def previous(self, owner: Owner, response_id: str) -> Kept:
        """A response that is gone on from. Raises Problem, StoreDown."""
        kept = await self.find(owner, response_id, with_path=True)
        if kept is None:
            raise not_found(response_id)
        if kept.turn.record.done is None:
            why = "The response before this one is still being written: go on from it when it has ended."
            raise Problem(400, why, code="response_in_progress", param="previous_response_id")
        return kept

    async def begin(self, caller: Caller, given: Said, generation: Generation, place: Where) -> StoredReply:
        """Begins a turn with a message, and returns once it is accepted. Raises Refused."""
        names = Names.new()
        send = Send(
            client_msg_id=f"response_{secrets.token_hex(12)}",
            conversation_id=place.conversation_id,
            content=given.content,
            place=Behind() if place.behind is None else Behind(place.behind.turn.record.reply_id),
            on_busy="enqueue",
            on_disconnect="continue",  # whoever leaves stops it: the calls of a reply wait for another request
            group=caller.group,
            client_id=caller.client.client_id,
            untitled=True,
        )
        stored = StoredReply(turn_id=names.turn_id, model=generation.model or "")
        await self._accepted(
            caller.owner,
            stored,
            send.conversation_id,
            self._send(caller.owner, stored, send, generation, names),
        )
        return stored

    async def go_on(self, caller: Caller, given: Outputs, behind: Kept) -> StoredReply:
        """Brings what came of calls; returns once the turn is accepted that begins then. Raises Refused."""
        stored = StoredReply(follows=behind.place.turn_id, model=behind.note.response.model)
        place = behind.place.conversation_id
        await self._accepted(caller.owner, stored, place, self._settle(caller.owner, stored, place, given))
        return stored

    async def _accepted(
        self, owner: Owner, stored: StoredReply, conversation_id: str, asking: Coroutine[Any, Any, None]
    ) -> None:
        """Asks, and waits for the turn to be accepted. Raises Refused."""
        try:
            await asking
            await stored.accepted.wait()
        except Refused:
            self.forget(stored)
            raise
        except BaseException:
            self.leave(owner, stored, conversation_id)
            raise

    async def _send(
        self, owner: Owner, stored: StoredReply, send: Send, generation: Generation, names: Names
    ) -> None:
        taking = self._sessions.send(owner, stored, send, generation, names)
        if (refused := await asyncio.shield(taking)) is not None:
            raise refused

    async def _settle(self, owner: Owner, stored: StoredReply, conversation_id: str, given: Outputs) -> None:
        await self._sessions.history(owner, stored, conversation_id, limit=1)
        for call_id, content in given.by_call.items():
            answer = Result(call_id=call_id, content=content)
            await self._sessions.answer_call(owner, stored, conversation_id, answer)

    async def note(self, owner: Owner, place: Place, note: Note) -> None:
        """Keeps how a response was asked for. Raises NotFound, StoreDown."""
        noted = encode_note(note)
        if not await self._sessions.kept.note(owner, place.conversation_id, place.turn_id, noted):
            raise NotFound("The conversation was deleted before the response began.")

    async def follow(self, owner: Owner, kept: Kept) -> StoredReply:
        """Reads a response from its beginning on, as it is written. Raises Refused."""
        record = kept.turn.record
        stored = StoredReply(turn_id=record.turn_id, model=kept.note.response.model)
        position = Position(kept.turn.epoch, record.accepted_seq)
        try:
            await self._sessions.resume(owner, stored, kept.place.conversation_id, position, ref=None)
        except BaseException:
            self.forget(stored)
            raise
        return stored

    def forget(self, stored: StoredReply) -> None:
        """Its reader is gone, and it is written on."""
        stored.closed = True
        self._sessions.disconnect(stored)

    def leave(self, owner: Owner, stored: StoredReply, conversation_id: str) -> None:
        """Its reader is gone: it ends with what that one was handed."""
        if not stored.is_over:
            self.stop(owner, conversation_id, stored.turn_id or stored.follows)
        self.forget(stored)

    def stop(self, owner: Owner, conversation_id: str, turn_id: str) -> None:
        """Decides the end of a response, wherever it is written."""
        cancel = Cancel(conversation_id=conversation_id, turn_id=turn_id)
        if self._sessions.cancel(owner, cancel) is None:
            task: asyncio.Task[object] = asyncio.ensure_future(self._stop_elsewhere(owner, cancel))
            self._cancelling.add(task)
            task.add_done_callback(self._cancelling.discard)

    async def _stop_elsewhere(self, owner: Owner, cancel: Cancel) -> None:
        """Whoever asked has gone: what can't be stopped is told in the log. That it has ended is no trouble."""
        refused = await guarded(self._cancel_elsewhere(owner, cancel))
        if refused is not None and not isinstance(refused, NotFound):
            _log.warning("response not stopped", turn_id=cancel.turn_id, why=refused.code)

    async def _cancel_elsewhere(self, owner: Owner, cancel: Cancel) -> None:
        await self._sessions.cancel_elsewhere(owner, cancel)

    async def cancel(self, owner: Owner, kept: Kept) -> None:
        """Ends a response, and returns when that is told. Raises Refused."""
        if kept.turn.record.done is not None:
            return
        stored = await self.follow(owner, kept)
        try:
            cancel = Cancel(conversation_id=kept.place.conversation_id, turn_id=kept.place.turn_id)
            if self._sessions.cancel(owner, cancel) is None:
                await self._sessions.cancel_elsewhere(owner, cancel)
            async with asyncio.timeout(ENDED_S):
                async for _ in stored:
                    pass
        except TimeoutError:
            return  # its end is decided, and told when the store takes it
        finally:
            self.forget(stored)

    async def delete(self, owner: Owner, kept: Kept) -> None:
        """Takes a response out, and with the last one a conversation that no client named. Raises Refused: Conflict where it was gone on from."""
        place = kept.place.conversation_id
        await self._sessions.take_back(owner, place, kept.place.turn_id)
        is_first = kept.turn.record.parent_id is None
        if is_first and place.startswith(BEGUN_HERE) and await self._sessions.kept.is_empty(owner, place):
            await self._sessions.delete(owner, place, ref=None, subscriber=Nobody())


def not_found(response_id: str) -> Problem:
    """A response that can't be gone on from."""
    why = (
        f'There is no response "{response_id[:160]}" to go on from: it was not kept, or not for you. '
        "Send the whole conversation as `input`."
    )
    return Problem(400, why, code="previous_response_not_found", param="previous_response_id")
