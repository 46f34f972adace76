"""Turns without a conversation: the client sends all messages, nothing is stored, and nobody else sees the reply.

Otherwise they are ordinary turns: counted, filtered, measured, stopped within one engine step, and drained.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from time import monotonic
from typing import Any

import msgspec
import structlog

from engine.api import Engine, has_feature
from engine.messages import (
    PLAIN,
    ChosenToken,
    Message,
    ModelFacts,
    Params,
    Prefilling,
    Queued,
    ReplySpec,
    Request,
    Retried,
    Started,
    ToolCall,
    ToolCallOutput,
)
from engine.served_models import ServedModel
from sessions.conversation.conversation import BackgroundTasks
from sessions.errors import BadParams, ContextOverflow
from sessions.events import Cause, Done, Reason
from sessions.filters.chain import ReleasedText
from sessions.generation import Generator, TokenLatency
from sessions.limits.shares import Admission, Admitted, Subject
from sessions.observer import Observer
from sessions.records import Client, Owner, with_model
from sessions.running.runner import client_of, report_end
from sessions.running.turn_list import ListedTurn
from sessions.store.images import SHOWN_BYTES
from sessions.turn.policy import Policy
from sessions.turn.prompt import (
    ModelChoice,
    SystemPrompt,
    as_refusals,
    client_key,
    engine_request,
    refuse_oversized,
    refuse_unsupported,
)
from sessions.turn.turn import CONFIRM_S, EngineWait
from sessions.turn.turn_state import TurnIds, TurnMessageIds, TurnState

MAX_WAITING_BYTES = 1024 * 1024
"""The same bound as on a socket."""


class EphemeralReply:
    """Iterates over a reply's pieces; `done` is its end, set before the iteration ends. It is the turn's `ReplyListener`.

    `requested`: the model that was asked for; `model`: the one that answers. `ignored`: fields of the request that this one can't
    follow and that the operator lets it ignore. `stop`: the stop string that ended it, where one did and the engine reports it;
    set with `done`.

    `streams`: its reader gets the text as it is written, and not at the end.

    `cut_off` is called if a late reader exceeds the bound: what waits is dropped, and the turn stopped.
    """

    def __init__(self, turn: TurnState, latency: TokenLatency, *, streams: bool = False) -> None:
        self.turn = turn
        self.engine = EngineWait()
        self.done: Done | None = None
        self.requested = ""
        self.model = ""
        self.ignored: tuple[str, ...] = ()
        self.stop: str | None = None
        self.cut_off: Callable[[], None] = _never_late
        self._latency = latency
        self._waiting = ReplyBuffer()
        self._changed = asyncio.Event()
        self._seq = 0
        self._streams = streams

    @property
    def turn_id(self) -> str:
        """The turn's id."""
        return self.turn.ids.turn_id

    @property
    def chars_per_s(self) -> float | None:
        """The pace of its text: the model's default if it `streams`, else unpaced."""
        return None if self._streams else 0.0

    @property
    def paces_thoughts(self) -> bool:
        """Whether its reasoning has that pace, too."""
        return True

    @property
    def ended(self) -> Done:
        """The end. Raises RuntimeError if there is none yet."""
        if self.done is None:
            raise RuntimeError("The reply has not ended.")
        return self.done

    def cancel(self, cause: Cause = Cause.DISCONNECT) -> None:
        """Decide the end, unless it was decided, and ask the engine to stop. Synchronous."""
        cut = self.turn.cancel(cause, sent_off=self.turn.off, seen_off=None, now=monotonic())
        if cut is not None:
            self.engine.stop()

    def report(self, report: Queued | Retried | Prefilling | Started) -> None:
        """Ignored: its reader gets no progress."""

    def retry(self) -> None:
        """Ignored: its reader gets no retries."""

    def fall_back(self, model: str) -> None:
        """Note that another model answers: later pieces carry its name."""
        self.model = model

    @property
    def fallback(self) -> str:
        """The fallback that answers, or empty."""
        return "" if self.model == self.requested else self.model

    async def add_text(self, released: ReleasedText) -> None:
        """Hand text to the reader, unless the end is decided."""
        if await self._accepts_more():
            seq, now = self._next()
            self.turn.extend(released.text, tokens=released.tokens, seq=seq, now=now)
            self._waiting.put(TextPiece(released.text, released.logprobs))

    async def add_reasoning(self, released: ReleasedText) -> None:
        """Hand on reasoning, as `add_text` does text."""
        if await self._accepts_more():
            seq, now = self._next()
            self.turn.add_reasoning(tokens=released.tokens, seq=seq, now=now)
            self._waiting.put(ReasoningPiece(released.text))

    async def call(self, called: ToolCallOutput) -> None:
        """Hand on a call, as `add_text` does text."""
        if await self._accepts_more():
            seq, now = self._next()
            self.turn.called(tokens=called.tokens, seq=seq, now=now)
            self._waiting.put(ToolCall(called.call_id or new_call_id(), called.name, called.arguments))

    def finish(self, done: Done, *, stop: str | None = None) -> None:
        """Set the end."""
        self.done, self.stop = done, stop
        self._changed.set()

    def get_nowait(self) -> Piece | None:
        """Return the oldest waiting piece, or None. Raises StopAsyncIteration at the end."""
        if (taken := self._waiting.take()) is not None:
            return taken
        if self.done is not None:
            raise StopAsyncIteration
        return None

    async def _accepts_more(self) -> bool:
        """Return whether a piece may still be handed on: the end is not decided, and the reader is not too late."""
        if self._waiting.bytes > MAX_WAITING_BYTES and not self.turn.is_over:
            await asyncio.sleep(0)  # a reader that is on time takes it now
            if self._waiting.bytes > MAX_WAITING_BYTES:
                self._give_up()
        return not self.turn.is_over

    def _next(self) -> tuple[int, float]:
        """Return the number and the time of a piece that is handed on now."""
        now = monotonic()
        self._seq += 1
        self._changed.set()
        self._latency.delta(now)
        return self._seq, now

    def _give_up(self) -> None:
        self._waiting.clear()
        self.cancel()
        self.cut_off()

    def __aiter__(self) -> EphemeralReply:
        return self

    async def __anext__(self) -> Piece:
        while (piece := self.get_nowait()) is None:
            self._changed.clear()
            await self._changed.wait()
        return piece


def new_call_id() -> str:
    """Return an id for a call without one."""
    return f"call_{secrets.token_hex(12)}"


def _never_late() -> None:
    """A reader that takes all at once is never late."""


MAX_PIECE_LOGPROBS = 64
"""Most tokens of a piece: their log-probabilities may be twenty times as long as the text, and encoding them blocks others."""
_LIKELY_BYTES = 192
_CALL_BYTES = 256
_PIECE_BYTES = 64
"""Memory of a call besides its texts."""


class TextPiece(msgspec.Struct, frozen=True):
    """Text, maybe empty, and log-probabilities of tokens whose text has been sent by now."""

    text: str
    logprobs: tuple[ChosenToken, ...] = ()


class ReasoningPiece(msgspec.Struct, frozen=True):
    """Reasoning, never empty."""

    text: str


Piece = TextPiece | ReasoningPiece | ToolCall


class ReplyBuffer:
    """Keeps the order; text and reasoning merge with their neighbours while the reader is late. `bytes`: approximate memory."""

    def __init__(self) -> None:
        self._pieces: deque[Piece] = deque()
        self.bytes = 0

    def put(self, piece: Piece) -> None:
        """Add a piece."""
        self._pieces.append(piece)
        self.bytes += _size(piece)

    def take(self) -> Piece | None:
        """Return the oldest piece, or None. Many log-probabilities of a text follow in later pieces, perhaps without text."""
        if not self._pieces:
            return None
        first = self._pieces[0]
        if isinstance(first, ToolCall):
            return self._pop()
        run: list[Any] = []
        while self._pieces and type(self._pieces[0]) is type(first):
            run.append(self._pop())
        text = "".join(piece.text for piece in run)
        if isinstance(first, ReasoningPiece):
            return ReasoningPiece(text)
        logprobs = tuple(one for piece in run for one in piece.logprobs)
        if rest := logprobs[MAX_PIECE_LOGPROBS:]:
            self._pieces.appendleft(later := TextPiece("", rest))
            self.bytes += _size(later)
        return TextPiece(text, logprobs[:MAX_PIECE_LOGPROBS])

    def _pop(self) -> Piece:
        piece = self._pieces.popleft()
        self.bytes -= _size(piece)
        return piece

    def clear(self) -> None:
        """Drop all."""
        self._pieces.clear()
        self.bytes = 0


def _size(piece: Piece) -> int:
    match piece:
        case TextPiece(text, logprobs):
            return (
                _PIECE_BYTES
                + sys.getsizeof(text)
                + sum(_LIKELY_BYTES * (1 + len(token.top)) for token in logprobs)
            )
        case ReasoningPiece(text):
            return _PIECE_BYTES + sys.getsizeof(text)
        case ToolCall(call_id, name, arguments):
            return _CALL_BYTES + sum(map(sys.getsizeof, (call_id, name, arguments)))


AFFINITY_CHARS = 4096
"""Characters of each message that tell chats apart: the event loop waits while they are read."""

_log = structlog.get_logger("midstream.turn")


class EphemeralRequest(msgspec.Struct, frozen=True):
    """The messages for the model, and how to generate the reply. Empty system messages are ignored.

    `model`: the requested one, by name or alias; None: the default. `affinity`: requests with the same one go to one engine;
    empty: it follows from the first messages. `user`: the application's user; users share no cached prompts.

    `group`: its sender's key or address, for which it counts as well as for its owner; `client_id`: of the client whose tokens it
    uses. `ignored`: fields that its endpoint passed over. `streams`: the text is sent as it is written.
    """

    messages: tuple[Message, ...]
    params: Params = Params()
    group: str = ""
    client_id: str = ""
    model: str | None = None
    affinity: str = ""
    user: str = ""
    spec: ReplySpec = PLAIN
    ignored: tuple[str, ...] = ()
    streams: bool = False

    @property
    def image_bytes(self) -> int:
        """Bytes of the images for the model, which are in memory until the turn's end."""
        return sum(len(image.data) for message in self.messages for image in message.images)


class _PreparedRequest(msgspec.Struct, frozen=True):
    """A request to the engine. `requested`: the requested model; `ignored`: ignored fields."""

    request: Request
    requested: str
    ignored: tuple[str, ...]
    prompt_tokens: int


class _RunningReply(msgspec.Struct, frozen=True):
    """The owner of a turn, and its slots."""

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
        """Begin a turn; a reader that leaves has to cancel it. Raises Refused."""
        reply = self._open(owner, ask)
        try:
            prepared = await self._prepared(owner, ask, reply.turn_id)
        except BaseException:
            self._forget(reply)
            raise
        self._begin(reply, prepared, client_of(owner, ask.client_id))
        return reply

    @contextmanager
    def reading_images(self, owner: Owner, group: str) -> Iterator[None]:
        """While images are read for a turn, count as one with the most that a prompt may show. Raises Refused."""
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

    def _open(self, owner: Owner, ask: EphemeralRequest) -> EphemeralReply:
        """Return an admitted turn. Raises Draining, Overloaded."""
        admitted = self._enter(owner, ask)
        names = TurnMessageIds.new()
        turn = TurnState(TurnIds(conversation_id="", turn_id=names.turn_id, reply_id=names.reply_id))
        reply = EphemeralReply(turn, TokenLatency(self._observer, turn), streams=ask.streams)
        self._live[reply] = _RunningReply(owner, admitted)
        return reply

    def _enter(self, owner: Owner, ask: EphemeralRequest) -> Admitted:
        return self._admission.enter(Subject(str(owner), ask.group), image_bytes=ask.image_bytes)

    def _begin(self, reply: EphemeralReply, prepared: _PreparedRequest, client: Client) -> None:
        reply.requested, reply.ignored = prepared.requested, prepared.ignored
        reply.model = prepared.request.model
        self._live[reply].admitted.end_acceptance()
        reply.turn.accept(now=monotonic())
        self._tasks.begin(self._run(reply, prepared.request, client))

    def _forget(self, reply: EphemeralReply) -> None:
        self._live.pop(reply).admitted.leave()
        if not self._live:
            self._emptied.set()

    async def _prepared(self, owner: Owner, ask: EphemeralRequest, turn_id: str = "") -> _PreparedRequest:
        """Return the request to the engine. Raises Refused."""
        requested = self._choice.requested(ask.model)
        await self._filters.check(ask.messages, ask.spec)
        messages = tuple(one for one in ask.messages if one.role != "system" or one.content)
        named = "\n".join(message.content for message in messages if message.role == "system")
        system = SystemPrompt(named, self._policy.system_prompt)
        if system.is_shared:
            messages = (Message("system", system.operators), *messages)
        model, spec, tokens = await self._model_for(
            messages, ask, requested, client_key(str(owner), ask.group)
        )
        request = engine_request(
            turn_id,
            messages,
            ask.params,
            spec=spec,
            owner=str(owner),
            group=ask.group,
            conversation_id=_affinity_key(ask.affinity, messages),
            system=system,
            model=model,
            fallbacks=self._choice.fallbacks(requested, model),
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
        round_spec = spec_in_round(self._policy, ask.spec, messages)

        async def fits(model: ServedModel) -> tuple[str, ReplySpec, int]:
            with as_refusals():
                facts = await model.engine.ready()
                spec = spec_for_model(self._policy, round_spec, facts)
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


def spec_for_model(policy: Policy, spec: ReplySpec, facts: ModelFacts) -> ReplySpec:
    """Return the spec for a model: without tools if it can't call them and the operator has them ignored.

    A spec that requires a call keeps them, and is refused by its check.
    """
    can_not = spec.tool_choice == "auto" and not has_feature(facts, "tools", "auto")
    if spec.tools and can_not and policy.unsupported_tools == "ignore":
        return msgspec.structs.replace(spec, tools=())
    return spec


def spec_in_round(policy: Policy, spec: ReplySpec, messages: Sequence[Message]) -> ReplySpec:
    """Return the spec after a client's own messages: `tool_choice` none at the limit of calling replies.

    Raises BadParams if the reply then has to call, or the operator refuses unsupported tools.
    """
    if not spec.shown_tools or _rounds(messages) < policy.tools.max_rounds:
        return spec
    if spec.tool_choice != "auto" or policy.unsupported_tools == "refuse":
        raise BadParams(
            f"`tools` can't be called any more: {policy.tools.max_rounds} replies to the last message of the user "
            "did, and this server allows no more (`max_tool_rounds`).",
            field="tools",
        )
    return msgspec.structs.replace(spec, tool_choice="none")


def _rounds(messages: Sequence[Message]) -> int:
    """Return the number of replies to the user's last message that call tools."""
    replies = takewhile(lambda message: message.role != "user", reversed(messages))
    return sum(bool(message.calls) for message in replies)
