"""What the AI SDK's two endpoints share: requests carried out by the native handler, the owner of a chat, and refusals.

A person's chats are that person's conversations, on every device. With an application's key, or without
authentication, the owner is the client that the URL names. Without a name the chat's id is the name, so
anybody who knows it has the chat. Clients show the whole body of a refusal to the user, so it is a sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, assert_never

import msgspec
from starlette.responses import Response
from starlette.types import Scope

from connections.api.ai_sdk.encoder import CallsAnswered, ChunkEncoder, latest_replies
from connections.api.ai_sdk.requests import (
    NewMessage,
    Regeneration,
    ToolAnswers,
    UIChatRequest,
    action_of,
    edit_id,
)
from connections.api.endpoint import RequestContext
from connections.authentication.access import AccessControl
from connections.authentication.caller import Caller, caller_of
from connections.authentication.identity import Identity
from connections.connection import Connection, Handler, PendingWork, RateLimiter
from connections.http.json_responses import error_code_of, forbidden_origin_message, refusal_response
from connections.limiters import Limiters
from connections.manager import ConnectionLifecycle
from connections.native.handler import FrameHandler
from connections.protocol.base import REASONING, TOOLS
from connections.protocol.errors import BadFrame, BadParams, Close, Unauthenticated
from connections.protocol.frames import (
    Cancel,
    Edit,
    History,
    Regenerate,
    Request,
    Send,
    ToolDecision,
    ToolResult,
)
from connections.protocol.scopes import EVERYTHING, KeyScope
from sessions.conversation.history_page import ShownMessage
from sessions.errors import NotFound, Refused
from sessions.limits.shares import Subject
from sessions.service import Sessions

PAGE = 200
"""Messages of the history that are read: as many as a page may have."""
FEATURES = frozenset({REASONING, TOOLS})
"""What chats support besides text."""
ANONYMOUS_PREFIX = "/ai-sdk/"
"""Begins the client ids of clients without a name. No client of a native socket has such an id: those have no slash."""
CODE_HEADER = "X-Midstream-Code"
"""The header for the code of a refusal."""
_STATUS = {
    "bad_frame": 400,
    "invalid_value": 400,
    "filtered": 400,
    "model_not_found": 404,
    "busy": 409,
    "conflict": 409,
    "content_too_long": 413,
    "context_overflow": 413,
    "request_too_large": 413,
    "unsupported_content_encoding": 415,
    "queue_full": 429,
}
Problem = Refused | BadFrame | BadParams | Unauthenticated | Close


class ChatHandler:
    """Carries out requests.

    `inner`: answers frames; `take_read`: counts reads of the store besides them, and may refuse one; `grace_s`: how
    long a reply waits for its client by default.
    """

    def __init__(
        self,
        *,
        inner: Handler[Request],
        sessions: Sessions,
        take_read: Callable[[Subject], None],
        grace_s: float,
    ) -> None:
        self._inner = inner
        self._sessions = sessions
        self._take_read = take_read
        self._grace_s = grace_s

    def begin(
        self, connection: Connection, encoder: ChunkEncoder, request: UIChatRequest
    ) -> PendingWork | None:
        """Begin or continue a message. A plain one is registered at once, so a later stop finds it.

        Raises BadFrame, BadParams, Refused.
        """
        turn = {"ref": encoder.ref, "conversation_id": request.id, **request.turn(grace_s=self._grace_s)}
        match action := action_of(request):
            case NewMessage(is_edit=False, images=()):
                return self._send(connection, encoder, action, turn)
            case NewMessage(is_edit=False):
                return self._send_with_images(connection, encoder, action, turn)
            case NewMessage():
                return self._edit(connection, encoder, action, turn)
            case Regeneration():
                return self._regenerate(connection, encoder, action, turn)
            case ToolAnswers():
                return self._answer_calls(connection, encoder, action, request)
            case _:
                assert_never(action)

    def resume(self, connection: Connection, encoder: ChunkEncoder, chat_id: str) -> PendingWork | None:
        """Send the message that is being written. Raises Refused."""
        frame = History(ref=encoder.ref, conversation_id=chat_id, limit=PAGE)
        return self._inner.handle(connection, frame)

    def stop(self, connection: Connection, encoder: ChunkEncoder, chat_id: str) -> PendingWork | None:
        """End what a request began or continued, and no other turn of its chat. Raises Refused."""
        encoder.is_stopped = True
        if encoder.client_msg_id is None and encoder.turn_id is None:
            # The code that is about to send it checks `is_stopped`.
            return None
        frame = Cancel(turn_id=encoder.turn_id, client_msg_id=encoder.client_msg_id, conversation_id=chat_id)
        return self._inner.handle(connection, frame)

    def _send(
        self, connection: Connection, encoder: ChunkEncoder, submitted: NewMessage, turn: dict[str, Any]
    ) -> PendingWork | None:
        encoder.client_msg_id = submitted.message_id
        frame = Send(
            client_msg_id=submitted.message_id,
            content=submitted.content,
            attachments=submitted.attachments,
            **turn,
        )
        return self._inner.handle(connection, frame)

    async def _send_with_images(
        self, connection: Connection, encoder: ChunkEncoder, submitted: NewMessage, turn: dict[str, Any]
    ) -> None:
        """Send a message with images, which are stored first."""
        await self._store_images(connection, submitted)
        if not encoder.is_stopped:
            await _finish(self._send(connection, encoder, submitted, turn))

    async def _store_images(self, connection: Connection, submitted: NewMessage) -> None:
        await self._sessions.images.keep(connection.owner, *submitted.images, group=connection.caller.group)

    async def _edit(
        self, connection: Connection, encoder: ChunkEncoder, submitted: NewMessage, turn: dict[str, Any]
    ) -> None:
        self._take_read(connection.caller.subject)
        await self._store_images(connection, submitted)
        found = await self._sessions.exchange(connection.owner, turn["conversation_id"], submitted.message_id)
        if encoder.is_stopped:
            return
        if found is None:  # the first request was refused
            await _finish(self._send(connection, encoder, submitted, turn))
            return
        encoder.client_msg_id = edit_id(submitted)
        frame = Edit(
            client_msg_id=encoder.client_msg_id,
            message_id=found.message_id,
            content=submitted.content,
            attachments=submitted.attachments,
            **turn,
        )
        await _finish(self._inner.handle(connection, frame))

    async def _regenerate(
        self, connection: Connection, encoder: ChunkEncoder, regeneration: Regeneration, turn: dict[str, Any]
    ) -> None:
        self._take_read(connection.caller.subject)
        conversation_id, owner, found = turn["conversation_id"], connection.owner, None
        for name in filter(None, (regeneration.reply_id, regeneration.question.message_id)):
            found = found or await self._sessions.exchange(owner, conversation_id, name)
        if encoder.is_stopped:
            return
        if found is None:
            await self._send_with_images(connection, encoder, regeneration.question, turn)
            return
        encoder.client_msg_id = encoder.ref
        frame = Regenerate(client_msg_id=encoder.ref, message_id=found.reply_id, **turn)
        await _finish(self._inner.handle(connection, frame))

    async def _answer_calls(
        self, connection: Connection, encoder: ChunkEncoder, tool_answers: ToolAnswers, request: UIChatRequest
    ) -> None:
        """Answer the calls of the last reply. Raises NotFound if it is not known here."""
        if not tool_answers.answers:
            raise BadParams("ends with a reply, without an answer to any of its calls.", field="messages")
        connection.caller.grant.check(KeyScope.CHAT)
        self._take_read(connection.caller.subject)
        shown = await self._sessions.history(connection.owner, connection, request.id, limit=PAGE)
        chain = latest_replies(shown.page.messages)
        call_ids = [{call.call_id for call in message.calls or ()} for message in chain]
        submitted = {answer.call_id for answer in tool_answers.answers}
        place = next((n for n in range(len(chain) - 1, -1, -1) if call_ids[n] & submitted), None)
        if place is None:
            raise NotFound(
                "The calls that are answered are not those of the chat's last reply; load the chat again."
            )
        encoder.continue_from(tool_answers.message_id, reply := chain[place])
        if encoder.is_stopped:  # before its turn was known
            last = Cancel(turn_id=chain[-1].turn_id, conversation_id=request.id)
            await _finish(self._inner.handle(connection, last))
            return
        keeps_calls = request.on_disconnect == "continue"
        self._sessions.keep_calls(connection.owner, request.id, reply.turn_id, kept=keeps_calls)
        following_replies = tuple(chain[place + 1 :])
        answers = [] if following_replies else _new_answers(tool_answers, reply)
        if KeyScope.READ not in connection.caller.grant.scopes:
            following_replies = ()
        for answer in answers:  # a change of one call must not end the message while others are answered
            encoder.answered(answer.call_id, is_allowed=_is_allowed(answer))
        for answer in answers:
            await self._answer(connection, encoder, answer, request.id)
        connection.push(
            CallsAnswered(ref=encoder.ref, has_new_answers=bool(answers), following_replies=following_replies)
        )

    async def _answer(
        self, connection: Connection, encoder: ChunkEncoder, answer: ToolResult | ToolDecision, chat_id: str
    ) -> None:
        if not encoder.is_stopped:
            named = msgspec.structs.replace(answer, ref=encoder.ref, conversation_id=chat_id)
            await _finish(self._inner.handle(connection, named))


def _new_answers(tool_answers: ToolAnswers, reply: ShownMessage) -> list[ToolResult | ToolDecision]:
    """Return the answers to open calls, since a client repeats its earlier answers each time."""
    open_calls = {call.call_id for call in reply.calls or () if not call.state.is_settled}
    return [answer for answer in tool_answers.answers if answer.call_id in open_calls]


def _is_allowed(answer: ToolResult | ToolDecision) -> bool:
    return isinstance(answer, ToolDecision) and answer.decision == "allow"


async def _finish(slow: PendingWork | None) -> None:
    if slow is not None:
        await slow


def chat_caller(identity: Identity, client_id: str | None, chat_id: str, scope: Scope) -> Caller:
    """Return the owner of a chat."""
    return caller_of(identity, client_id or f"{ANONYMOUS_PREFIX}{chat_id}", scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatService:
    """The service for these endpoints."""

    sessions: Sessions
    request_context: RequestContext
    access: AccessControl
    lifecycle: ConnectionLifecycle
    limiters: Limiters

    async def chat_handler(self, *, grace_s: float) -> ChatHandler:
        """Make what carries out requests. `grace_s`: how long a reply waits for its client by default. Raises EngineDown."""
        limits = await self.request_context.limits(self.request_context.model(None, EVERYTHING))
        take_read = self.limiters.take_read
        inner = RateLimiter(FrameHandler(self.sessions, limits), self.limiters)
        return ChatHandler(inner=inner, sessions=self.sessions, take_read=take_read, grace_s=grace_s)


def error_response(why: Problem) -> Response:
    """Return the answer to a refused request: a sentence, with its code in a header."""
    if isinstance(why, BadFrame):
        code, shown = why.code, Response(status_code=400)
    else:
        code, shown = error_code_of(why), refusal_response(why)
    kept = {
        name: shown.headers[name] for name in ("www-authenticate", "retry-after") if name in shown.headers
    }
    status = _STATUS.get(code, shown.status_code)
    if status < 429:  # noqa: PLR2004 - only temporary refusals are worth another try
        kept.pop("retry-after", None)
    headers = {"Cache-Control": "no-store", CODE_HEADER: code, **kept}
    return Response(str(why), status, headers, media_type="text/plain")


def foreign_origin_response(origin: str | None) -> Response:
    """Return the answer to a page of an origin that is not allowed."""
    headers = {"Cache-Control": "no-store", CODE_HEADER: "forbidden"}
    return Response(forbidden_origin_message(origin), 403, headers, media_type="text/plain")
