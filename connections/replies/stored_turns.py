"""Turns of conversations for endpoints with one reply a request: begun, continued, and stopped if their reader leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, ClassVar

import structlog

from connections.limits.caller import Caller
from connections.openai.problems import Problem
from connections.replies.stored_reply import StoredReply
from sessions.conversation.conversation import refusal_of
from sessions.errors import NotFound, Refused
from sessions.records import Owner
from sessions.service import Sessions
from sessions.turn.message_request import GenerationConfig, MessageRequest
from sessions.turn.tool_calls import CallAnswer
from sessions.turn.turn import Cancel
from sessions.turn.turn_state import TurnMessageIds

_ALREADY_ANSWERED = "These calls were answered before: continue from the reply that followed."
_log = structlog.get_logger("midstream.replies")


class StoredTurns:
    """Begins and ends stored turns. `answered_code`: for answers that were all given before."""

    answered_code: ClassVar[str] = "conflict"

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self._cancelling: set[asyncio.Task[object]] = set()

    async def send(self, caller: Caller, send: MessageRequest, generation: GenerationConfig) -> StoredReply:
        """Begin a turn with a message; return once it is accepted. Raises Refused."""
        names = TurnMessageIds.new()
        stored = StoredReply(turn_id=names.turn_id, model=generation.model or "")
        sending = self._send(caller.owner, stored, send, generation, names)
        await self._wait_until_accepted(caller.owner, stored, send.conversation_id, sending)
        return stored

    async def answer(
        self,
        owner: Owner,
        conversation_id: str,
        follows: str,
        answers: Sequence[CallAnswer],
        *,
        model: str = "",
    ) -> StoredReply:
        """Answer the calls of a turn; return once the turn that `follows` it is accepted. Raises Refused."""
        stored = StoredReply(follows=follows, model=model)
        answering = self._answer_calls(owner, stored, conversation_id, answers)
        await self._wait_until_accepted(owner, stored, conversation_id, answering)
        return stored

    async def _wait_until_accepted(
        self, owner: Owner, stored: StoredReply, conversation_id: str, starting: Coroutine[Any, Any, None]
    ) -> None:
        """Ask, and wait until the turn is accepted. Raises Refused."""
        try:
            await starting
            await stored.accepted.wait()
            stored.check()
        except Refused:
            self.forget(stored)
            raise
        except BaseException:
            self.abandon(owner, stored, conversation_id)
            raise

    async def _send(
        self,
        owner: Owner,
        stored: StoredReply,
        send: MessageRequest,
        generation: GenerationConfig,
        names: TurnMessageIds,
    ) -> None:
        sending_task = self.sessions.turns.send(owner, stored, send, generation, names)
        if (refused := await asyncio.shield(sending_task)) is not None:
            raise refused

    async def _answer_calls(
        self, owner: Owner, stored: StoredReply, conversation_id: str, answers: Sequence[CallAnswer]
    ) -> None:
        await self.sessions.history(owner, stored, conversation_id, limit=1)
        answered = await self.sessions.answer_calls(owner, conversation_id, answers)
        if not all(one.already for one in answered):
            return
        waits = await self.sessions.kept.awaits_calls(owner, conversation_id, stored.follows)
        if not waits and not stored.turn_id:  # it was accepted before, for an earlier request
            raise Problem(409, _ALREADY_ANSWERED, code=self.answered_code)

    def forget(self, stored: StoredReply) -> None:
        """Forget a reader that left; its turn continues."""
        stored.closed = True
        self.sessions.disconnect(stored)

    def abandon(self, owner: Owner, stored: StoredReply, conversation_id: str) -> None:
        """Cancel the turn of a reader that left: it ends with what the reader was handed."""
        if stored.is_written:
            self.stop(owner, conversation_id, stored.turn_id or stored.follows)
        self.forget(stored)

    def stop(self, owner: Owner, conversation_id: str, turn_id: str) -> None:
        """Decide the end of a turn, on any replica; if its calls are open, the end of the turn that follows it."""
        cancel = Cancel(conversation_id=conversation_id, turn_id=turn_id)
        if self.sessions.turns.cancel(owner, cancel) is None:
            task: asyncio.Task[object] = asyncio.ensure_future(self._cancel_on_other_replica(owner, cancel))
            self._cancelling.add(task)
            task.add_done_callback(self._cancelling.discard)

    async def _cancel_on_other_replica(self, owner: Owner, cancel: Cancel) -> None:
        """Cancel elsewhere. The client is gone, so a failure is logged; a turn that has ended is none."""
        refused = await refusal_of(self._cancel_elsewhere(owner, cancel))
        if refused is not None and not isinstance(refused, NotFound):
            _log.warning("reply cancellation failed", turn_id=cancel.turn_id, why=refused.code)

    async def _cancel_elsewhere(self, owner: Owner, cancel: Cancel) -> None:
        await self.sessions.cancel_elsewhere(owner, cancel)
