"""`POST /v1/ag-ui`: runs and their events. A run is a turn without a conversation, or a part of a thread that is kept here."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import ClassVar

import msgspec
from starlette.responses import Response
from starlette.routing import BaseRoute

from connections.api.agui.requests import (
    Payload,
    ResumeEntry,
    RunInput,
    RunMessage,
    RunTool,
    ask_of,
    names_of,
    run_input,
)
from connections.api.endpoint import (
    PageRoutes,
    RequestContext,
    SingleReplyEndpoint,
    ignored_fields,
    ignored_header,
)
from connections.api.replies import (
    FinishReason,
    ReplySource,
    ServerToolCall,
    StoredReply,
    StoredTurns,
    approval_id,
    finish_reason,
    needs_approval,
    newest_messages,
    problem_at_end,
    stream_reply,
    waits_for_client,
)
from connections.api.requests import Problem, invalid, invalid_field, is_conversation_id, problem_of
from connections.authentication.caller import Caller, can_reconnect
from connections.http import EndpointName, Exchange, forbidden_origin_message, sse
from connections.protocol.base import Limits
from connections.protocol.errors import field_message
from connections.protocol.params import server_tool
from engine.messages import Message, ToolCall
from engine.served_models import ServedModel
from sessions.conversation.history_page import ShownMessage
from sessions.errors import Refused
from sessions.events import CallState, Reason, ShownCall
from sessions.limits.slots import on_behalf_of
from sessions.running.ephemeral import EphemeralReply, Piece, ReasoningPiece, TextPiece
from sessions.service import Sessions
from sessions.turn.message_request import GenerationConfig, OfferedTool
from sessions.turn.tool_calls import CallAnswer, Decision, Result

PAGE = 20
"""Newest messages of a thread to read."""
_SEPARATOR = "\n\n"
_CLOSED_REASONS = {
    CallState.DENIED: "was already answered: the call was denied.",
    CallState.EXPIRED: "was not answered in time. The call was not run.",
    CallState.CANCELLED: "refers to a cancelled call.",
}
_payload = msgspec.json.Decoder(Payload).decode
_encode = msgspec.json.Encoder().encode
_APPROVAL_SCHEMA = msgspec.Raw(
    b'{"type":"object","properties":{"approved":{"type":"boolean"},"editedArgs":{"type":"object",'
    b'"description":"Full replacement of the arguments."}},"required":["approved"]}'
)
VERSION = "1.0"


class AguiEndpoint(SingleReplyEndpoint[RunInput]):
    """Answers runs."""

    endpoint: ClassVar[EndpointName] = EndpointName.AG_UI

    def __init__(self, sessions: Sessions, request_context: RequestContext) -> None:
        super().__init__(sessions, request_context)
        self._threads = StoredThreads(sessions)

    async def answer(
        self, exchange: Exchange, caller: Caller, request: RunInput, body_lease: ExitStack
    ) -> None:
        """Answer a run of a thread that the client keeps, or that is kept here. Raises Refused."""
        if not await self._threads.has(caller, request):
            await super().answer(exchange, caller, request, body_lease)
            return
        model = self.request_context.model(request.model, caller.grant)
        limits = await self.request_context.limits(model)
        await self.request_context.count(caller)
        with on_behalf_of(caller.store_group):
            run = await self._threads.begin(caller, request, model, limits)
        body_lease.close()
        stored = run.stored
        try:
            encoder = AguiEncoder(stored.turn_id, request, run.calls)
            await stream_reply(exchange, stored, encoder, ignored_header(stored))
        finally:
            self._threads.abandon(caller.owner, stored, request.thread_id)

    read = staticmethod(run_input)
    names = staticmethod(names_of)
    turn_request = staticmethod(ask_of)

    def refusal(self, refused: Refused) -> Response:
        """Return the event that would have ended the run, with an HTTP status."""
        return _refusal(problem_of(refused))

    async def send_reply(self, exchange: Exchange, request: RunInput, reply: EphemeralReply) -> None:
        """Send a run as a stream of events."""
        encoder = AguiEncoder(reply.turn_id, request)
        await stream_reply(exchange, reply, encoder, ignored_header(reply))


def agui_routes(sessions: Sessions, request_context: RequestContext, pages: PageRoutes) -> list[BaseRoute]:
    """Return the route."""
    endpoint = AguiEndpoint(sessions, request_context)
    return [pages.route("/v1/ag-ui", endpoint, "POST", refusal=_foreign_origin)]


def _refusal(problem: Problem) -> Response:
    response = problem.response()
    response.body = msgspec.json.encode(error_of(problem))
    response.headers["content-length"] = str(len(response.body))
    return response


def _foreign_origin(origin: str | None) -> Response:
    return _refusal(Problem(403, forbidden_origin_message(origin), code="forbidden"))


class StoredRun(msgspec.Struct, frozen=True):
    """A run of a thread that is kept. `calls`: those the previous run asked about, with outcomes."""

    stored: StoredReply
    calls: tuple[ServerToolCall, ...] = ()


class StoredThreads(StoredTurns):
    """Begins runs of threads that are kept, since they call server tools: a thread is a conversation.

    A run is one or more of its turns, or a part of one. An interrupt is a call that waits for an approval. The next run
    answers it by its id, which stands for the arguments that were shown. So only the allowed arguments run, once, whoever
    repeats the answer.
    """

    answered_code: ClassVar[str] = "interrupt_answered"

    async def has(self, caller: Caller, request: RunInput) -> bool:
        """Return whether a run's thread is kept here: it uses server tools, or answers an interrupt. Raises StoreDown."""
        if request.props.server_tools is not None:
            return True
        if not request.resume or not can_reconnect(caller) or not is_conversation_id(request.thread_id):
            return False
        approval_calls = {
            approval_id(call)
            for call in _approval_calls(await self._recent_messages(caller, request.thread_id))
        }
        return any(entry.interrupt_id in approval_calls for entry in request.resume)

    async def begin(self, caller: Caller, request: RunInput, model: ServedModel, limits: Limits) -> StoredRun:
        """Begin a run, with the user's last message or with answers to calls. Raises Refused."""
        _check_storable(caller, request)
        shown = await self._recent_messages(caller, request.thread_id)
        last = shown[-1] if shown else None
        answers = _answers(request, () if last is None else last.calls or (), _approval_calls(shown))
        if last is None or not answers:
            return StoredRun(await self._send_message(caller, request, model, limits))
        conversation_id = request.thread_id
        stored = await self.answer(caller.owner, conversation_id, last.turn_id, answers, model=model.name)
        try:
            shown = await self._recent_messages(caller, conversation_id)
        except BaseException:
            self.abandon(caller.owner, stored, conversation_id)
            raise
        approval_calls = _approval_calls([one for one in shown if one.turn_id == last.turn_id])
        return StoredRun(stored, tuple(map(ServerToolCall.of, approval_calls)))

    async def _recent_messages(self, caller: Caller, thread_id: str) -> list[ShownMessage]:
        return await newest_messages(self.sessions, caller.owner, thread_id, PAGE)

    async def _send_message(
        self, caller: Caller, request: RunInput, model: ServedModel, limits: Limits
    ) -> StoredReply:
        """Begin a run with the user's last message. Raises Refused."""
        last = request.messages[-1] if request.messages else RunMessage("")
        if last.role != "user":
            why = "must end with a user message, or with the results of all pending calls."
            raise invalid_field("messages", why)
        server_tools = self._server_tools(request)
        placeholder_tools = [
            RunTool(one.tool.name) for one in server_tools[:1]
        ]  # so that any `tool_choice` finds tools
        tools = request.tools or placeholder_tools
        if request.props.parallel_tool_calls is False and tools:
            field = "forwardedProps.parallel_tool_calls"
            why = "must not be false for a stored thread, where a reply may call several tools."
            raise invalid_field(field, why, code="unsupported_parameter")
        run_input = msgspec.structs.replace(request, messages=[last], context=None, tools=tools)
        ask = ask_of(run_input, limits)
        (message,) = ask.messages
        client_tools = [OfferedTool(tool=tool) for tool in ask.spec.tools] if request.tools else []
        names = {one.tool.name for one in server_tools}
        if any(one.tool.name in names for one in client_tools):
            raise invalid_field("tools", "must not reuse the name of a server tool.")
        send = await self.message(
            caller, request.thread_id, message.content, message.images, kind="agui", untitled=False
        )
        generation = GenerationConfig(
            ask.params,
            _system(request, limits),
            model.name,
            tools=(*client_tools, *server_tools),
            tool_choice=ask.spec.tool_name if ask.spec.tool_choice == "named" else ask.spec.tool_choice,
            reasoning=ask.spec.reasoning,
            paces_thoughts=True,
            only=tuple(sorted(caller.grant.models)),
            user=request.thread_id,
        )
        stored = await self.send(caller, send, generation)
        stored.ignored = ignored_fields(model, ask, names_of(request))
        return stored

    def _server_tools(self, request: RunInput) -> tuple[OfferedTool, ...]:
        """Return the server tools that a run names. Raises Problem."""
        box, names = self.sessions.tools, request.props.server_tools or []
        field = "forwardedProps.server_tools"
        for number, name in enumerate(names):
            if name != "*" and box.tool(name) is None:
                raise invalid_field(f"{field}[{number}]", "names an unknown tool of this server.")
        found = [tool for tool in box.offered() if "*" in names or tool.name in names]
        return tuple(map(server_tool, found))


def _check_storable(caller: Caller, request: RunInput) -> None:
    """Raise Problem if the thread can't be kept."""
    if not can_reconnect(caller):
        why = (
            "Threads with server tools are stored, so an API key is required; without authentication, "
            "a random key of at least 22 characters."
        )
        raise invalid("forwardedProps.server_tools", why)
    if not is_conversation_id(request.thread_id):
        why = "must have 1 to 128 letters, digits, or any of `.`, `_`, `:` and `-` if its thread is stored."
        raise invalid_field("threadId", why)


def _system(request: RunInput, limits: Limits) -> str | None:
    """Return the system messages and the context of the run; None: unchanged."""
    given = [one for one in request.messages if one.role in ("system", "developer")]
    if not given and not request.context:
        return None
    plain = msgspec.structs.replace(
        request, messages=[*given, RunMessage("user", content=msgspec.Raw(b'""'))]
    )
    messages: Sequence[Message] = ask_of(msgspec.structs.replace(plain, context=None), limits).messages
    words = [one.content for one in messages if one.role == "system"]
    words += [f"{one.description}: {one.value}" for one in request.context or ()]
    return _SEPARATOR.join(word for word in words if word)


def _answers(
    request: RunInput, calls: Sequence[ShownCall], approval_calls: Sequence[ShownCall]
) -> tuple[CallAnswer, ...]:
    """Return a run's answers to the calls that its thread ended with. `approval_calls`: those that needed approval.

    Raises Problem.
    """
    answers: dict[str, CallAnswer] = {}
    for number, entry in enumerate(request.resume or ()):
        named = (one for one in approval_calls if approval_id(one) == entry.interrupt_id)
        call = next(named, None)
        if call is not None:
            _check_new(call.call_id, answers, f"resume[{number}]")
            answers[call.call_id] = _decision(entry, call, f"resume[{number}]")
    waiting = list(filter(waits_for_client, calls))
    for number, message in enumerate(request.messages):
        if message.role == "tool" and any(one.call_id == message.tool_call_id for one in waiting):
            call_id = message.tool_call_id or ""
            _check_new(call_id, answers, f"messages[{number}]")
            answers[call_id] = _result(message)
    missing = [one for one in waiting if one.call_id not in answers]
    if missing:
        why = (
            f'The thread has {len(missing)} pending calls, the first of "{missing[0].name}": answer approvals '
            "in `resume`, and send the other results as messages with the role tool."
        )
        raise invalid("resume", why, code="interrupts_open")
    if request.resume and not answers:
        raise invalid_field("resume", "names no pending call of the thread.", code="interrupt_not_found")
    return tuple(answers.values())


def _approval_calls(messages: Sequence[ShownMessage]) -> list[ShownCall]:
    """Return the calls in messages that needed an approval."""
    return [call for one in messages for call in one.calls or () if needs_approval(call)]


def _check_new(call_id: str, answers: Collection[str], where: str) -> None:
    """Raise Problem if a call has two answers."""
    if call_id in answers:
        raise invalid_field(where, "answers a call that an earlier entry answers.")


def _decision(entry: ResumeEntry, call: ShownCall, where: str) -> Decision:
    """Return the decision in `entry`. Raises Problem."""
    if call.state is not CallState.WAITING:
        why = field_message(
            where, _CLOSED_REASONS.get(call.state, "was already answered: the call was approved.")
        )
        code = "interrupt_expired" if call.state is CallState.EXPIRED else "interrupt_answered"
        raise Problem(409, why, code=code, param=where)
    if entry.status == "cancelled":
        return Decision(call_id=call.call_id, args_sha256=call.args_sha256, allow=False)
    try:
        payload = _payload(entry.payload)
    except msgspec.ValidationError:
        field = f"{where}.payload"
        why = "must be an object with `approved`, and `editedArgs` to run it with other arguments."
        raise invalid_field(field, why) from None
    edited = None if payload.edited_args is None else msgspec.json.encode(payload.edited_args).decode()
    return Decision(call_id=call.call_id, args_sha256=call.args_sha256, allow=payload.approved, args=edited)


def _result(message: RunMessage) -> Result:
    call_id = message.tool_call_id or ""
    if message.error:
        return Result(call_id=call_id, error=message.error)
    try:
        text = msgspec.json.decode(message.content, type=str)
    except msgspec.ValidationError:
        text = bytes(message.content).decode()
    return Result(call_id=call_id, content=text)


class AguiEncoder:
    """Converts one run. Each stretch of text or reasoning, and each server tool's result, is a message.

    `calls`: those that the previous run asked about, with their outcomes.
    """

    def __init__(self, turn_id: str, request: RunInput, calls: Sequence[ServerToolCall] = ()) -> None:
        self._name = turn_id.removeprefix("turn_")
        self._thread_id = request.thread_id
        self._run_id = request.run_id
        self._is_legacy = request.protocol_version is None
        self._messages = 0
        self._open_kind: type[TextPiece | ReasoningPiece] | None = None
        self._parent_id = self._id("msg")
        self._calls: list[str] = []
        self._answered_calls = calls
        self._interrupts: list[Interrupt] = []

    def open(self) -> bytes:
        """Return the run's start, and the outcomes of the calls that it answered."""
        started = RunStarted(thread_id=self._thread_id, run_id=self._run_id, protocol_version=VERSION)
        return _encoded(started, *map(self._result, self._answered_calls))

    def begin(self, reply: ReplySource[object]) -> bytes:  # noqa: ARG002 - the run has begun
        """Return nothing."""
        return b""

    def piece(self, piece: Piece | ServerToolCall) -> bytes:
        """Return what a piece adds to the open message, or a message of its own."""
        match piece:
            case TextPiece(text):
                return _encoded(*self._text_events(text)) if text else b""
            case ReasoningPiece(text):
                return _encoded(*self._reasoning_events(text))
            case ToolCall():
                self._calls.append(piece.call_id)
                return _encoded(*self._call_events(piece))
            case ServerToolCall():
                return _encoded(*self._server_call(piece))

    def end(self, reply: ReplySource[object]) -> bytes:
        """Return the end of the run with its usage, or its failure."""
        done = reply.ended
        usage = _usage(reply)
        if (problem := problem_at_end(done)) is not None:
            return _encoded(*self._close(), error_of(problem, usage))
        finished = RunFinished(
            thread_id=self._thread_id,
            run_id=self._run_id,
            outcome=self._outcome(done.reason),
            usage=usage,
            metadata=Ended(finish_reason(done)),
        )
        return _encoded(*self._close(), finished)

    def _outcome(self, reason: Reason) -> Success | Interrupted | Cancelled | None:
        """Return the outcome. A reply that was cut off is not a success: nobody may take it for whole."""
        if reason not in (Reason.STOP, Reason.TOOLS):
            return None if self._is_legacy else Cancelled()
        if self._interrupts:
            return Interrupted(interrupts=tuple(self._interrupts))
        return Success(pending_tool_call_ids=() if self._is_legacy else tuple(self._calls))

    def fail(self, refused: Refused) -> bytes:
        """Return a failure outside the reply."""
        return _encoded(*self._close(), error_of(problem_of(refused)))

    def ping(self) -> bytes:
        """Return a comment, which is not an event."""
        return b":\n\n"

    def _text_events(self, text: str) -> Iterator[RunEvent]:
        if self._open_kind is not TextPiece:
            yield from self._close()
            self._parent_id = self._next_id("msg")
            self._open_kind = TextPiece
            yield MessageEvent(type="TEXT_MESSAGE_START", message_id=self._parent_id, role="assistant")
        yield MessageEvent(type="TEXT_MESSAGE_CONTENT", message_id=self._parent_id, delta=text)

    def _reasoning_events(self, text: str) -> Iterator[RunEvent]:
        if self._open_kind is not ReasoningPiece:
            yield from self._close()
            name = self._next_id("rsn")
            self._open_kind = ReasoningPiece
            yield MessageEvent(type="REASONING_START", message_id=name)
            yield MessageEvent(type="REASONING_MESSAGE_START", message_id=name, role="reasoning")
        yield MessageEvent(type="REASONING_MESSAGE_CONTENT", message_id=self._id("rsn"), delta=text)

    def _call_events(self, call: ToolCall) -> Iterator[RunEvent]:
        yield from self._close()
        yield CallStart(
            tool_call_id=call.call_id, tool_call_name=call.name, parent_message_id=self._parent_id
        )
        yield CallArgs(tool_call_id=call.call_id, delta=call.arguments)
        yield CallEnd(tool_call_id=call.call_id)

    def _server_call(self, call: ServerToolCall) -> Iterator[RunEvent]:
        """Yield the events of a server tool's call: it begins, and may wait for an approval; or it has ended."""
        if call.state.is_settled:
            yield self._result(call)
            return
        yield from self._call_events(ToolCall(call.call_id, call.name, call.args))
        if call.waits:
            self._interrupts.append(_interrupt(call))

    def _result(self, call: ServerToolCall) -> RunEvent:
        message_id = f"tool_{self._name}_{call.call_id}"
        return CallResult(message_id=message_id, tool_call_id=call.call_id, content=call.output, role="tool")

    def _close(self) -> Iterator[RunEvent]:
        """End the open message."""
        if self._open_kind is TextPiece:
            yield MessageEvent(type="TEXT_MESSAGE_END", message_id=self._parent_id)
        elif self._open_kind is ReasoningPiece:
            name = self._id("rsn")
            yield MessageEvent(type="REASONING_MESSAGE_END", message_id=name)
            yield MessageEvent(type="REASONING_END", message_id=name)
        self._open_kind = None

    def _next_id(self, kind: str) -> str:
        """Return a new message's id."""
        self._messages += 1
        return self._id(kind)

    def _id(self, kind: str) -> str:
        return f"{kind}_{self._name}_{self._messages}"


def error_of(problem: Problem, usage: tuple[RunUsage, ...] = ()) -> RunError:
    """Return a problem as an event."""
    return RunError(message=str(problem), code=problem.code, usage=usage)


def _interrupt(call: ServerToolCall) -> Interrupt:
    at = call.expires_at
    return Interrupt(
        id=approval_id(call),
        reason="tool_call",
        message=f"May {call.name} run?",
        tool_call_id=call.call_id,
        response_schema=_APPROVAL_SCHEMA,
        expires_at=None if at is None else datetime.fromtimestamp(at / 1000, UTC).isoformat(),
    )


def _usage(reply: ReplySource[object]) -> tuple[RunUsage, ...]:
    """Return the usage; nothing if no prompt was read."""
    counted = reply.ended.usage
    if not counted.prompt_tokens:
        return ()
    usage = RunUsage(
        model=reply.model,
        input_tokens=counted.prompt_tokens,
        output_tokens=counted.generated_tokens,
        total_tokens=counted.prompt_tokens + counted.generated_tokens,
        reasoning_tokens=counted.reasoning_tokens,
        cached_input_tokens=counted.cached_tokens,
    )
    return (usage,)


def _encoded(*events: RunEvent) -> bytes:
    return b"".join(sse(_encode(event)) for event in events)


class RunEvent(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, tag_field="type"
):
    """The root of all events."""


class RunStarted(RunEvent, frozen=True, kw_only=True, tag="RUN_STARTED"):
    """A run begins."""

    thread_id: str
    run_id: str
    protocol_version: str


class MessageEvent(RunEvent, frozen=True, kw_only=True, tag=False):
    """A message of text (`TEXT_MESSAGE_…`) or reasoning begins, grows by `delta`, or is complete."""

    type: str
    message_id: str
    role: str | msgspec.UnsetType = msgspec.UNSET
    delta: str = ""


class CallStart(RunEvent, frozen=True, kw_only=True, tag="TOOL_CALL_START"):
    """A call begins. `parent_message_id`: the message that it belongs to."""

    tool_call_id: str
    tool_call_name: str
    parent_message_id: str


class CallArgs(RunEvent, frozen=True, kw_only=True, tag="TOOL_CALL_ARGS"):
    """The text of a call's arguments."""

    tool_call_id: str
    delta: str


class CallEnd(RunEvent, frozen=True, kw_only=True, tag="TOOL_CALL_END"):
    """A call is complete."""

    tool_call_id: str


class CallResult(RunEvent, frozen=True, kw_only=True, tag="TOOL_CALL_RESULT"):
    """The outcome of a server tool's call: a message of its own."""

    message_id: str
    tool_call_id: str
    content: str
    role: str


class Interrupt(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A call that waits for an approval. `expires_at`: ISO 8601."""

    id: str
    reason: str
    message: str
    tool_call_id: str
    response_schema: msgspec.Raw
    expires_at: str | None = None


class Interrupted(msgspec.Struct, frozen=True, kw_only=True, tag="interrupt"):
    """A run ended with interrupts. The next run answers all of them."""

    interrupts: tuple[Interrupt, ...]


class Success(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, tag="success"):
    """A run is done. `pending_tool_call_ids`: the client runs these, and sends their results with its next run."""

    pending_tool_call_ids: tuple[str, ...] = ()


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled"):
    """A run was ended before the model was done: by a limit of length or time, or by a filter."""


class RunUsage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Tokens of a run. Cached tokens are a part of the prompt, reasoning tokens a part of the reply."""

    model: str
    input_tokens: int
    output_tokens: int
    total_tokens: int
    reasoning_tokens: int
    cached_input_tokens: int


class Ended(msgspec.Struct, frozen=True, rename="camel"):
    """Why the reply ended, besides the protocol's own fields."""

    finish_reason: FinishReason


class RunFinished(RunEvent, frozen=True, kw_only=True, tag="RUN_FINISHED"):
    """A run is done."""

    thread_id: str
    run_id: str
    outcome: Success | Interrupted | Cancelled | None = None
    usage: tuple[RunUsage, ...]
    metadata: Ended


class RunError(RunEvent, frozen=True, kw_only=True, tag="RUN_ERROR"):
    """A run failed, or was refused. `message` is for people, `code` for programs."""

    message: str
    code: str
    usage: tuple[RunUsage, ...] = ()
