"""Takes clients' answers to the calls of a running exchange: results and decisions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sessions.conversation.conversation import Conversation
from sessions.errors import Conflict, ContentTooLong, NotFound, OwnershipLost, StoreDown
from sessions.events import CallState
from sessions.limits.shares import Subject
from sessions.records import CallRecord
from sessions.replicas.forwarder import Forwarder
from sessions.store.ledger import COPIES
from sessions.store.storage import Storage
from sessions.tool_round import AnswerOutcome, CallStates
from sessions.turn.policy import Policy
from sessions.turn.tool_calls import CallAnswer, Result, ToolCalls, answered
from sessions.turn.turn import Turn, first_of

ATTEMPTS = 3
_CALL_MOVES = "The call is moving to another server; send it again in a moment."


class ToolResultHandler:
    """Handles answers for one replica. Methods raise Refused.

    A repeated answer has the same outcome. One that is too late, or contradicts the stored one, is refused.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        call_states: CallStates,
        forwarder: Forwarder,
        policy: Policy,
    ) -> None:
        self._history = storage.history
        self._ledger = storage.ledger
        self._call_states = call_states
        self._forwarder = forwarder
        self._filters = policy.filters
        self._max_chars = policy.tools.max_chars

    async def answer(self, conversation: Conversation, answer: CallAnswer) -> AnswerOutcome:
        """Return the outcome of an answer, wherever its call is."""
        await self._check(conversation, answer)
        return await self._take(conversation, answer)

    async def answer_all(
        self, conversation: Conversation, answers: Sequence[CallAnswer]
    ) -> list[AnswerOutcome]:
        """Return the outcomes of answers to the calls of one reply. None is taken if one would be refused."""
        for answer in answers:
            await self._check(conversation, answer)
        calls = ToolCalls(await self._calls(conversation, answers))
        for answer in answers:
            calls.put(calls.answered(answer, runner=""))
        return [await self._take(conversation, answer) for answer in answers]

    async def _calls(
        self, conversation: Conversation, answers: Sequence[CallAnswer]
    ) -> tuple[CallRecord, ...]:
        """The answered calls, with all others of their reply if that is live here."""
        found: dict[str, CallRecord] = {}
        for answer in answers:
            live = conversation.calling(answer.call_id)
            here = live.tool_round.of(answer.call_id) if live is not None else None
            if here is not None:
                found |= {call.call_id: call for call in here.records}
            elif (call := await self._history.call(conversation.keys, answer.call_id)) is not None:
                found[call.call_id] = call
            if answer.call_id not in found:
                raise _unknown(answer)
        return tuple(found.values())

    async def _take(self, conversation: Conversation, answer: CallAnswer) -> AnswerOutcome:
        for _ in range(ATTEMPTS):
            if (outcome := await self._here(conversation, answer)) is not None:
                return outcome
            if (runner := await self._forwarder.runner_of(conversation)) is None:
                return await self._known(conversation, answer)
            there = await self._forwarder.request(conversation, runner, answer)
            if there is not None and there.state is not None:
                return AnswerOutcome(there.state, already=there.already)
        raise StoreDown(_CALL_MOVES)

    async def answer_here(self, conversation: Conversation, answer: CallAnswer) -> AnswerOutcome:
        """Return the outcome of an answer that another replica passed on."""
        return await self._here(conversation, answer) or await self._known(conversation, answer)

    async def _here(self, conversation: Conversation, answer: CallAnswer) -> AnswerOutcome | None:
        """Return the outcome; None if no turn here has the call or waits for it."""
        while (live := conversation.calling(answer.call_id)) is not None:
            try:
                if (outcome := await self._call_states.answer(conversation, live, answer)) is not None:
                    return outcome
            except OwnershipLost:  # another replica took it over while this one stalled
                live.tool_round.lose()
                await live.released.wait()
            else:
                await _changed(live)
        return None

    async def _known(self, conversation: Conversation, answer: CallAnswer) -> AnswerOutcome:
        """Return the outcome from the store, for a call that no turn waits for."""
        meta = await self._history.load(conversation.keys)
        call = await self._history.call(conversation.keys, answer.call_id)
        if call is None or meta is None:
            raise _unknown(answer)
        if answered(call, answer) == call:
            return AnswerOutcome(call.state, already=True)
        if meta.running is not None:
            raise StoreDown(_CALL_MOVES)
        raise Conflict("The call was cancelled.")

    async def _check(self, conversation: Conversation, answer: CallAnswer) -> None:
        texts = (answer.content, answer.error) if isinstance(answer, Result) else (answer.args,)
        if any(len(text) > self._max_chars for text in texts if text):
            raise ContentTooLong(f"An answer to a call may have at most {self._max_chars} characters.")
        then = answer.then if isinstance(answer, Result) else None
        follow_up = () if then is None else (then.system, then.clients_spec, then.given)
        await self._filters.check(*texts, *follow_up)
        size = sum(len(text.encode()) for text in texts if text)
        if size := size + (0 if then is None else len(msgspec.json.encode(then))):
            await self._ledger.admit(Subject(str(conversation.owner)), COPIES * size, lifetime_s=0)


class CallOutcome(msgspec.Struct, frozen=True):
    """The outcome of a client's answer to a call. `already`: it was sent before."""

    conversation_id: str
    state: CallState
    already: bool


def _unknown(answer: CallAnswer) -> NotFound:
    return NotFound(f'There is no call "{answer.call_id}" in this conversation.')


async def _changed(live: Turn) -> None:
    """Wait until a turn that could not take answers can, or has ended."""
    await first_of(live.released, *(() if live.turn.is_over else (live.ready,)))
