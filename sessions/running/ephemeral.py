"""Turns without a conversation: the client sends all messages, nothing is stored, and nobody else sees the reply.

Otherwise they are ordinary turns: counted, filtered, measured, stopped within one engine step, and drained.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic

import msgspec
import structlog

from engine.api import Engine
from engine.messages import Message, Params, Request
from engine.reply_spec import PLAIN, ReplySpec
from engine.served_models import ServedModel
from sessions.conversation.engine_requests import client_key, engine_request
from sessions.conversation.tasks import BackgroundTasks
from sessions.errors import ContextOverflow
from sessions.events import Cause, Reason
from sessions.fair_share import Subject
from sessions.observer import Observer
from sessions.records import Client, Owner, with_model
from sessions.running.admission import Admission, Admitted
from sessions.running.ephemeral_reply import EphemeralReply
from sessions.running.replies import ReplySet
from sessions.running.runner import client_of, report_end
from sessions.running.turn_list import ListedTurn
from sessions.store.images import SHOWN_BYTES
from sessions.turn.generator import Generator
from sessions.turn.policy import Policy, SystemPrompt
from sessions.turn.prompt import ModelChoice, as_refusals, refuse_oversized, refuse_unsupported
from sessions.turn.turn import CONFIRM_S
from sessions.turn.turn_state import TokenLatency, TurnIds, TurnMessageIds, TurnState

MAX_SEED = 2**63 - 1
AFFINITY_CHARS = 4096
"""What tells chats apart is looked for in so many characters of each message: the event loop waits for it."""

_log = structlog.get_logger("midstream.turn")


class EphemeralRequest(msgspec.Struct, frozen=True):
    """The messages for the model, and how to generate the reply. Empty system messages are ignored.

    `model`: the requested one, by name or alias; None: the default. `affinity`: requests with the same one go to one engine;
    empty: it follows from the first messages. `user`: whom an application asks for; users share no cached prompts.

    `group`: the key or the address that its sender came by, for which it is counted beside its owner; `client_id`: of the
    client that asks, whom its tokens count for. `replies`: how many are written; where a seed is given, each has the next one.
    `ignored`: fields that its door passed over. `streams`: the text is sent as it is written.
    """

    messages: tuple[Message, ...]
    params: Params = Params()
    group: str = ""
    client_id: str = ""
    model: str | None = None
    affinity: str = ""
    user: str = ""
    spec: ReplySpec = PLAIN
    replies: int = 1
    ignored: tuple[str, ...] = ()
    streams: bool = False

    @property
    def image_bytes(self) -> int:
        """Bytes of the images for the model, which are in memory until the turn's end."""
        return sum(len(image.data) for message in self.messages for image in message.images)


class _PreparedRequest(msgspec.Struct, frozen=True):
    """A request to the engine, before the turn has an id. `requested`: the requested model; `ignored`: ignored fields."""

    request: Request
    requested: str
    ignored: tuple[str, ...]
    prompt_tokens: int


class _RunningReply(msgspec.Struct, frozen=True):
    """The caller of a turn, and its place."""

    owner: Owner
    admitted: Admitted


class EphemeralTurns:
    """The turns without a conversation that run here."""

    def __init__(
        self,
        *,
        engine: Engine,
        policy: Policy,
        admission: Admission,
        observer: Observer,
        tasks: BackgroundTasks,
    ) -> None:
        self._choice = ModelChoice(engine)
        self._policy = policy
        self._filters = policy.filters
        self._generator = Generator(engine, policy.filters, shortens=False)
        self._admission = admission
        self._observer = observer
        self._live: dict[EphemeralReply, _RunningReply] = {}
        self._emptied = asyncio.Event()
        self._tasks = tasks

    async def answer(self, owner: Owner, ask: EphemeralRequest) -> EphemeralReply:
        """Begin a turn; its reader cancels it when it leaves. Raises Refused."""
        return (await self.answers(owner, [ask])).first

    async def answers(self, owner: Owner, requests: Sequence[EphemeralRequest]) -> ReplySet:
        """Begin the turns of all requests, in order; if one is refused, all are. Raises Refused."""
        replies = ReplySet()
        try:
            for ask in requests:
                for _ in range(ask.replies):
                    replies.add(self._open(owner, ask, replies.news))
            prepared = [await self._prepared(owner, ask) for ask in requests]
        except BaseException:
            for reply in replies.all:
                self._forget(reply)
            raise
        unbegun = iter(replies.all)
        for ask, one in zip(requests, prepared, strict=True):
            for number in range(ask.replies):
                self._begin(next(unbegun), one, number, client_of(owner, ask.client_id))
        return replies

    @contextmanager
    def reading_images(self, owner: Owner, group: str) -> Iterator[None]:
        """Count as a turn while images are read for one, as many as a prompt may show. Raises Refused."""
        admitted = self._admission.enter(Subject(str(owner), group), image_bytes=SHOWN_BYTES)
        try:
            yield
        finally:
            admitted.leave()

    async def count(self, owner: Owner, ask: EphemeralRequest) -> int:
        """Return the number of tokens of the prompt; the work counts as a turn meanwhile. Raises Refused."""
        admitted = self._enter(owner, ask)
        try:
            return (await self._prepared(owner, ask)).prompt_tokens
        finally:
            admitted.leave()

    def turns(self) -> Iterator[ListedTurn]:
        """Return the current turns, for an operator."""
        for reply, live in self._live.items():
            yield ListedTurn(
                turn_id=reply.turn_id,
                conversation_id=None,
                owner=live.owner,
                state=reply.turn.state,
                chars=reply.turn.off,
                model=reply.model,
            )

    def cancel(self, turn_id: str) -> bool | None:
        """End a turn for an operator. False: its end was decided before; None: no such turn runs here."""
        reply = next((one for one in self._live if one.turn_id == turn_id), None)
        if reply is None:
            return None
        was_over = reply.turn.is_over
        reply.cancel(Cause.OPERATOR)
        return not was_over

    async def drain(self, within_s: float) -> None:
        """Let running turns end within a time, then end them as interrupted; late readers delay nothing."""
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

    def _open(self, owner: Owner, ask: EphemeralRequest, news: asyncio.Event) -> EphemeralReply:
        """Return an admitted turn. Raises Draining, Overloaded."""
        admitted = self._enter(owner, ask)
        names = TurnMessageIds.new()
        turn = TurnState(TurnIds(conversation_id="", turn_id=names.turn_id, reply_id=names.reply_id))
        reply = EphemeralReply(turn, TokenLatency(self._observer, turn), news, streams=ask.streams)
        self._live[reply] = _RunningReply(owner, admitted)
        return reply

    def _enter(self, owner: Owner, ask: EphemeralRequest) -> Admitted:
        return self._admission.enter(Subject(str(owner), ask.group), image_bytes=ask.image_bytes)

    def _begin(self, reply: EphemeralReply, prepared: _PreparedRequest, number: int, client: Client) -> None:
        """`number`: among the replies to one prompt."""
        reply.requested, reply.ignored = prepared.requested, prepared.ignored
        reply.model = prepared.request.model
        self._live[reply].admitted.end_acceptance()
        reply.turn.accept(now=monotonic())
        request = _numbered(prepared.request, reply.turn_id, number)
        self._tasks.begin(self._run(reply, request, client))

    def _forget(self, reply: EphemeralReply) -> None:
        self._live.pop(reply).admitted.leave()
        if not self._live:
            self._emptied.set()

    async def _prepared(self, owner: Owner, ask: EphemeralRequest) -> _PreparedRequest:
        """Return the request to the engine. Raises Refused."""
        requested = self._choice.requested(ask.model)
        await self._filters.check(ask.messages, ask.spec)
        messages = tuple(one for one in ask.messages if one.role != "system" or one.content)
        named = "\n".join(message.content for message in messages if message.role == "system")
        system = SystemPrompt(named, "" if ask.spec.raw else self._policy.system_prompt)
        if system.is_shared:
            messages = (Message("system", system.operators), *messages)
        model, spec, tokens = await self._model_for(messages, ask, requested, client_key(owner, ask.group))
        request = engine_request(
            "",
            messages,
            ask.params,
            spec=spec,
            owner=owner,
            group=ask.group,
            conversation_id=_affinity_key(ask.affinity, messages),
            system=system,
            answering=self._choice.answering(requested, model),
            user=ask.user,
        )
        ignored = ("tools",) if spec.shown_tools != ask.spec.shown_tools else ()
        return _PreparedRequest(request, requested, (*ignored, *ask.ignored), tokens)

    async def _model_for(
        self, messages: Sequence[Message], ask: EphemeralRequest, requested: str, client: str
    ) -> tuple[str, ReplySpec, int]:
        """Return the model, the spec that it follows, and the prompt's tokens. The client's messages are never shortened.

        Raises ContextOverflow, BadParams, Overloaded, EngineDown.
        """
        round_spec = self._policy.in_round(ask.spec, messages)

        async def fits(model: ServedModel) -> tuple[str, ReplySpec, int]:
            with as_refusals():
                facts = await model.engine.ready()
                spec = self._policy.followed(round_spec, facts)
                refuse_unsupported(ask.params, facts, spec, messages)
                window = facts.context_tokens
                refuse_oversized(messages, facts, spec)
                tokens = await model.engine.count_tokens(messages, client=client, spec=spec)
            if tokens >= window:
                raise ContextOverflow(tokens=tokens, limit=window - 1)
            return model.name, spec, tokens

        return await self._choice.first_that_can(requested, fits)

    async def _run(self, reply: EphemeralReply, request: Request, client: Client) -> None:
        try:
            self._observer.began(reply.turn_id, request.model, reply.turn.accepted_at or monotonic())
            outcome = await self._generator.outcome(reply, request)
            end = reply.turn.end(outcome.reason, seq=0, now=monotonic(), error=outcome.error)
            done = with_model(end, reply.requested, reply.fallback)
            reply.finish(done, stop=outcome.stop if done.reason is Reason.STOP else None)
            report_end(self._observer, done, client)
        except Exception:  # noqa: BLE001 - a task's boundary: nobody else notices
            _log.exception("turn not ended", turn_id=reply.turn_id)
        finally:
            self._forget(reply)


def _numbered(request: Request, turn_id: str, number: int) -> Request:
    """Return the request of one of several replies; a given seed becomes its own."""
    params = request.params
    if params.seed is not None:
        params = msgspec.structs.replace(params, seed=(params.seed + number) % (MAX_SEED + 1))
    return msgspec.structs.replace(request, request_id=turn_id, params=params)


def _affinity_key(affinity: str, messages: Sequence[Message]) -> str:
    """Return what the turns of one chat have in common, so that one of several engines gets them all and reuses its cache."""
    if affinity:
        return f"\x00{hashlib.sha256(affinity.encode(errors='surrogatepass')).hexdigest()}"
    first_user = next((place for place, one in enumerate(messages) if one.role == "user"), len(messages))
    beginning = msgspec.json.encode(
        [
            msgspec.structs.replace(message.without_data(), content=message.content[:AFFINITY_CHARS])
            for message in messages[: first_user + 1]
        ]
    )
    return f"\x00{hashlib.sha256(beginning).hexdigest()}"
