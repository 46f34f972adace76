"""Begins a response: what of its request can be stored, the turn that writes it, and its encoder."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from connections.api.endpoint import RequestContext
from connections.api.replies import StoredReply
from connections.api.requests import invalid, is_conversation_id, with_client_field
from connections.api.responses import schema
from connections.api.responses.encoder import (
    CREATED_PREFIX,
    MAX_NOTE_BYTES,
    ResponseNote,
    ResponseRef,
    ResponsesEncoder,
    encode_note,
    initial_response,
    new_conversation,
)
from connections.api.responses.parser import (
    ENCRYPTED_REASONING,
    OUTPUT,
    ConversationName,
    Creation,
    field_names,
    includes_logprobs,
    messages_of,
    namespaces_of,
    response_turn_request,
)
from connections.api.responses.store import (
    SEPARATOR,
    ConversationStore,
    Input,
    ResponseStore,
    StoredResponse,
    UserInput,
    resolve_references,
)
from connections.authentication.caller import Caller, can_reconnect
from connections.http import Exchange
from connections.protocol.base import Limits
from connections.protocol.params import MAX_SYSTEM_CHARS
from engine.messages import Message
from engine.served_models import ServedModel
from engine.vision.image import together
from sessions.errors import BadParams, Overloaded
from sessions.events import Cause
from sessions.limits.slots import on_behalf_of
from sessions.records import CallRecord
from sessions.running.ephemeral import EphemeralReply, EphemeralRequest
from sessions.service import Sessions
from sessions.turn.message_request import GenerationConfig, OfferedTool
from sessions.turn.tool_calls import Result

T = TypeVar("T")
_NOT_STORABLE = (
    "This request can't be stored: it has assistant messages, calls or more than one kind of input, or its key "
    "is not secret (without authentication, send a random key of at least 22 characters). "
    "Leave `conversation` out."
)
_HISTORY_TOO_LONG = (
    "The history exceeds the context window: set `truncation` to `auto`, or start a new conversation."
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

    `exchange`: None on a socket.
    """

    caller: Caller
    request: Creation
    model: ServedModel
    limits: Limits
    before: tuple[Message, ...]
    previous: StoredResponse | None = None
    exchange: Exchange | None = None

    @property
    def streams(self) -> bool:
        """Whether the reply is sent as it is written: always on a socket, and by HTTP if the client asks for it."""
        return self.exchange is None or bool(self.request.stream)

    @property
    def system(self) -> str:
        """The system messages in the inputs before this one, if these are stored."""
        return "" if self.previous is None else self.previous.note.system

    @property
    def namespaces(self) -> dict[str, str]:
        """The namespaces of functions, those of earlier requests included."""
        known = {} if self.previous is None else self.previous.note.namespaces
        return known | namespaces_of(self.request.tools)

    def response(self, response_id: str, model: str) -> schema.Response:
        """Return the response that begins."""
        return initial_response(self.request, response_id=response_id, model=model, created=int(time.time()))

    def encoder(self, response: schema.Response, name: str) -> ResponsesEncoder:
        """Return the encoder of the reply. `name`: the common part of the ids of its items."""
        return ResponsesEncoder(
            response,
            name=name,
            logprobs=includes_logprobs(self.request),
            encrypts_reasoning=ENCRYPTED_REASONING in (self.request.include or ()),
            namespaces=self.namespaces,
        )


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
        exchange: Exchange | None = None,
    ) -> StartedResponse:
        """Begin a response. `before`: the messages before its input, if they are not stored. Raises Refused.

        `exchange`: None on a socket; by HTTP, long requests are processed outside the event loop.
        """
        with on_behalf_of(caller.store_group):
            context = await self._context(caller, request, exchange, before)
            user_input = None
            if before is None:
                user_input = await self._run_in_thread(context, lambda: self._input(context))
            await self._request_context.count(caller)
            try:
                return await self._start(context, user_input)
            except BadParams as refused:
                raise with_client_field(refused, field_names()) from None

    async def _context(
        self,
        caller: Caller,
        request: Creation,
        exchange: Exchange | None,
        before: Sequence[Message] | None,
    ) -> CreationContext:
        """Read what a request continues. Raises Refused."""
        model = self._request_context.model(request.model, caller.grant)
        limits = await self._request_context.limits(model)
        request = await resolve_references(self.response_store, caller.owner, request, limits)
        if request.conversation is not None:
            # ids of `POST /v1/conversations` must exist, others begin when used
            conversation_id = _conversation_id(request)
            if conversation_id.startswith(CREATED_PREFIX):
                await ConversationStore(self.response_store).find(caller.owner, conversation_id)
        previous = await self._previous(caller, request) if before is None else None
        history = tuple(before or ()) if previous is None else previous.messages
        return CreationContext(caller, request, model, limits, history, previous, exchange)

    async def _previous(self, caller: Caller, request: Creation) -> StoredResponse | None:
        """Return the response that a request continues: the named one, or the one whose calls it answers.

        Raises Problem, StoreDown.
        """
        previous: StoredResponse | None = None
        has_outputs = not isinstance(request.input, str) and any(one.type == OUTPUT for one in request.input)
        if request.previous_response_id is not None:
            previous = await self.response_store.previous(caller.owner, request.previous_response_id)
        elif request.conversation is not None and has_outputs:
            previous = await self.response_store.waiting(caller.owner, _conversation_id(request))
        if previous is not None and previous.is_cut and request.truncation != "auto":
            raise invalid("previous_response_id", _HISTORY_TOO_LONG, code="context_length_exceeded")
        return previous

    def _input(self, context: CreationContext) -> Input | None:
        """Return what to store of the request; None: nothing. Raises Problem if it must be, but can't."""
        request, previous = context.request, context.previous
        if request.conversation is not None and request.previous_response_id is not None:
            raise invalid("conversation", "Send either `previous_response_id` or `conversation`, not both.")
        calls = () if previous is None else previous.open_calls
        messages = messages_of(request.input, context.limits, context.before)
        outputs = Counter(message.call_id for message in messages if message.role == "tool")
        if twice := [call.call_id for call in calls if outputs[call.call_id] > 1]:
            raise invalid("input", f'`input` may have one output of the call "{twice[0][:160]}".')
        user_input = storable_input(request, messages, context.system, calls)
        note = ResponseNote(context.response("", ""), context.system, context.namespaces)
        if not can_reconnect(context.caller) or len(encode_note(note)) > MAX_NOTE_BYTES:
            user_input = None
        if user_input is None and request.conversation is not None:
            raise invalid("conversation", _NOT_STORABLE, code="unsupported_parameter")
        return user_input

    async def _run_in_thread(self, context: CreationContext, work: Callable[[], T]) -> T:
        """Return the result of work whose duration grows with the request."""
        return (
            work()
            if context.exchange is None
            else await self._request_context.run_in_thread(context.exchange, work)
        )

    async def _turn_request(self, context: CreationContext) -> EphemeralRequest:
        """Return the request for a turn without a conversation. Raises Problem."""
        ask = await self._run_in_thread(
            context, lambda: response_turn_request(context.request, context.limits, context.before)
        )
        return self._request_context.for_caller(context.caller, ask, context.model, field_names())

    async def _start(self, context: CreationContext, user_input: Input | None) -> StartedResponse:
        """Begin a response. `user_input`: what to store of it; None: nothing. Raises Refused."""
        if user_input is not None:
            try:
                return await self._start_stored(context, user_input)
            except Overloaded:  # no more calls may be open: a reply that is not stored leaves none open
                request = context.request
                if not request.tools or request.previous_response_id is not None:
                    raise
        return await self._start_unstored(context)

    async def _start_unstored(self, context: CreationContext) -> StartedResponse:
        """Begin a response that is not stored. Raises Refused."""
        caller, previous = context.caller, context.previous
        if previous is not None:
            before = await self.response_store.with_bytes(caller, previous.ref, context.before)
            context = msgspec.structs.replace(context, before=before)
        ask = msgspec.structs.replace(await self._turn_request(context), streams=context.streams)
        reply = await self.sessions.ephemeral.answer(caller.owner, ask)
        name = reply.turn_id.removeprefix("turn_")
        return StartedResponse(
            reply,
            context.encoder(context.response(f"resp_{name}", reply.model), name),
            reply.turn_id,
            partial(reply.cancel, Cause.CLIENT),
            reply.cancel,
            ask.messages[1:] if context.request.instructions else ask.messages,
        )

    async def _start_stored(self, context: CreationContext, user_input: Input) -> StartedResponse:
        """Begin a response as a turn of a conversation. Raises Refused."""
        caller, request, previous, store = (
            context.caller,
            context.request,
            context.previous,
            self.response_store,
        )
        conversation_id = previous.ref.conversation_id if previous else _conversation_id(request)
        system = user_input.system if isinstance(user_input, UserInput) else context.system
        ask = await self._turn_request(context)
        generation = _generation(context, system, ask)
        if isinstance(user_input, UserInput):
            stored = await store.begin(caller, conversation_id, user_input, generation, previous)
        else:
            follows = "" if previous is None else previous.ref.turn_id
            stored = await store.send_results(caller.owner, conversation_id, follows, user_input, generation)
        stored.ignored = ask.ignored
        ref = ResponseRef(conversation_id, stored.turn_id)
        response = msgspec.structs.replace(
            context.response(ref.response_id, stored.model or context.model.name),
            conversation=None if request.conversation is None else schema.ConversationId(conversation_id),
            store=True,
        )
        abandon = partial(store.abandon, caller.owner, stored, conversation_id)
        try:
            await store.note(caller.owner, ref, ResponseNote(response, system, context.namespaces))
        except BaseException:
            abandon()
            raise
        return StartedResponse(
            stored,
            context.encoder(response, ref.name),
            stored.turn_id,
            lambda: store.stop(caller.owner, conversation_id, stored.turn_id),
            abandon,
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


def storable_input(
    request: Creation,
    given: Sequence[Message],
    system: str,
    open_calls: Sequence[CallRecord],
) -> Input | None:
    """Return an input as a conversation's next message, or as answers to its calls. None: it can't be stored.

    `system`: the system messages before it. A conversation has what its user and its model said in turn: input with a
    client's reply can't be stored.
    """
    is_one_by_one = bool(request.tools) and request.parallel_tool_calls is False
    if request.store is False or includes_logprobs(request) or is_one_by_one:
        return None
    roles = {message.role for message in given}
    if len(system_of(request, system)) > MAX_SYSTEM_CHARS:
        return None
    if open_calls:
        results = tuple(Result(call_id=message.call_id, content=message.content) for message in given)
        is_all = {result.call_id for result in results} == {call.call_id for call in open_calls}
        return results if roles <= {"tool"} and is_all else None
    if not roles <= {"user", "system"} or "user" not in roles:
        return None
    user_parts = [(message.content, message.images) for message in given if message.role == "user"]
    content, images = together(user_parts, SEPARATOR)
    named = [system, *(message.content for message in given if message.role == "system")]
    user_input = UserInput(content, SEPARATOR.join(filter(None, named)), images)
    is_too_long = len(system_of(request, user_input.system)) > MAX_SYSTEM_CHARS
    return None if "\0" in content or not (content or images) or is_too_long else user_input


def system_of(request: Creation, system: str) -> str:
    """Return what the model reads first; the instructions are for one response only."""
    return SEPARATOR.join(filter(None, (request.instructions, system)))


def _generation(context: CreationContext, system: str, ask: EphemeralRequest) -> GenerationConfig:
    """Return how to generate a stored turn's reply. `ask`: the same as a request without a conversation."""
    request, spec = context.request, ask.spec
    return GenerationConfig(
        ask.params,
        system_of(request, system),
        context.model.name,
        tools=tuple(OfferedTool(tool=tool) for tool in spec.tools),
        tool_choice=spec.tool_name if spec.tool_choice == "named" else spec.tool_choice,
        format=spec.format,
        reasoning=spec.reasoning,
        paces_thoughts=True,
        keeps_all=request.truncation != "auto",
        user=request.cached_for,
        only=tuple(sorted(context.caller.grant.models)),
        chars_per_s=None if context.streams else 0.0,
    )
