"""Begins a response: the turn that writes it, and what converts it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from connections.http.exchange import Exchange
from connections.limits.caller import Caller, comes_back
from connections.openai.problems import invalid, renamed
from connections.openai.reception import Reception
from connections.replies.server_calls import ServerCall
from connections.replies.stored_reply import StoredReply
from connections.responses.answers import wire
from connections.responses.answers.mcp_items import Labels, approval_id, call_item, list_item
from connections.responses.answers.mcp_wire import McpItem
from connections.responses.answers.resource import asked_for
from connections.responses.answers.telling import ServerCalls, Telling
from connections.responses.kept.conversations import Conversations
from connections.responses.kept.decisions import RESPONSE, decisions_in, parted
from connections.responses.kept.ids import CREATED, Place, is_name, new_conversation
from connections.responses.kept.keeper import Keeper, Kept, Where
from connections.responses.kept.notes import (
    MAX_NOTE_BYTES,
    Input,
    Note,
    Outputs,
    Said,
    encode_note,
    fitting,
    generation_of,
    goes_on_alike,
    is_asked,
)
from connections.responses.kept.references import resolved
from connections.responses.requests.asking import ask_of, fields_of, seals_thoughts, shows_logprobs
from connections.responses.requests.fields import ConversationName, Creation
from connections.responses.requests.items import OUTPUT, messages_of
from connections.responses.requests.servers import Listed, listed
from connections.responses.requests.tools import namespaces_of
from connections.wire.facts import Limits
from engine.messages import Message
from engine.served_models import ServedModel
from sessions.errors import BadParams, Overloaded
from sessions.events import CallState, Cause, Done
from sessions.records import CallRecord
from sessions.running.ephemeral import Ask
from sessions.running.waiting_pieces import Piece
from sessions.service import Sessions
from sessions.store.redis.asker import asking_for

T = TypeVar("T")

_UNFIT = (
    "This request brings what no conversation here keeps: messages of the assistant, calls, or more than one kind "
    "of input. Or its key is not secret: without authentication, send a random one of 22 characters or more. Leave `{}` out, "
    "or send `store` as false."
)
_NOT_KEPT = (
    "MCP servers are for responses that are kept: send a key (without authentication, a random one of 22 characters or more), "
    "leave `store`, `logprobs` and `parallel_tool_calls` out, and continue by `previous_response_id`."
)
_OPEN = (
    "The response before this one waits: answer all of its approvals, by `mcp_approval_response`, and bring the outputs of "
    "its calls, in one request."
)
_UNLIKE = (
    "What follows calls is made as they were: leave `tools` and `instructions` out, or send them as before."
)
_UNDER_WAY = (
    "What the response before this one asked for is being carried out: go on from the response that follows."
)
_FAR = "What was said before is too long to go on from it whole: send `truncation` as `auto`, or begin a new conversation."
_NO_BOUND = "This server does not bound the calls of its own tools by `max_tool_calls`: leave it out, or the MCP servers."


class Answer(Protocol):
    """A reply that is being written. Iterate it for its pieces; then `ended` is its end."""

    cut_off: Callable[[], None]
    model: str
    ignored: tuple[str, ...]

    @property
    def ended(self) -> Done:
        """The end."""

    def __aiter__(self) -> Answer: ...

    async def __anext__(self) -> Piece | ServerCall: ...


class Begun(msgspec.Struct, frozen=True):
    """A response that is being written. `stop` ends it for its client; `leave`: its reader has left.

    `read`: the messages that its model reads, without instructions, if it is not stored.
    """

    answer: Answer
    telling: Telling
    request_id: str
    stop: Callable[[], None]
    leave: Callable[[], None]
    read: tuple[Message, ...] = ()


class Wanted(msgspec.Struct, frozen=True):
    """A request for a response. `before`: the messages before its input; `behind`: the stored response with them.

    `servers`: those whose tools it may call, which run here. `exchange`: which brought it, by HTTP.
    """

    caller: Caller
    request: Creation
    model: ServedModel
    limits: Limits
    stream_id: str | msgspec.UnsetType
    before: tuple[Message, ...]
    servers: tuple[Listed, ...] = ()
    behind: Kept | None = None
    exchange: Exchange | None = None

    @property
    def streams(self) -> bool:
        """Whether the reply is sent as it is written: always on a socket, and by HTTP if the client asks for it."""
        return self.exchange is None or bool(self.request.stream)

    @property
    def labels(self) -> Labels:
        """The labels of the servers' tools, and the namespaces of functions."""
        servers = {tool.name: one.label for one in self.servers for tool in one.tools}
        return Labels(servers, namespaces_of(self.request.tools))


class Creator:
    """Begins responses."""

    def __init__(self, sessions: Sessions, reception: Reception) -> None:
        self.keeper = Keeper(sessions)
        self._sessions = sessions
        self._reception = reception

    async def create(
        self,
        caller: Caller,
        request: Creation,
        *,
        before: Sequence[Message] | None = None,
        stream_id: str | msgspec.UnsetType = msgspec.UNSET,
        exchange: Exchange | None = None,
    ) -> Begun:
        """Begin a response. `before`: the messages before its input, if they are not stored. Raises Refused.

        `exchange`: which brought the request; what a long one takes is done beside the event loop.
        """
        model = self._reception.model(request.model, caller.grant)
        limits = await self._reception.limits(model)
        request = await resolved(self.keeper, caller.owner, request, limits)
        with asking_for(caller.group or caller.client.client_id):
            if request.conversation is not None:
                await self._check_created(caller, _conversation_of(request))
            behind = None
            if before is None:
                behind = await self._behind(caller, request)
            said = tuple(before or ()) if behind is None else behind.said
            servers = listed(request.tools or (), self._sessions.tools)
            wanted = Wanted(caller, request, model, limits, stream_id, said, servers, behind, exchange)
            given = None if before is not None else await self._apart(wanted, lambda: self._input(wanted))
            await self._reception.count(caller)
            if given is None:
                return await self._unkept(wanted)
            try:
                return await self._kept(wanted, given)
            except Overloaded:  # no more calls may be open: a reply that is not stored leaves none open
                if (
                    not request.tools
                    or request.previous_response_id is not None
                    or request.background
                    or servers
                ):
                    raise
                return await self._unkept(wanted)

    async def _check_created(self, caller: Caller, conversation_id: str) -> None:
        """Raise Problem for an id of `POST /v1/conversations` that this owner does not have; other names begin by being used."""
        if conversation_id.startswith(CREATED):
            await Conversations(self.keeper).find(caller.owner, conversation_id)

    async def ask(self, caller: Caller, request: Creation, exchange: Exchange) -> Ask:
        """Return what a turn without a conversation would be asked for a response. Raises Refused."""
        model = self._reception.model(request.model, caller.grant)
        limits = await self._reception.limits(model)
        if request.conversation is not None:
            why = "Name a response instead of a conversation here: send `previous_response_id`."
            raise invalid("conversation", why, code="unsupported_parameter")
        request = await resolved(self.keeper, caller.owner, request, limits)
        behind = await self._behind(caller, request)
        servers = listed(request.tools or (), self._sessions.tools)

        def asked() -> Ask:
            given, answers = parted(request.input)  # a model reads results of calls, not approvals
            decisions_in(answers, None if behind is None else behind.place, _asked(behind))
            read = msgspec.structs.replace(request, input=given)
            return ask_of(read, limits, () if behind is None else behind.said, servers)

        ask = await self._reception.apart(exchange, asked)
        return self._reception.asked_by(caller, ask, model, fields_of())

    async def _behind(self, caller: Caller, request: Creation) -> Kept | None:
        """Return the response that a request continues: the named one, or the one whose calls it answers.

        Raises Problem, StoreDown.
        """
        behind: Kept | None = None
        if request.previous_response_id is not None:
            behind = await self.keeper.previous(caller.owner, request.previous_response_id)
        elif request.conversation is not None and _brings_outcomes(request):
            behind = await self.keeper.waiting(caller.owner, _conversation_of(request))
        if behind is None:
            return None
        _, decided = parted(request.input)  # who only answers approvals may leave fields out
        truncation = request.truncation or (behind.note.response.truncation if decided else None)
        if behind.is_cut and truncation != "auto":
            raise invalid("previous_response_id", _FAR, code="context_length_exceeded")
        return behind

    def _input(self, wanted: Wanted) -> Input | None:
        """Return what to store of the request; None if it is not stored. Raises Problem if it has to be."""
        request, behind = wanted.request, wanted.behind
        if request.conversation is not None and request.previous_response_id is not None:
            why = "A response continues from one place: send `previous_response_id` or `conversation`."
            raise invalid("conversation", why)
        given_items, answers = parted(request.input)
        calls = () if behind is None else behind.open_calls
        asked = _asked(behind)
        decisions = decisions_in(answers, None if behind is None else behind.place, asked)
        messages = messages_of(given_items, wanted.limits, wanted.before)
        _check_answers(messages, calls, asked)
        given = fitting(request, messages, None if behind is None else behind.note, calls, decisions)
        if isinstance(given, Outputs) and behind is not None:
            alike = goes_on_alike(request, behind.note.response, decides=bool(decisions))
            given = msgspec.structs.replace(given, is_alike=alike)
            if decisions and not alike:
                raise invalid("input", _UNLIKE)
        if given is None and any(map(is_asked, calls)):
            raise invalid("input", _OPEN, code="approvals_open")
        if not (comes_back(wanted.caller) and _fits(wanted)):
            given = None
        if wanted.servers and request.max_tool_calls is not None:
            raise invalid("max_tool_calls", _NO_BOUND, code="unsupported_parameter")
        if wanted.servers and given is None:
            raise invalid("tools", _NOT_KEPT, code="unsupported_parameter")
        for field in ("conversation", "background"):
            if given is None and getattr(request, field):
                raise invalid(field, _UNFIT.format(field), code="unsupported_parameter")
        return given

    async def _apart(self, wanted: Wanted, work: Callable[[], T]) -> T:
        """Return the result of work whose duration grows with the request."""
        return work() if wanted.exchange is None else await self._reception.apart(wanted.exchange, work)

    async def _unkept(self, wanted: Wanted) -> Begun:
        """Begin a response that is not stored. Raises Refused."""
        caller, request, before = wanted.caller, wanted.request, wanted.before
        if wanted.servers:
            raise invalid("tools", _NOT_KEPT, code="unsupported_parameter")
        if wanted.behind is not None:
            before = await self.keeper.with_bytes(caller, wanted.behind.place, before)
        asked = await self._apart(wanted, lambda: ask_of(request, wanted.limits, before))
        ask = self._reception.asked_by(caller, asked, wanted.model, fields_of())
        ask = msgspec.structs.replace(ask, streams=wanted.streams)
        try:
            reply = await self._sessions.answer(caller.owner, ask)
        except BadParams as refused:
            raise renamed(refused, fields_of()) from None
        name = reply.turn_id.removeprefix("turn_")
        response = msgspec.structs.replace(_response(wanted, f"resp_{name}"), model=reply.model)
        return Begun(
            reply,
            _telling(wanted, response, name, ServerCalls(wanted.labels)),
            reply.turn_id,
            partial(reply.cancel, Cause.CLIENT),
            reply.cancel,
            ask.messages[1:] if request.instructions else ask.messages,
        )

    async def _kept(self, wanted: Wanted, given: Input) -> Begun:
        """Begin a response as a turn of a conversation. Raises Refused."""
        caller, request, behind = wanted.caller, wanted.request, wanted.behind
        conversation_id = behind.place.conversation_id if behind else _conversation_of(request)
        system = given.system if isinstance(given, Said) else behind.note.system if behind else ""
        try:
            stored = await self._begin(wanted, given, conversation_id)
        except BadParams as refused:
            raise renamed(refused, fields_of()) from None
        place = Place(conversation_id, stored.turn_id)
        response = msgspec.structs.replace(
            _response(wanted, place.response_id),
            model=stored.model or wanted.model.name,
            conversation=None if request.conversation is None else wire.ConversationId(conversation_id),
            store=True,
        )
        try:
            note = await self._noted(wanted, given, place)
            note = msgspec.structs.replace(note, response=response, system=system)
            await self.keeper.note(caller.owner, place, note)
        except BaseException:
            self.keeper.leave(caller.owner, stored, conversation_id)
            raise
        leave = partial(self.keeper.leave, caller.owner, stored, conversation_id)
        return Begun(
            stored,
            _telling(wanted, response, place.name, note.calls),
            stored.turn_id,
            lambda: self.keeper.stop(caller.owner, conversation_id, stored.turn_id),
            partial(self.keeper.forget, stored) if request.background else leave,
        )

    async def _noted(self, wanted: Wanted, given: Input, place: Place) -> Note:
        """Return the note about server tools: their servers, and the response's first items. Raises StoreDown."""
        behind, note = wanted.behind, _note_before(wanted, place.name)
        if not isinstance(given, Outputs) or behind is None:
            return note
        before: list[McpItem] = []
        for call in await self.keeper.answered(wanted.caller.owner, behind):
            asked = approval_id(ServerCall.asked(call), behind.place.name)
            before.append(call_item(ServerCall.kept(call), place.name, note.labels, asked=asked))
        return msgspec.structs.replace(note, before=tuple(before))

    async def _begin(self, wanted: Wanted, given: Input, conversation_id: str) -> StoredReply:
        """Begin the turn. Raises Refused."""
        request, behind = wanted.request, wanted.behind
        read = msgspec.structs.replace(request, input=parted(request.input)[0])  # without approvals
        asked = await self._apart(wanted, lambda: ask_of(read, wanted.limits, wanted.before, wanted.servers))
        ask = self._reception.asked_by(wanted.caller, asked, wanted.model, fields_of())
        said = given if isinstance(given, Said) else Said("", "" if behind is None else behind.note.system)
        offered = [tool for one in wanted.servers for tool in one.offered]
        generation = generation_of(request, said, ask.params, ask.spec, offered)
        only = tuple(sorted(wanted.caller.grant.models))
        generation = msgspec.structs.replace(
            generation, model=wanted.model.name, only=only, chars_per_s=None if wanted.streams else 0.0
        )
        if isinstance(given, Outputs) and behind is not None:
            reply = await self.keeper.go_on(wanted.caller, given, generation, behind)
        else:
            reply = await self.keeper.begin(wanted.caller, said, generation, Where(conversation_id, behind))
        reply.ignored = ask.ignored
        return reply


def _brings_outcomes(request: Creation) -> bool:
    """Return whether a request answers calls."""
    given = request.input
    return not isinstance(given, str) and any(item.type in (OUTPUT, RESPONSE) for item in given)


def _conversation_of(request: Creation) -> str:
    """Return the conversation in which a response begins or continues. Raises Problem."""
    match request.conversation:
        case None:
            return new_conversation()
        case ConversationName(id=name) | str(name):
            if not is_name(name):
                why = "`conversation` must have 1 to 128 letters, digits, or any of `.`, `_`, `:` and `-`."
                raise invalid("conversation", why)
            return name


def _response(wanted: Wanted, response_id: str) -> wire.Response:
    return asked_for(
        wanted.request, response_id=response_id, model=wanted.model.name, created=int(time.time())
    )


def _note_before(wanted: Wanted, name: str = "") -> Note:
    """Return the note of a response without its results of calls, which have a limit of their own."""
    known = Labels() if wanted.behind is None else wanted.behind.note.labels
    listed_before = set(known.by_tool.values())
    new = [one for one in wanted.servers if one.label not in listed_before]
    return Note(
        _response(wanted, f"resp_{name}"),
        system="" if wanted.behind is None else wanted.behind.note.system,
        labels=Labels(known.by_tool | wanted.labels.by_tool, known.namespaces | wanted.labels.namespaces),
        before=tuple(list_item(one, f"mcpl_{name}_{number}") for number, one in enumerate(new)),
    )


def _fits(wanted: Wanted) -> bool:
    """Return whether a response's note is small enough. Raises Problem if it has to be stored."""
    size = len(encode_note(_note_before(wanted)))
    if size > MAX_NOTE_BYTES and wanted.servers:
        why = f"The request and the tools of its MCP servers take {size} bytes, of {MAX_NOTE_BYTES}: name fewer by `allowed_tools`."
        raise invalid("tools", why)
    return size <= MAX_NOTE_BYTES


def _asked(behind: Kept | None) -> Sequence[CallRecord]:
    """Return the calls of the response that is continued."""
    return () if behind is None or behind.last.reply is None else behind.last.reply.calls


def _is_under_way(call: CallRecord) -> bool:
    return is_asked(call) and call.state is CallState.RUNNING


def _check_answers(
    messages: Sequence[Message], calls: Sequence[CallRecord], asked: Sequence[CallRecord]
) -> None:
    """Raise Problem if an open call has several outputs, or if none is open and an allowed one still runs."""
    if not calls and any(map(_is_under_way, asked)):
        raise invalid("previous_response_id", _UNDER_WAY, code="response_in_progress")
    named = [message.call_id for message in messages if message.role == "tool"]
    for call in calls:
        if named.count(call.call_id) > 1:
            raise invalid("input", f'`input` may have one output of the call "{call.call_id[:160]}".')


def _telling(wanted: Wanted, response: wire.Response, name: str, calls: ServerCalls) -> Telling:
    return Telling(
        response,
        name=name,
        logprobs=shows_logprobs(wanted.request),
        seals=seals_thoughts(wanted.request),
        stream_id=wanted.stream_id,
        calls=calls,
    )
