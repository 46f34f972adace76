"""Replies as several APIs send them: a stream of server-sent events, how it ended, and replies of stored conversations."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import msgspec
import structlog

from connections.api.requests import Problem, problem_from_failure
from connections.authentication.caller import Caller
from connections.connection import raise_if_refused
from connections.http import Exchange
from engine import messages
from engine.messages import ChosenToken, TokenLogprob
from engine.vision.image import Image
from sessions.conversation.conversation import refusal_of
from sessions.conversation.history_page import ShownMessage
from sessions.errors import Draining, Forbidden, NotFound, Refused, StoreDown
from sessions.events import (
    Accepted,
    CallState,
    Cause,
    Deleted,
    Delta,
    Done,
    Event,
    Failure,
    Reason,
    Reasoning,
    ShownCall,
    Snapshot,
    Status,
    ToolCall,
    ToolState,
    Usage,
)
from sessions.records import CallRecord, Owner
from sessions.running.ephemeral import MAX_WAITING_BYTES, Piece, ReasoningPiece, TextPiece
from sessions.service import Sessions
from sessions.turn.message_request import Append, GenerationConfig, MessageRequest, OnBusy, Placement
from sessions.turn.tool_calls import CallAnswer, result_text
from sessions.turn.turn import Cancel, NullSubscriber, SentOffsets
from sessions.turn.turn_state import TurnMessageIds

APPEND = Append()
PING_S = 10.0
"""Pause before a ping: proxies and clients take a silent stream for dead."""
SERVER_STOPPING = Failure(
    code=Draining.code, message="The server is shutting down: the reply was interrupted."
)
_OPERATOR_ENDED = Failure(code=Forbidden.code, message="The operator ended this reply.")
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
_FINISH_REASONS: dict[Reason, FinishReason] = {
    Reason.STOP: "stop",
    Reason.TOOLS: "tool_calls",
    Reason.LENGTH: "length",
    Reason.TIMEOUT: "length",
    Reason.FILTERED: "content_filter",
}
P_co = TypeVar("P_co", covariant=True)
P_contra = TypeVar("P_contra", contravariant=True)
R_contra = TypeVar("R_contra", contravariant=True)
_ALREADY_ANSWERED = "These calls were already answered: continue from the reply that followed."
_CONVERSATION_DELETED = "The conversation was deleted while the response was written."
_EVENTS_LOST = "Some events of this reply were lost; fetch it again."
_log = structlog.get_logger("midstream.replies")


class ReplySource(Protocol[P_co]):
    """A reply that is being written, of a stored turn or another."""

    cut_off: Callable[[], None]

    @property
    def turn_id(self) -> str:
        """Its turn's id."""

    @property
    def model(self) -> str:
        """The model that writes it."""

    @property
    def ignored(self) -> tuple[str, ...]:
        """The ignored fields of its request."""

    @property
    def ended(self) -> Done:
        """Its end."""

    def get_nowait(self) -> P_co | None:
        """Return the next piece, or None. Raises StopAsyncIteration at the end."""

    async def __anext__(self) -> P_co: ...


R = TypeVar("R", bound=ReplySource[Any])


class StreamEncoder(Protocol[P_contra, R_contra]):
    """Converts a reply for an endpoint. Each method may return nothing."""

    def open(self) -> bytes:
        """Return what is sent at once."""

    def begin(self, reply: R_contra) -> bytes:
        """Return what is sent once the model has read its prompt, before any text."""

    def piece(self, piece: P_contra) -> bytes:
        """Return a piece of the reply."""

    def end(self, reply: R_contra) -> bytes:
        """Return the end, of any kind; `begin` was called only if a piece came."""

    def fail(self, refused: Refused) -> bytes:
        """Return the end of a reply that can't be sent in full."""

    def ping(self) -> bytes:
        """Return what is sent in a pause."""


async def stream_reply(
    exchange: Exchange, reply: R, encoder: StreamEncoder[Any, R], headers: Mapping[str, str]
) -> None:
    """Send the whole reply. A client that does not read is cut off."""
    reply.cut_off = exchange.cut_off
    await exchange.begin_events(reply.turn_id, headers)
    await _write(exchange, encoder.open())
    try:
        await _send_pieces(exchange, reply, encoder)
        last = encoder.end(reply)
    except Refused as refused:  # its conversation was deleted, or its events were lost
        last = encoder.fail(refused)
    await exchange.write(last, more=False)


async def _send_pieces(exchange: Exchange, reply: R, encoder: StreamEncoder[Any, R]) -> None:
    """Send the pieces. Raises Refused."""
    has_begun = False
    with suppress(StopAsyncIteration):
        while True:
            if (piece := await _next(reply)) is None:
                await _write(exchange, encoder.ping())
                continue
            first = b"" if has_begun else encoder.begin(reply)
            has_begun = True
            await _write(exchange, first + encoder.piece(piece))


async def _next(reply: ReplySource[Any]) -> Any:
    """Return the next piece; None if none comes in time. Raises StopAsyncIteration at the end."""
    if (piece := reply.get_nowait()) is not None:
        return piece
    try:
        async with asyncio.timeout(PING_S):
            return await reply.__anext__()
    except TimeoutError:
        return None


async def _write(exchange: Exchange, part: bytes) -> None:
    if part:
        await exchange.write(part)


def finish_reason(done: Done) -> FinishReason:
    """Return why a reply ended. Raises Problem if it has no regular end."""
    if (problem := problem_at_end(done)) is not None:
        raise problem
    return _FINISH_REASONS[done.reason]


def problem_at_end(done: Done) -> Problem | None:
    """Return why a reply has no regular end; None if it has one."""
    if done.reason in _FINISH_REASONS:
        return None
    by_operator = done.cancel is not None and done.cancel.cause is Cause.OPERATOR
    return problem_from_failure(done.error or (_OPERATOR_ENDED if by_operator else SERVER_STOPPING))


class LikelyToken(msgspec.Struct, frozen=True):
    """A token and the natural logarithm of its probability. Its bytes may be a part of a character; null: no text."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None


class ReplyToken(LikelyToken, frozen=True):
    """A token of a reply, and the likeliest ones at its place."""

    top_logprobs: tuple[LikelyToken, ...]


def reply_token(token: ChosenToken) -> ReplyToken:
    """Return a token with its log-probability."""
    chosen = _likely(token.chosen)
    return ReplyToken(chosen.token, chosen.logprob, chosen.bytes, tuple(map(_likely, token.top)))


def _likely(token: TokenLogprob) -> LikelyToken:
    return LikelyToken(token.token, token.logprob, None if token.raw is None else tuple(token.raw))


def needs_approval(call: CallRecord | ShownCall) -> bool:
    """Return whether a server tool's call needed an approval."""
    return call.where == "server" and call.needs == "approval"


def waits_for_client(call: CallRecord | ShownCall) -> bool:
    """Return whether a call waits for its client."""
    if needs_approval(call):
        return call.state is CallState.WAITING
    return call.where == "client" and not call.state.is_settled


def approval_id(call: ShownCall | ServerToolCall) -> str:
    """Return the id of a call's approval: it names the arguments that were shown, so no others can be approved."""
    return f"{call.call_id}.{call.args_sha256}"


class ServerToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call in its current state. `args`: the text of a JSON object; `args_sha256`: its hash.

    `needs_approval`: a user has to allow it. `output`: what the model reads of an ended call.
    `expires_at`: Unix milliseconds, if it waits for a client.
    """

    call_id: str
    name: str
    args: str
    args_sha256: str
    needs_approval: bool
    state: CallState = CallState.WAITING
    output: str = ""
    expires_at: int | None = None

    @classmethod
    def of(cls, call_event: ToolCall | ShownCall) -> ServerToolCall:
        """Make one from an event, or from the history."""
        call = cls(
            call_id=call_event.call_id,
            name=call_event.name,
            args=call_event.args,
            args_sha256=call_event.args_sha256,
            needs_approval=call_event.needs == "approval",
            expires_at=call_event.expires_at,
        )
        return call if isinstance(call_event, ToolCall) else call.after(call_event)

    @property
    def waits(self) -> bool:
        """Whether it waits for an approval."""
        return self.needs_approval and self.state is CallState.WAITING

    def after(self, now: ToolState | ShownCall) -> ServerToolCall:
        """Return the call after a change."""
        output = result_text(now) if now.state.is_settled else self.output
        return msgspec.structs.replace(self, state=now.state, output=output)


class _PendingPiece(msgspec.Struct):
    """A waiting piece. `off`: code points of text or reasoning before it, in the reply of `turn_id`."""

    piece: Piece | ServerToolCall
    off: int
    turn_id: str


class _TurnProgress:
    """The progress of one turn. `before`: the end of the one before it. `calls`: by id; None for a client's call."""

    def __init__(self, before: Done | None = None) -> None:
        self.done: Done | None = None
        self.calls: dict[str, ServerToolCall | None] = {}
        self.received = [0, 0]  # of its text and of its reasoning
        self.sent: SentOffsets | None = None
        self._before = before

    def end(self, done: Done) -> None:
        """Set its end; the tokens of the turns before it are added."""
        usage = done.usage if self._before is None else sum_usage(self._before.usage, done.usage)
        self.done = msgspec.structs.replace(done, usage=usage)

    @property
    def continues(self) -> bool:
        """Whether no call needs the client: another turn follows by itself."""
        return bool(self.calls) and all(
            call is not None and not call.needs_approval for call in self.calls.values()
        )

    @property
    def is_idle(self) -> bool:
        """Whether nothing happens without the client: all calls that the server ran have ended."""
        ran = (call for call in self.calls.values() if call is not None and not call.waits)
        return all(call.state.is_settled for call in ran)


class StoredReply:
    """A `Subscriber` that follows one turn, and the turns after it while the server runs all of their calls.

    Iterate it for its pieces; then `ended` is its end. If a call waits for the client, the reply ends; the
    client's answer begins another one. `turn_id`: the current turn; empty until one that `follows` another's calls is accepted.
    """

    def __init__(self, *, turn_id: str = "", follows: str = "", model: str = "") -> None:
        self.turn_id = turn_id
        self.follows = follows
        self.model = model
        self.ignored: tuple[str, ...] = ()
        self.closed = False
        self.cut_off: Callable[[], None] = lambda: None  # a reader that takes all at once is never late
        self.accepted = asyncio.Event()
        self._end: Done | Refused | None = None
        self._pending: deque[_PendingPiece] = deque()
        self._progress = _TurnProgress()
        self._changed = asyncio.Event()

    @property
    def is_written(self) -> bool:
        """Whether a turn of the reply may still run: no end was published here."""
        return not isinstance(self._end, Done)

    def check(self) -> None:
        """Raise Refused if nothing more can be sent."""
        if isinstance(self._end, Refused):
            raise self._end

    @property
    def ended(self) -> Done:
        """The end, with the tokens of all turns. Raises RuntimeError if there is none yet."""
        if self._end is None or isinstance(self._end, Refused):
            raise RuntimeError("The reply has not ended.")
        return self._end

    def publish(
        self,
        event: Event,
        made_at: float | None = None,  # noqa: ARG002 - nobody measures it here
        sent: SentOffsets | None = None,
    ) -> None:
        """Take an event of the conversation."""
        match event:
            case Accepted() if event.turn_id == self.turn_id or (
                self.follows and event.follows == self.follows
            ):
                self._on_accepted(event)
            case Delta() | Reasoning() if event.turn_id == self.turn_id:
                self._progress.sent = sent
                self._receive_text(event.text, event.off, is_reasoning=isinstance(event, Reasoning))
            case ToolCall() if event.turn_id == self.turn_id:
                self._add_call(event)
            case ToolState() if event.turn_id == self.turn_id:
                self._update_call(event)
            case Status(state="fallback") if event.turn_id == self.turn_id:
                self.model = event.model or self.model
            case Snapshot():
                if event.turn_id == self.turn_id:
                    self._progress.sent = sent
                self._apply_snapshot(event)
            case Done() if self._ends_this_turn(event):
                self._on_done(event)
            case Deleted():
                self._fail(NotFound(_CONVERSATION_DELETED))
            case _:
                return  # a gap, too: a snapshot follows it

    def understands(self, event: Event) -> bool:  # noqa: ARG002 - all of them
        """Return True: takes all events."""
        return True

    def withdraw(self, turn_id: str, chars: int, reasoning_off: int) -> None:
        """Drop what waits beyond the cut."""
        left = [
            _truncated(waiting, chars, reasoning_off) if waiting.turn_id == turn_id else waiting
            for waiting in self._pending
        ]
        self._pending = deque(one for one in left if one is not None)

    def get_nowait(self) -> Piece | ServerToolCall | None:
        """Return the oldest waiting piece, or None. Raises StopAsyncIteration at the end, Refused after a loss."""
        if self._pending:
            taken = self._pending.popleft()
            if (sent := self._progress.sent) is not None and taken.turn_id == self.turn_id:
                match taken.piece:
                    case TextPiece(text):
                        sent.text = max(sent.text, taken.off + len(text))
                    case ReasoningPiece(text):
                        sent.reasoning = max(sent.reasoning, taken.off + len(text))
            return taken.piece
        self.check()
        if self._end is not None:
            raise StopAsyncIteration
        return None

    def _ends_this_turn(self, done: Done) -> bool:
        """Return whether `done` ends the current turn, or the following one, which could not run."""
        return done.turn_id == self.turn_id or (bool(self.follows) and done.follows == self.follows)

    def _fail(self, why: Refused) -> None:
        """End the reply with a refusal."""
        self._end = why
        self.accepted.set()
        self._changed.set()

    def _on_accepted(self, begun: Accepted | Done) -> None:
        self.turn_id, self.model = begun.turn_id, begun.model or self.model
        if self._progress.done is not None:
            self._progress = _TurnProgress(self._progress.done)
        self.follows = ""
        self.accepted.set()

    def _receive_text(self, text: str, off: int, *, is_reasoning: bool) -> None:
        """Take the new part of a text."""
        received = self._progress.received
        known = received[is_reasoning]
        text = text[max(0, known - off) :]
        if not text:
            return
        received[is_reasoning] = max(off, known) + len(text)
        last = self._pending[-1] if self._pending else None
        kind = ReasoningPiece if is_reasoning else TextPiece
        if last is not None and isinstance(last.piece, kind) and last.turn_id == self.turn_id:
            last.piece = msgspec.structs.replace(last.piece, text=last.piece.text + text)
        else:
            self._put(kind(text), max(off, known))
        self._changed.set()
        waiting = (one.piece for one in self._pending)
        texts = (one.text for one in waiting if isinstance(one, TextPiece | ReasoningPiece))
        if sum(map(len, texts)) > MAX_WAITING_BYTES // 4:  # code points of any turn
            self._pending.clear()
            self.cut_off()

    def _put(self, piece: Piece | ServerToolCall, off: int) -> None:
        self._pending.append(_PendingPiece(piece, off, self.turn_id))
        self._changed.set()

    def _add_call(self, call: ToolCall | ShownCall) -> None:
        if call.call_id in self._progress.calls:
            return
        if call.where == "client":
            self._progress.calls[call.call_id] = None
            self._put(messages.ToolCall(call.call_id, call.name, call.args), call.off)
            return
        now = ServerToolCall.of(call)
        self._progress.calls[call.call_id] = now
        begun = msgspec.structs.replace(now, state=CallState.WAITING, output="")
        self._put(begun, call.off)
        if now.state.is_settled:
            self._put(now, call.off)

    def _update_call(self, moved: ToolState) -> None:
        call = self._progress.calls.get(moved.call_id)
        if call is None or call.state.is_settled:
            return
        self._progress.calls[moved.call_id] = call = call.after(moved)
        if call.state.is_settled and not call.needs_approval:
            self._put(call, 0)
        self._check_end()

    def _apply_snapshot(self, snapshot: Snapshot) -> None:
        """Take the reply so far from a snapshot, after a gap."""
        if snapshot.turn_id != self.turn_id:
            still_waits = not snapshot.turn_id and bool(snapshot.calls)
            if self.follows and not still_waits:  # the snapshot may be of another turn
                self._fail(StoreDown(_EVENTS_LOST))
            return
        self._receive_text(snapshot.reasoning, 0, is_reasoning=True)
        if not isinstance(snapshot.text, msgspec.UnsetType):
            self._receive_text(snapshot.text, 0, is_reasoning=False)
        for call in snapshot.calls:
            self._add_call(call)

    def _on_done(self, done: Done) -> None:
        if done.turn_id != self.turn_id:
            if (
                done.chars or done.reasoning_chars or done.open
            ):  # the turn was accepted, but that was not published here
                self._fail(StoreDown(_EVENTS_LOST))
                return
            self._on_accepted(done)
        self.model = done.model or self.model
        self._progress.end(done)
        self._check_end()

    def _check_end(self) -> None:
        """End the reply once its turn has ended, unless the next turn, a part of it, follows without the client."""
        progress = self._progress
        if (done := progress.done) is None:
            return
        if done.reason is Reason.TOOLS and progress.continues:
            self.follows = self.turn_id
        elif done.reason is not Reason.TOOLS or progress.is_idle:
            self._end = done
            self._changed.set()

    def __aiter__(self) -> StoredReply:
        return self

    async def __anext__(self) -> Piece | ServerToolCall:
        while (piece := self.get_nowait()) is None:
            self._changed.clear()
            await self._changed.wait()
        return piece


def _truncated(waiting: _PendingPiece, chars: int, reasoning_off: int) -> _PendingPiece | None:
    """Return what a cut keeps of a waiting piece; None: nothing."""
    piece = waiting.piece
    if not isinstance(piece, TextPiece | ReasoningPiece):
        return waiting if waiting.off <= chars else None
    kept = (reasoning_off if isinstance(piece, ReasoningPiece) else chars) - waiting.off
    if kept <= 0:
        return None
    waiting.piece = msgspec.structs.replace(piece, text=piece.text[:kept])
    return waiting


def sum_usage(one: Usage, other: Usage) -> Usage:
    """Return the tokens of two turns that are one reply to their client."""
    return Usage(
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        cached_tokens=one.cached_tokens + other.cached_tokens,
        generated_tokens=one.generated_tokens + other.generated_tokens,
        sent_tokens=one.sent_tokens + other.sent_tokens,
        wasted_tokens=one.wasted_tokens + other.wasted_tokens,
        reasoning_tokens=one.reasoning_tokens + other.reasoning_tokens,
    )


async def newest_messages(
    sessions: Sessions, owner: Owner, conversation_id: str, limit: int
) -> list[ShownMessage]:
    """Return a conversation's newest messages; none if it is new. Raises StoreDown."""
    reader = NullSubscriber()
    try:
        return (await sessions.history(owner, reader, conversation_id, limit=limit)).page.messages
    except NotFound:
        return []
    finally:
        sessions.disconnect(reader)


class StoredTurns:
    """Begins and ends stored turns. `answered_code`: for answers that were all given before."""

    answered_code: ClassVar[str] = "conflict"

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self._cancelling: set[asyncio.Task[object]] = set()

    async def message(
        self,
        caller: Caller,
        conversation_id: str,
        content: str,
        images: Sequence[Image] = (),
        *,
        kind: str,
        place: Placement = APPEND,
        on_busy: OnBusy = "enqueue",
        untitled: bool = True,
    ) -> MessageRequest:
        """Return a message once its images are stored. `kind`: begins its id. Raises Refused.

        Its turn continues without a reader, since another request answers its calls; `abandon` cancels it.
        """
        await self.sessions.images.keep(caller.owner, *images, group=caller.group)
        return MessageRequest(
            client_msg_id=f"{kind}_{secrets.token_hex(12)}",
            conversation_id=conversation_id,
            content=content,
            images=tuple(image.digest for image in images),
            shown=tuple((image.at, image.detail) for image in images),
            place=place,
            on_busy=on_busy,
            on_disconnect="continue",
            group=caller.group,
            client_id=caller.client.client_id,
            untitled=untitled,
        )

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
        """Await `starting`, then the acceptance. Raises Refused."""
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
        await raise_if_refused(self.sessions.turns.send(owner, stored, send, generation, names))

    async def _answer_calls(
        self, owner: Owner, stored: StoredReply, conversation_id: str, answers: Sequence[CallAnswer]
    ) -> None:
        await self.sessions.history(owner, stored, conversation_id, limit=1)
        answered = await self.sessions.answer_calls(owner, conversation_id, answers)
        if not all(one.already for one in answered):
            return
        waits = await self.sessions.kept.awaits_calls(owner, conversation_id, stored.follows)
        if not waits and not stored.turn_id:  # the next turn was accepted for an earlier request
            raise Problem(409, _ALREADY_ANSWERED, code=self.answered_code)

    def forget(self, stored: StoredReply) -> None:
        """Forget a reader that left; its turn continues."""
        stored.closed = True
        self.sessions.disconnect(stored)

    def abandon(self, owner: Owner, stored: StoredReply, conversation_id: str) -> None:
        """Cancel the turn of a reader that left: it ends with what the reader received."""
        if stored.is_written:
            self.stop(owner, conversation_id, stored.turn_id or stored.follows)
        self.forget(stored)

    def stop(self, owner: Owner, conversation_id: str, turn_id: str) -> None:
        """Stop a turn, on any replica; if its calls are open, stop the turn that follows it."""
        cancel = Cancel(conversation_id=conversation_id, turn_id=turn_id)
        if self.sessions.turns.cancel(owner, cancel) is None:
            task: asyncio.Task[object] = asyncio.ensure_future(self._cancel_on_other_replica(owner, cancel))
            self._cancelling.add(task)
            task.add_done_callback(self._cancelling.discard)

    async def _cancel_on_other_replica(self, owner: Owner, cancel: Cancel) -> None:
        """Cancel elsewhere. The client is gone, so a failure is logged, unless the turn has ended."""
        refused = await refusal_of(self.sessions.cancel_elsewhere(owner, cancel))
        if refused is not None and not isinstance(refused, NotFound):
            _log.warning("reply cancellation failed", turn_id=cancel.turn_id, why=refused.code)
