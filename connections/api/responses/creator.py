"""Begins a response: what of its request can be stored, the turn that writes it, and its encoder."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from connections.api.endpoint import RequestContext
from connections.api.replies import ServerToolCall, StoredReply, needs_approval
from connections.api.requests import (
    MAX_TOOLS,
    Problem,
    invalid,
    invalid_field,
    is_conversation_id,
    with_client_field,
)
from connections.api.responses import schema
from connections.api.responses.encoder import (
    CREATED_PREFIX,
    MAX_NOTE_BYTES,
    ResponseNote,
    ResponseRef,
    ResponsesEncoder,
    ToolLabels,
    approval_id,
    call_item,
    encode_note,
    initial_response,
    list_tools_item,
    new_conversation,
    ref_of_item,
)
from connections.api.responses.parser import (
    OUTPUT,
    ConversationName,
    Creation,
    Item,
    McpServer,
    call_id_in,
    field_names,
    includes_encrypted_reasoning,
    includes_logprobs,
    mcp_servers,
    messages_of,
    namespaces_of,
    response_turn_request,
)
from connections.api.responses.schema import McpItem
from connections.api.responses.store import (
    SEPARATOR,
    CallAnswers,
    ConversationStore,
    Input,
    InsertionPoint,
    ResponseStore,
    StoredResponse,
    UserInput,
    resolve_references,
)
from connections.authentication.caller import Caller, can_reconnect
from connections.http import Exchange
from connections.protocol.base import Limits
from connections.protocol.errors import field_message
from connections.protocol.params import MAX_SYSTEM_CHARS
from engine.messages import Message, Params, ReplySpec
from engine.served_models import ServedModel
from engine.vision.image import together
from sessions.errors import BadParams, Overloaded
from sessions.events import CallState, Cause
from sessions.limits.slots import on_behalf_of
from sessions.records import CallRecord, digest
from sessions.running.ephemeral import EphemeralReply, EphemeralRequest
from sessions.service import Sessions
from sessions.turn.message_request import GenerationConfig, OfferedTool
from sessions.turn.tool_calls import CallAnswer, Decision, Result

T = TypeVar("T")
_NOT_STORABLE = (
    "This request can't be stored: it has assistant messages, calls or more than one kind of input, or its key "
    "is not secret (without authentication, send a random key of at least 22 characters). "
    "Leave `{}` out, or set `store` to false."
)
_MCP_NOT_STORABLE = (
    "MCP servers require stored responses: send an API key (without authentication, a random key of at least 22 "
    "characters), leave `store`, `logprobs` and `parallel_tool_calls` out, and continue with `previous_response_id`."
)
_APPROVALS_OPEN = (
    "The previous response is waiting: answer all of its approvals with `mcp_approval_response`, and send the outputs "
    "of its calls, in one request."
)
_SETTINGS_CHANGED = (
    "The settings can't change after calls: leave `tools` and `instructions` out, or send them as before."
)
_CALLS_RUNNING = "The calls of the previous response are running: continue from the response that follows."
_HISTORY_TOO_LONG = (
    "The history exceeds the context window: set `truncation` to `auto`, or start a new conversation."
)
_NO_MAX_TOOL_CALLS = "`max_tool_calls` is not supported with MCP servers: leave one of the two out."
_GENERATION_FIELDS = (
    "instructions",
    "tools",
    "text",
    "reasoning",
    "max_output_tokens",
    "temperature",
    "top_p",
    "truncation",
)
APPROVAL_RESPONSE = "mcp_approval_response"
_SETTLED_REASONS = {
    CallState.DENIED: "was already answered: the call was denied. Continue from the response that followed.",
    CallState.EXPIRED: "was not answered in time. The call was not run, and the conversation continued.",
    CallState.CANCELLED: "refers to a cancelled call. It was not run.",
}
_ALLOWED = "was already answered: the call was approved. Continue from the response that followed."
_SUMMARY_PROMPT = (
    "Write a summary of the conversation above for an assistant that continues it and can't read it: "
    "what was asked, what is known, what was decided, and what is still to be done. Write the summary alone."
)


class StartedResponse(msgspec.Struct, frozen=True):
    """A response that is being written. `stop` ends it for its client; `abandon`: its reader has left.

    `read`: the messages that its model reads, without instructions, if it is not stored.
    """

    answer: EphemeralReply | StoredReply
    encoder: ResponsesEncoder
    request_id: str
    stop: Callable[[], None]
    abandon: Callable[[], None]
    read: tuple[Message, ...] = ()


class CreationContext(msgspec.Struct, frozen=True):
    """A request for a response. `before`: the messages before its input; `previous`: the stored response with them.

    `servers`: it may call their tools, which run here. `exchange`: None on a socket.
    """

    caller: Caller
    request: Creation
    model: ServedModel
    limits: Limits
    stream_id: str | msgspec.UnsetType
    before: tuple[Message, ...]
    servers: tuple[McpServer, ...] = ()
    previous: StoredResponse | None = None
    exchange: Exchange | None = None

    @property
    def streams(self) -> bool:
        """Whether the reply is sent as it is written: always on a socket, and by HTTP if the client asks for it."""
        return self.exchange is None or bool(self.request.stream)

    @property
    def labels(self) -> ToolLabels:
        """The labels of the servers' tools, and the namespaces of functions."""
        servers = {tool.name: one.label for one in self.servers for tool in one.tools}
        return ToolLabels(servers, namespaces_of(self.request.tools))


class ResponseCreator:
    """Begins responses."""

    def __init__(self, sessions: Sessions, request_context: RequestContext) -> None:
        self.response_store = ResponseStore(sessions)
        self.sessions = sessions
        self._request_context = request_context

    async def create(
        self,
        caller: Caller,
        request: Creation,
        *,
        before: Sequence[Message] | None = None,
        stream_id: str | msgspec.UnsetType = msgspec.UNSET,
        exchange: Exchange | None = None,
    ) -> StartedResponse:
        """Begin a response. `before`: the messages before its input, if they are not stored. Raises Refused.

        `exchange`: None on a socket; by HTTP, long requests are processed outside the event loop.
        """
        model = self._request_context.model(request.model, caller.grant)
        limits = await self._request_context.limits(model)
        request = await resolve_references(self.response_store, caller.owner, request, limits)
        with on_behalf_of(caller.store_group):
            if request.conversation is not None:
                await self._check_exists(caller, _conversation_id(request))
            previous = None
            if before is None:
                previous = await self._previous(caller, request)
            history = tuple(before or ()) if previous is None else previous.messages
            servers = mcp_servers(request.tools or (), self.sessions.tools)
            context = CreationContext(
                caller, request, model, limits, stream_id, history, servers, previous, exchange
            )
            user_input = (
                None
                if before is not None
                else await self._run_in_thread(context, lambda: self._input(context))
            )
            await self._request_context.count(caller)
            if user_input is None:
                return await self._start_unstored(context)
            try:
                return await self._start_stored(context, user_input)
            except Overloaded:  # no more calls may be open: a reply that is not stored leaves none open
                if (
                    not request.tools
                    or request.previous_response_id is not None
                    or request.background
                    or servers
                ):
                    raise
                return await self._start_unstored(context)

    async def _check_exists(self, caller: Caller, conversation_id: str) -> None:
        """Raise Problem for an id of `POST /v1/conversations` that this owner does not have; others begin when used."""
        if conversation_id.startswith(CREATED_PREFIX):
            await ConversationStore(self.response_store).find(caller.owner, conversation_id)

    async def ask(self, caller: Caller, request: Creation, exchange: Exchange) -> EphemeralRequest:
        """Return a response's request as one for a turn without a conversation. Raises Refused."""
        model = self._request_context.model(request.model, caller.grant)
        limits = await self._request_context.limits(model)
        if request.conversation is not None:
            why = "Conversations are not supported here: send `previous_response_id`."
            raise invalid("conversation", why, code="unsupported_parameter")
        request = await resolve_references(self.response_store, caller.owner, request, limits)
        previous = await self._previous(caller, request)
        servers = mcp_servers(request.tools or (), self.sessions.tools)

        def build_request() -> EphemeralRequest:
            user_input, answers = split_approvals(
                request.input
            )  # a model reads results of calls, not approvals
            approval_decisions(answers, None if previous is None else previous.ref, _previous_calls(previous))
            read = msgspec.structs.replace(request, input=user_input)
            return response_turn_request(read, limits, () if previous is None else previous.messages, servers)

        ask = await self._request_context.run_in_thread(exchange, build_request)
        return self._request_context.for_caller(caller, ask, model, field_names())

    async def _previous(self, caller: Caller, request: Creation) -> StoredResponse | None:
        """Return the response that a request continues: the named one, or the one whose calls it answers.

        Raises Problem, StoreDown.
        """
        previous: StoredResponse | None = None
        if request.previous_response_id is not None:
            previous = await self.response_store.previous(caller.owner, request.previous_response_id)
        elif request.conversation is not None and _answers_calls(request):
            previous = await self.response_store.waiting(caller.owner, _conversation_id(request))
        if previous is None:
            return None
        _, decided = split_approvals(request.input)  # requests that answer approvals may leave fields out
        truncation = request.truncation or (previous.note.response.truncation if decided else None)
        if previous.is_cut and truncation != "auto":
            raise invalid("previous_response_id", _HISTORY_TOO_LONG, code="context_length_exceeded")
        return previous

    def _input(self, context: CreationContext) -> Input | None:
        """Return what to store of the request; None: nothing. Raises Problem if it must be, but can't."""
        request, previous = context.request, context.previous
        if request.conversation is not None and request.previous_response_id is not None:
            raise invalid("conversation", "Send either `previous_response_id` or `conversation`, not both.")
        given_items, answers = split_approvals(request.input)
        calls = () if previous is None else previous.open_calls
        previous_calls = _previous_calls(previous)
        decisions = approval_decisions(answers, None if previous is None else previous.ref, previous_calls)
        messages = messages_of(given_items, context.limits, context.before)
        _check_answers(messages, calls, previous_calls)
        user_input = storable_input(
            request, messages, None if previous is None else previous.note, calls, decisions
        )
        if isinstance(user_input, CallAnswers) and previous is not None:
            alike = has_same_settings(request, previous.note.response, answers_approvals=bool(decisions))
            user_input = msgspec.structs.replace(user_input, same_settings=alike)
            if decisions and not alike:
                raise invalid("input", _SETTINGS_CHANGED)
        if user_input is None and any(map(needs_approval, calls)):
            raise invalid("input", _APPROVALS_OPEN, code="approvals_open")
        if not (can_reconnect(context.caller) and _note_fits(context)):
            user_input = None
        if context.servers and request.max_tool_calls is not None:
            raise invalid("max_tool_calls", _NO_MAX_TOOL_CALLS, code="unsupported_parameter")
        if context.servers and user_input is None:
            raise invalid("tools", _MCP_NOT_STORABLE, code="unsupported_parameter")
        for field in ("conversation", "background"):
            if user_input is None and getattr(request, field):
                raise invalid(field, _NOT_STORABLE.format(field), code="unsupported_parameter")
        return user_input

    async def _run_in_thread(self, context: CreationContext, work: Callable[[], T]) -> T:
        """Return the result of work whose duration grows with the request."""
        return (
            work()
            if context.exchange is None
            else await self._request_context.run_in_thread(context.exchange, work)
        )

    async def _start_unstored(self, context: CreationContext) -> StartedResponse:
        """Begin a response that is not stored. Raises Refused."""
        caller, request, before = context.caller, context.request, context.before
        if context.servers:
            raise invalid("tools", _MCP_NOT_STORABLE, code="unsupported_parameter")
        if context.previous is not None:
            before = await self.response_store.with_bytes(caller, context.previous.ref, before)
        turn_request = await self._run_in_thread(
            context, lambda: response_turn_request(request, context.limits, before)
        )
        ask = self._request_context.for_caller(caller, turn_request, context.model, field_names())
        ask = msgspec.structs.replace(ask, streams=context.streams)
        try:
            reply = await self.sessions.ephemeral.answer(caller.owner, ask)
        except BadParams as refused:
            raise with_client_field(refused, field_names()) from None
        name = reply.turn_id.removeprefix("turn_")
        response = msgspec.structs.replace(_response(context, f"resp_{name}"), model=reply.model)
        return StartedResponse(
            reply,
            _response_encoder(context, response, name, context.labels),
            reply.turn_id,
            partial(reply.cancel, Cause.CLIENT),
            reply.cancel,
            ask.messages[1:] if request.instructions else ask.messages,
        )

    async def _start_stored(self, context: CreationContext, user_input: Input) -> StartedResponse:
        """Begin a response as a turn of a conversation. Raises Refused."""
        caller, request, previous = context.caller, context.request, context.previous
        conversation_id = previous.ref.conversation_id if previous else _conversation_id(request)
        system = (
            user_input.system
            if isinstance(user_input, UserInput)
            else previous.note.system
            if previous
            else ""
        )
        try:
            stored = await self._start_turn(context, user_input, conversation_id)
        except BadParams as refused:
            raise with_client_field(refused, field_names()) from None
        ref = ResponseRef(conversation_id, stored.turn_id)
        response = msgspec.structs.replace(
            _response(context, ref.response_id),
            model=stored.model or context.model.name,
            conversation=None if request.conversation is None else schema.ConversationId(conversation_id),
            store=True,
        )
        try:
            note = await self._build_note(context, user_input, ref)
            note = msgspec.structs.replace(note, response=response, system=system)
            await self.response_store.note(caller.owner, ref, note)
        except BaseException:
            self.response_store.abandon(caller.owner, stored, conversation_id)
            raise
        abandon = partial(self.response_store.abandon, caller.owner, stored, conversation_id)
        return StartedResponse(
            stored,
            _response_encoder(context, response, ref.name, note.labels, note.before),
            stored.turn_id,
            lambda: self.response_store.stop(caller.owner, conversation_id, stored.turn_id),
            partial(self.response_store.forget, stored) if request.background else abandon,
        )

    async def _build_note(
        self, context: CreationContext, user_input: Input, ref: ResponseRef
    ) -> ResponseNote:
        """Return the note about server tools: their servers, and the response's first items. Raises StoreDown."""
        previous, note = context.previous, _base_note(context, ref.name)
        if not isinstance(user_input, CallAnswers) or previous is None:
            return note
        before: list[McpItem] = []
        for call in await self.response_store.answered(context.caller.owner, previous):
            approval_request_id = approval_id(ServerToolCall.for_approval(call), previous.ref.name)
            before.append(
                call_item(
                    ServerToolCall.kept(call), ref.name, note.labels, approval_request_id=approval_request_id
                )
            )
        return msgspec.structs.replace(note, before=tuple(before))

    async def _start_turn(
        self, context: CreationContext, user_input: Input, conversation_id: str
    ) -> StoredReply:
        """Begin the turn. Raises Refused."""
        request, previous = context.request, context.previous
        read = msgspec.structs.replace(request, input=split_approvals(request.input)[0])  # without approvals
        turn_request = await self._run_in_thread(
            context, lambda: response_turn_request(read, context.limits, context.before, context.servers)
        )
        ask = self._request_context.for_caller(context.caller, turn_request, context.model, field_names())
        stored_input = (
            user_input
            if isinstance(user_input, UserInput)
            else UserInput("", "" if previous is None else previous.note.system)
        )
        offered = [tool for one in context.servers for tool in one.offered]
        generation = generation_of(request, stored_input, ask.params, ask.spec, offered)
        only = tuple(sorted(context.caller.grant.models))
        generation = msgspec.structs.replace(
            generation, model=context.model.name, only=only, chars_per_s=None if context.streams else 0.0
        )
        if isinstance(user_input, CallAnswers) and previous is not None:
            reply = await self.response_store.continue_with_answers(
                context.caller, user_input, generation, previous
            )
        else:
            reply = await self.response_store.begin(
                context.caller, stored_input, generation, InsertionPoint(conversation_id, previous)
            )
        reply.ignored = ask.ignored
        return reply


def _answers_calls(request: Creation) -> bool:
    """Return whether a request answers calls."""
    user_input = request.input
    return not isinstance(user_input, str) and any(
        item.type in (OUTPUT, APPROVAL_RESPONSE) for item in user_input
    )


def _conversation_id(request: Creation) -> str:
    """Return the conversation in which a response begins or continues. Raises Problem."""
    match request.conversation:
        case None:
            return new_conversation()
        case ConversationName(id=name) | str(name):
            if not is_conversation_id(name):
                why = "`conversation` must have 1 to 128 letters, digits, or any of `.`, `_`, `:` and `-`."
                raise invalid("conversation", why)
            return name


def _response(context: CreationContext, response_id: str) -> schema.Response:
    return initial_response(
        context.request, response_id=response_id, model=context.model.name, created=int(time.time())
    )


def _base_note(context: CreationContext, name: str = "") -> ResponseNote:
    """Return the note of a response without its results of calls, which have a limit of their own."""
    known = ToolLabels() if context.previous is None else context.previous.note.labels
    listed_before = set(known.by_tool.values())
    new = [one for one in context.servers if one.label not in listed_before]
    return ResponseNote(
        _response(context, f"resp_{name}"),
        system="" if context.previous is None else context.previous.note.system,
        labels=ToolLabels(
            known.by_tool | context.labels.by_tool, known.namespaces | context.labels.namespaces
        ),
        before=tuple(list_tools_item(one, f"mcpl_{name}_{number}") for number, one in enumerate(new)),
    )


def _note_fits(context: CreationContext) -> bool:
    """Return whether a response's note fits. Raises Problem if it must, but does not."""
    size = len(encode_note(_base_note(context)))
    if size > MAX_NOTE_BYTES and context.servers:
        why = f"The request and the tools of its MCP servers take {size} bytes of {MAX_NOTE_BYTES}: name fewer in `allowed_tools`."
        raise invalid("tools", why)
    return size <= MAX_NOTE_BYTES


def _previous_calls(previous: StoredResponse | None) -> Sequence[CallRecord]:
    """Return the calls of the response that is continued."""
    return () if previous is None or previous.last.reply is None else previous.last.reply.calls


def _check_answers(
    messages: Sequence[Message], calls: Sequence[CallRecord], previous_calls: Sequence[CallRecord]
) -> None:
    """Raise Problem if an open call has several outputs, or if none is open and an allowed one still runs."""
    allowed = filter(needs_approval, previous_calls)
    if not calls and any(call.state is CallState.RUNNING for call in allowed):
        raise invalid("previous_response_id", _CALLS_RUNNING, code="response_in_progress")
    named = [message.call_id for message in messages if message.role == "tool"]
    for call in calls:
        if named.count(call.call_id) > 1:
            raise invalid("input", f'`input` may have one output of the call "{call.call_id[:160]}".')


def _response_encoder(
    context: CreationContext,
    response: schema.Response,
    name: str,
    labels: ToolLabels,
    before: tuple[McpItem, ...] = (),
) -> ResponsesEncoder:
    return ResponsesEncoder(
        response,
        name=name,
        logprobs=includes_logprobs(context.request),
        encrypts_reasoning=includes_encrypted_reasoning(context.request),
        stream_id=context.stream_id,
        labels=labels,
        before=before,
    )


def storable_input(
    request: Creation,
    given: Sequence[Message],
    before: ResponseNote | None,
    open_calls: Sequence[CallRecord],
    decisions: Sequence[Decision] = (),
) -> Input | None:
    """Return an input as a conversation's next message, or as answers to its calls. None: it can't be stored.

    A conversation has what its user and its model said in turn. Input with a client's reply can't be stored.
    """
    is_one_by_one = bool(request.tools) and request.parallel_tool_calls is False
    if request.store is False or includes_logprobs(request) or is_one_by_one:
        return None
    roles = {message.role for message in given}
    named = [before.system if before is not None else ""]
    if len(system_of(request, UserInput("", named[0]))) > MAX_SYSTEM_CHARS:
        return None
    if open_calls:
        results = [Result(call_id=message.call_id, content=message.content) for message in given]
        answers: tuple[CallAnswer, ...] = (*decisions, *results)
        is_all = {answer.call_id for answer in answers} == {call.call_id for call in open_calls}
        return CallAnswers(answers) if roles <= {"tool"} and is_all else None
    if not roles <= {"user", "system"} or "user" not in roles:
        return None
    user_parts = [(message.content, message.images) for message in given if message.role == "user"]
    content, images = together(user_parts, SEPARATOR)
    named += [message.content for message in given if message.role == "system"]
    user_input = UserInput(content, SEPARATOR.join(text for text in named if text), images)
    if "\0" in content or not (content or images) or len(system_of(request, user_input)) > MAX_SYSTEM_CHARS:
        return None
    return user_input


def system_of(request: Creation, user_input: UserInput) -> str:
    """Return what the model reads first; the instructions are for one response only."""
    return SEPARATOR.join(text for text in (request.instructions or "", user_input.system) if text)


def generation_of(
    request: Creation,
    user_input: UserInput,
    params: Params,
    spec: ReplySpec,
    servers: Sequence[OfferedTool] = (),
) -> GenerationConfig:
    """Return how to generate a stored turn's reply. `servers`: the offered server tools."""
    run_here = {offered.tool.name: offered for offered in servers}
    return GenerationConfig(
        params,
        system_of(request, user_input),
        tools=tuple(run_here.get(tool.name) or OfferedTool(tool=tool) for tool in spec.tools[:MAX_TOOLS]),
        tool_choice=spec.tool_name if spec.tool_choice == "named" else spec.tool_choice,
        format=spec.format,
        reasoning=spec.reasoning,
        paces_thoughts=True,
        keeps_all=request.truncation != "auto",
        user=request.cached_for,
    )


def has_same_settings(request: Creation, previous: schema.Response, *, answers_approvals: bool) -> bool:
    """Return whether a request wants the reply after calls generated like the one before.

    `answers_approvals`: the request answers approvals, so all that it leaves out is as before.
    """
    if not answers_approvals and request.model != previous.model:
        return False
    new = initial_response(request, response_id="", model="", created=0)
    plain = initial_response(Creation(model=""), response_id="", model="", created=0)
    for field_name in _GENERATION_FIELDS if answers_approvals else (*_GENERATION_FIELDS, "tool_choice"):
        here = encode_note(getattr(new, field_name))
        is_left_out = answers_approvals and here == encode_note(getattr(plain, field_name))
        if not is_left_out and here != encode_note(getattr(previous, field_name)):
            return False
    return True


def split_approvals(given: str | Sequence[Item]) -> tuple[str | list[Item], list[tuple[int, Item]]]:
    """Split answers to approvals off an input, with their places. If the input has the call, they stay."""
    if isinstance(given, str):
        return given, []
    ran = {call_id_in(item.id or "") for item in given if item.type == "mcp_call"}
    answers = [
        (number, item)
        for number, item in enumerate(given)
        if item.type == APPROVAL_RESPONSE and call_id_in(item.approval_request_id or "") not in ran
    ]
    places = {number for number, _ in answers}
    return [item for number, item in enumerate(given) if number not in places], answers


def approval_decisions(
    answers: Sequence[tuple[int, Item]], ref: ResponseRef | None, calls: Sequence[CallRecord]
) -> tuple[Decision, ...]:
    """Return the decisions. `ref`: of the continued response; `calls`: those that it ended with. Raises Problem."""
    decisions: dict[str, Decision] = {}
    for number, item in answers:
        decision = _decision(item, f"input[{number}]", ref, calls)
        if decision.call_id in decisions:
            raise invalid_field(f"input[{number}].approval_request_id", "has two answers.")
        decisions[decision.call_id] = decision
    return tuple(decisions.values())


def _decision(item: Item, where: str, ref: ResponseRef | None, calls: Sequence[CallRecord]) -> Decision:
    field = f"{where}.approval_request_id"
    named = item.approval_request_id or ""
    call_id = call_id_in(named)
    found = next((call for call in calls if call.call_id == call_id and needs_approval(call)), None)
    if found is None or ref is None or ref_of_item(named) != ref:
        why = "names no approval that the response in `previous_response_id` asks for."
        raise invalid_field(field, why, code="approval_not_found")
    shown = named.rpartition("-")[2]
    if shown != digest(found.args):
        raise invalid_field(field, "does not match the call's arguments.", code="approval_not_found")
    if item.approve is None:
        raise invalid_field(f"{where}.approve", "must be true or false.")
    if found.state is not CallState.WAITING:
        why = field_message(field, _SETTLED_REASONS.get(found.state, _ALLOWED))
        code = "approval_expired" if found.state is CallState.EXPIRED else "approval_answered"
        raise Problem(409, why, code=code, param=field)
    return Decision(call_id=found.call_id, args_sha256=shown, allow=item.approve)


def summary_request(ask: EphemeralRequest, instructions: str | None) -> EphemeralRequest:
    """Return `ask` as a request for a summary. `instructions`: the client's for the summary."""
    messages_to_summarize = ask.messages[1:] if instructions else ask.messages
    prompt = f"{_SUMMARY_PROMPT}\n\n{instructions}" if instructions else _SUMMARY_PROMPT
    return msgspec.structs.replace(
        ask,
        messages=(*map(_without_tools, messages_to_summarize), Message("user", prompt)),
        spec=ReplySpec(reasoning="off"),
    )


def _without_tools(message: Message) -> Message:
    """Return a message for a model that is offered no tools."""
    if message.role == "tool":
        return Message("user", f"Result of a call: {message.content}")
    calls = "".join(f"\nCalled {call.name} with {call.arguments}." for call in message.calls)
    return Message(message.role, f"{message.content}{calls}".strip()) if calls else message
