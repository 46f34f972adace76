"""Questions of running tools: each is shown on the user's devices, and waits for the first answer.

A question is a part of its call. So it is journalled, survives a reload, and any device can answer it. It ends with its
call; if the replica that runs the call dies, nobody waits for the answer any more.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from functools import partial

import msgspec

from sessions.conversation.conversation import Conversation
from sessions.errors import Filtered
from sessions.events import Question
from sessions.filters.chain import Filters
from sessions.records import QuestionAnswer, digest
from sessions.store.history.codec import now_ms
from sessions.tool_round.call_states import CallStates, Change
from sessions.tools.server_tool import Accepted, Answer, Declined, Dismissed, Elicitation, ToolFailed
from sessions.turn.tool_calls import with_question, withdrawn
from sessions.turn.turn import Turn


class Elicitations:
    """Asks for the calls of one turn. A call asks one question at a time; a second one waits for the first.

    `wait_s`: seconds until a question expires.
    """

    def __init__(
        self,
        conversation: Conversation,
        live: Turn,
        *,
        call_states: CallStates,
        filters: Filters,
        wait_s: float,
    ) -> None:
        self._conversation = conversation
        self._live = live
        self._call_states = call_states
        self._filters = filters
        self._wait_s = wait_s
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._given_up: list[tuple[str, str]] = []  # calls, with the questions whose answers nobody waits for
        self._pending: dict[str, tuple[str, asyncio.Future[Answer]]] = {}

    async def ask(self, call_id: str, elicitation: Elicitation) -> Answer:
        """Return the user's answer. Raises ToolFailed, OwnershipLost, StoreFault."""
        try:
            await self._filters.check(elicitation.message, elicitation.schema)
        except Filtered:
            raise ToolFailed("A filter of this server holds the question back.") from None
        async with self._turns[call_id]:
            answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            question = self._question(elicitation)
            self._pending[call_id] = question.sha256, answer
            try:
                await asyncio.shield(self._change(call_id, partial(with_question, question=question)))
                self.hand_over()
                return await answer
            finally:
                del self._pending[call_id]
                if not answer.done() or answer.cancelled():  # the tool no longer waits for it
                    self._given_up.append((call_id, question.sha256))
                    self._live.tool_round.news.set()

    async def withdraw(self) -> None:
        """Withdraw the questions that tools no longer wait for. Raises OwnershipLost, StoreFault."""
        while self._given_up:
            call_id, sha256 = self._given_up.pop()
            await self._change(call_id, partial(withdrawn, sha256=sha256))

    async def _change(self, call_id: str, change: Change) -> None:
        await self._call_states.change(self._conversation, self._live, call_id, change)

    def hand_over(self) -> None:
        """Hand received answers to the waiting tools. A settled call gets none any more."""
        awaited = self._live.tool_round.awaited
        for call_id, (sha256, waiting) in self._pending.items():
            call = awaited.get(call_id) if awaited is not None else None
            if waiting.done():
                continue
            if call is None or call.state.is_settled:
                waiting.set_result(Dismissed())
            elif call.answer is not None and call.answer.sha256 == sha256:
                waiting.set_result(_answer_result(call.answer))

    def end(self) -> None:
        """Dismiss all open questions: nobody will answer."""
        for _, waiting in self._pending.values():
            if not waiting.done():
                waiting.set_result(Dismissed())

    def _question(self, elicitation: Elicitation) -> Question:
        """Make a question. Its hash is unique: a late answer does not count for the same question asked anew."""
        message, schema = elicitation.message, elicitation.schema
        return Question(
            message=message,
            schema=schema,
            sha256=digest(f"{secrets.token_hex(16)}\n{message}\n{schema}"),
            expires_at=now_ms() + int(self._wait_s * 1000),
        )


def _answer_result(answer: QuestionAnswer) -> Answer:
    if answer.content is not None:
        return Accepted(msgspec.json.decode(answer.content))
    return Dismissed() if answer.is_expired else Declined()
