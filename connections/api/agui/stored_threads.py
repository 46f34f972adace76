"""Threads that are kept here, since their runs call server tools: a thread is a conversation.

A run is one or more of its turns, or a part of one.

An interrupt is a call that waits for an approval. The next run answers it by its id, which stands for the
arguments that were shown. So only the allowed arguments run, once, whoever repeats the answer.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from typing import ClassVar

import msgspec

from connections.api.agui.parser import ask_of, names_of
from connections.api.agui.schema import Payload, ResumeEntry, RunInput, RunMessage, RunTool
from connections.api.endpoint import ignored_fields
from connections.api.errors import Problem, invalid
from connections.api.fields import is_conversation_id
from connections.api.stored_replies import ServerToolCall, StoredReply, StoredTurns
from connections.authentication.caller import Caller, can_reconnect
from connections.protocol.errors import field_message
from connections.protocol.server_info import Limits
from engine.messages import Message
from engine.served_models import ServedModel
from sessions.conversation.history_page import ShownMessage
from sessions.errors import NotFound
from sessions.events import CallState, ShownCall
from sessions.tools.server_tool import Approval
from sessions.turn.message_request import GenerationConfig, MessageRequest, OfferedTool
from sessions.turn.tool_calls import CallAnswer, Decision, Result
from sessions.turn.turn import NullSubscriber

PAGE = 20
"""Messages of a thread that are read."""
_SEPARATOR = "\n\n"
_CLOSED_REASONS = {
    CallState.DENIED: "was answered before: the call was denied.",
    CallState.EXPIRED: "was not answered in time. The call was not carried out.",
    CallState.CANCELLED: "is of a call that was cancelled.",
}
_payload = msgspec.json.Decoder(Payload).decode


class StoredRun(msgspec.Struct, frozen=True):
    """A run of a thread that is kept. `calls`: those that it asked about before, with their outcomes."""

    stored: StoredReply
    calls: tuple[ServerToolCall, ...] = ()


class StoredThreads(StoredTurns):
    """Begins runs of threads that are kept."""

    answered_code: ClassVar[str] = "interrupt_answered"

    async def has(self, caller: Caller, request: RunInput) -> bool:
        """Return whether a run's thread is kept here: it uses server tools, or answers an interrupt. Raises StoreDown."""
        if request.server_tools is not None:
            return True
        if not request.resume or not can_reconnect(caller) or not is_conversation_id(request.thread_id):
            return False
        approval_calls = {
            interrupt_id(ServerToolCall.of(call))
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
        """Return the newest messages of a thread; none if it is new. Raises StoreDown."""
        reader = NullSubscriber()
        try:
            shown = await self.sessions.history(caller.owner, reader, thread_id, limit=PAGE)
        except NotFound:
            return []
        finally:
            self.sessions.disconnect(reader)
        return shown.page.messages

    async def _send_message(
        self, caller: Caller, request: RunInput, model: ServedModel, limits: Limits
    ) -> StoredReply:
        """Begin a run with the user's last message. Raises Refused."""
        last = request.messages[-1] if request.messages else RunMessage("")
        if last.role != "user":
            why = "must end with a message of the user's, or with all results that the thread waits for."
            raise invalid("messages", field_message("messages", why))
        server_tools = self._server_tools(request)
        placeholder_tools = [
            RunTool(one.tool.name) for one in server_tools[:1]
        ]  # so that any `tool_choice` finds tools
        tools = request.tools or placeholder_tools
        if request.props.parallel_tool_calls is False and tools:
            field = "forwardedProps.parallel_tool_calls"
            why = "may not be false where the thread is kept: a reply may call several tools there."
            raise invalid(field, field_message(field, why), code="unsupported_parameter")
        run_input = msgspec.structs.replace(request, messages=[last], context=None, tools=tools)
        ask = ask_of(run_input, limits)
        (message,) = ask.messages
        await self.sessions.images.keep(caller.owner, *message.images, group=caller.group)
        client_tools = [OfferedTool(tool=tool) for tool in ask.spec.tools] if request.tools else []
        names = {one.tool.name for one in server_tools}
        if any(one.tool.name in names for one in client_tools):
            raise invalid("tools", field_message("tools", "must not have the names of the server's tools."))
        send = MessageRequest(
            client_msg_id=f"agui_{secrets.token_hex(12)}",
            conversation_id=request.thread_id,
            content=message.content,
            images=tuple(image.digest for image in message.images),
            shown=tuple((image.at, image.detail) for image in message.images),
            on_busy="enqueue",
            on_disconnect="continue",  # `abandon` cancels it; another run answers its interrupts
            group=caller.group,
            client_id=caller.client.client_id,
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
        box, names = self.sessions.tools, request.server_tools or []
        field = "forwardedProps.server_tools"
        for number, name in enumerate(names):
            if name != "*" and box.tool(name) is None:
                where = f"{field}[{number}]"
                raise invalid(where, field_message(where, "names no tool of this server."))
        found = [tool for tool in box.offered() if "*" in names or tool.name in names]
        return tuple(
            OfferedTool(
                tool=tool.shown,
                where="server",
                needs="approval" if tool.approval is Approval.ALWAYS else "none",
            )
            for tool in found
        )


def interrupt_id(call: ServerToolCall) -> str:
    """Return an interrupt's id: it names the call, and the arguments that were shown."""
    return f"{call.call_id}.{call.args_sha256}"


def _check_storable(caller: Caller, request: RunInput) -> None:
    """Raise Problem if the thread can't be kept."""
    if not can_reconnect(caller):
        why = (
            "Threads with the server's tools are kept, so the client must send a key; without authentication, "
            "a random one of 22 characters or more."
        )
        raise invalid("forwardedProps.server_tools", why)
    if not is_conversation_id(request.thread_id):
        why = "must have 1 to 128 letters, digits, or any of `.`, `_`, `:` and `-`, where its thread is kept."
        raise invalid("threadId", field_message("threadId", why))


def _system(request: RunInput, limits: Limits) -> str | None:
    """Return the system messages and the context of the run; None: as before."""
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
    """Return a run's answers to the calls that its thread ended with. `approval_calls`: all calls it ever asked about.

    Raises Problem.
    """
    answers: dict[str, CallAnswer] = {}
    for number, entry in enumerate(request.resume or ()):
        named = (one for one in approval_calls if interrupt_id(ServerToolCall.of(one)) == entry.interrupt_id)
        call = next(named, None)
        if call is not None:
            _check_new(call.call_id, answers, f"resume[{number}]")
            answers[call.call_id] = _decision(entry, call, f"resume[{number}]")
    waiting = list(filter(_waits_for_client, calls))
    for number, message in enumerate(request.messages):
        if message.role == "tool" and any(one.call_id == message.tool_call_id for one in waiting):
            call_id = message.tool_call_id or ""
            _check_new(call_id, answers, f"messages[{number}]")
            answers[call_id] = _result(message)
    missing = [one for one in waiting if one.call_id not in answers]
    if missing:
        why = (
            f'The thread waits for {len(missing)} of its calls, the first of which is "{missing[0].name}": answer each approval '
            "in `resume`, and bring the results of the others as messages of the role tool."
        )
        raise invalid("resume", why, code="interrupts_open")
    if request.resume and not answers:
        raise invalid(
            "resume",
            field_message("resume", "names nothing that the thread waits for."),
            code="interrupt_not_found",
        )
    return tuple(answers.values())


def _approval_calls(messages: Sequence[ShownMessage]) -> list[ShownCall]:
    """Return the calls in messages that needed an approval."""
    return [call for one in messages for call in one.calls or () if _needs_approval(call)]


def _needs_approval(call: ShownCall) -> bool:
    return call.where == "server" and call.needs == "approval"


def _waits_for_client(call: ShownCall) -> bool:
    """Return whether a call waits for its client."""
    if _needs_approval(call):
        return call.state is CallState.WAITING
    return call.where == "client" and not call.state.is_settled


def _check_new(call_id: str, answers: Collection[str], where: str) -> None:
    """Raise Problem if a call is answered twice."""
    if call_id in answers:
        raise invalid(where, field_message(where, "answers a call that is answered before it."))


def _decision(entry: ResumeEntry, call: ShownCall, where: str) -> Decision:
    """Return the decision of an answer. Raises Problem."""
    if call.state is not CallState.WAITING:
        why = field_message(
            where, _CLOSED_REASONS.get(call.state, "was answered before: the call was allowed.")
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
        raise invalid(field, field_message(field, why)) from None
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
