"""Turns without a conversation: the messages are the client's own, nothing is stored, and nobody else sees the reply.

They are turns like others all the same: counted, filtered, measured, stopped within one engine step, and drained.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import assert_never

import msgspec
import structlog

from engine.door import Engine, Stream
from engine.errors import EngineLost, EngineUnavailable
from engine.messages import Chunk, Finished, Message, Params, Prefilling, Queued, Request, Retried, Started
from sessions.admission import Admission
from sessions.ending import note_end
from sessions.ephemeral_reply import CONFIRM_S, EphemeralReply
from sessions.errors import ContextOverflow
from sessions.events import Cause, Failure, Reason
from sessions.filtered_reply import FilteredReply, Released
from sessions.observer import Observer
from sessions.policy import Policy, SystemPrompt
from sessions.prompting import as_refusals, refuse_unserved
from sessions.records import Owner
from sessions.requests import asked_of_the_engine
from sessions.run import Pace
from sessions.running import Outcome, failure_of, outcome_of
from sessions.turn import EngineCount, Names, Turn, TurnIds

_log = structlog.get_logger("midstream.turn")


class Ask(msgspec.Struct, frozen=True):
    """All that the model is to read, and how it is to answer. Empty system messages count as none."""

    messages: tuple[Message, ...]
    params: Params = Params()


class EphemeralTurns:
    """The turns without a conversation that run here. `tasks` must be set, to the group that they run in, first."""

    def __init__(self, *, engine: Engine, policy: Policy, admission: Admission, observer: Observer) -> None:
        self._engine = engine
        self._system_prompt = policy.system_prompt
        self._filters = policy.filters
        self._admission = admission
        self._observer = observer
        self._live: set[EphemeralReply] = set()
        self._emptied = asyncio.Event()
        self.tasks: asyncio.TaskGroup

    async def answer(self, owner: Owner, ask: Ask) -> EphemeralReply:
        """Begins a turn; its reader cancels it when it leaves. Raises Refused."""
        self._admission.enter()
        names = Names.new()
        reply = EphemeralReply(
            Turn(TurnIds(conversation_id="", turn_id=names.turn_id, reply_id=names.reply_id))
        )
        self._live.add(reply)
        try:
            request = await self._request(reply.turn_id, owner, ask)
        except BaseException:
            self._forget(reply)
            raise
        reply.turn.accept(now=monotonic())
        self.tasks.create_task(self._run(reply, request, owner))
        return reply

    async def drain(self, within_s: float) -> None:
        """Lets running turns end within a time, then ends them as interrupted; a reader that is late holds nothing up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._all_ended()
        for reply in self._live:
            reply.cancel(Cause.DRAIN)
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * CONFIRM_S):
                await self._all_ended()

    async def _all_ended(self) -> None:
        while self._live:
            self._emptied.clear()
            await self._emptied.wait()

    def _forget(self, reply: EphemeralReply) -> None:
        self._live.discard(reply)
        self._admission.leave()
        if not self._live:
            self._emptied.set()

    async def _request(self, turn_id: str, owner: Owner, ask: Ask) -> Request:
        """What the engine is asked. Raises Refused."""
        await self._filters.check(*(message.content for message in ask.messages))
        messages = tuple(one for one in ask.messages if one.role != "system" or one.content)
        named = "\n".join(message.content for message in messages if message.role == "system")
        system = SystemPrompt(named, self._system_prompt)
        if system.is_shared:
            messages = (Message("system", system.operators), *messages)
        await self._refuse_too_long(messages, ask.params)
        return asked_of_the_engine(
            turn_id,
            messages,
            ask.params,
            owner=owner,
            conversation_id=_resemblance(messages),
            system=system,
        )

    async def _refuse_too_long(self, messages: Sequence[Message], params: Params) -> None:
        """What the client wants to be read is never shortened. Raises ContextOverflow, BadParams, Overloaded, EngineDown."""
        with as_refusals():
            facts = await self._engine.ready()
            refuse_unserved(params, facts)
            window = facts.context_tokens
            tokens = await self._engine.count_tokens(messages)
        if tokens >= window:
            raise ContextOverflow(tokens=tokens, limit=window - 1)

    async def _run(self, reply: EphemeralReply, request: Request, owner: Owner) -> None:
        try:
            outcome = await self._outcome(reply, request)
            done = reply.turn.end(outcome.reason, seq=0, now=monotonic(), error=outcome.error)
            reply.finish(done)
            note_end(self._observer, done, owner)
        except Exception:  # noqa: BLE001 - a task's boundary: nobody else notices
            _log.exception("turn not ended", turn_id=reply.turn_id)
        finally:
            self._forget(reply)

    async def _outcome(self, reply: EphemeralReply, request: Request) -> Outcome:
        pace = Pace(self._observer, reply.turn.accepted_at or monotonic())
        try:
            return await self._generate(reply, request, pace)
        except (EngineLost, EngineUnavailable) as loss:
            return Outcome(Reason.INTERRUPTED, failure_of(loss))
        except Exception:  # noqa: BLE001 - a task's boundary: it ends this turn alone
            reply.stop_engine()
            incident = secrets.token_hex(4)
            _log.exception("turn failed", turn_id=reply.turn_id, incident=incident)
            failure = Failure(code="internal", message=f"An internal error, number {incident}.")
            return Outcome(Reason.ERROR, failure)

    async def _generate(self, reply: EphemeralReply, request: Request, pace: Pace) -> Outcome:
        try:
            return await self._attempt(reply, request, pace)
        except EngineLost:
            if reply.turn.off or reply.turn.is_over:
                raise
        again = msgspec.structs.replace(request, request_id=f"{request.request_id}.1")
        return await self._attempt(reply, again, pace)

    async def _attempt(self, reply: EphemeralReply, request: Request, pace: Pace) -> Outcome:
        if reply.turn.is_over:
            reply.turn.count = EngineCount(generated_tokens=0, steps_after=0)
            return Outcome(Reason.CANCELLED)
        stream = reply.stream = self._engine.generate(request)
        try:
            async with asyncio.timeout(None) as reply.limit:
                return await _read(reply, stream, self._filters.reply(), pace)
        except TimeoutError:
            if reply.limit is None or not reply.limit.expired():
                raise
            return Outcome(Reason.CANCELLED if reply.turn.is_over else Reason.FILTERED)
        finally:
            reply.limit = None


async def _read(reply: EphemeralReply, stream: Stream, text: FilteredReply, pace: Pace) -> Outcome:
    """Takes the engine's outputs to the last one, and hands on what the filters let through."""
    filtered = False
    async for output in stream:
        match output:
            case Started():
                reply.turn.start(
                    prompt_tokens=output.prompt_tokens,
                    cached_tokens=output.cached_tokens,
                    now=monotonic(),
                )
            case Chunk():
                filtered = filtered or _release(
                    reply, text.feed(output.text, output.tokens, output.logprobs), pace
                )
            case Finished():
                outcome = outcome_of(reply.turn, output)
                filtered = filtered or _release(reply, text.finish(), pace)
                return Outcome(Reason.FILTERED) if filtered else outcome
            case Queued() | Retried() | Prefilling():
                pass
            case _:
                assert_never(output)
    raise EngineLost("The engine's stream has no end.")


def _release(reply: EphemeralReply, released: Released, pace: Pace) -> bool:
    """Hands on what a filter lets through; whether it ends the reply there."""
    if reply.put(released):
        pace.delta(monotonic())
    if released.filtered:
        reply.stop_engine()
    return released.filtered


def _resemblance(messages: Sequence[Message]) -> str:
    """What the turns of one chat have in common, and few other chats do: where there are several engines, one keeps its state."""
    first_user = next((place for place, one in enumerate(messages) if one.role == "user"), len(messages))
    beginning = msgspec.json.encode(messages[: first_user + 1])
    return f"\x00{hashlib.sha256(beginning).hexdigest()}"
