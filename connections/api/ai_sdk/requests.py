"""The requests of the AI SDK's clients: bodies, the frames of its `WebSocketChatTransport`, and how the native handler carries them out.

A client sends its whole list of messages each time. Only the last message counts: the history has the others.

A person's chats are that person's conversations, on every device. With an application's key, or without
authentication, the owner is the client that the URL names. Without a name the chat's id is the name, so anybody who
knows the id has access. Clients show the whole body of a refusal to the user, so it is a sentence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, assert_never

import msgspec
from msgspec import Meta
from starlette.responses import Response
from starlette.types import Scope

from connections.api.ai_sdk.encoder import AnyChunk, CallsAnswered, ChunkEncoder, latest_replies
from connections.api.endpoint import RequestContext
from connections.authentication.access import AccessControl
from connections.authentication.api_keys import Identity
from connections.authentication.caller import Caller, caller_of
from connections.connection import Connection, Handler, PendingWork, RateLimiter
from connections.http import check_json_limits, error_code_of, forbidden_origin_message, refusal_response
from connections.images import MAX_IMAGES, InvalidImage, image_from_url
from connections.limiters import Limiters
from connections.manager import ConnectionLifecycle
from connections.native.handler import FrameHandler
from connections.protocol import codec
from connections.protocol.base import EVERYTHING, REASONING, TOOLS, Id, KeyScope, Name
from connections.protocol.errors import BadFrame, BadParams, Close
from connections.protocol.frames import (
    MAX_TOOLS,
    Cancel,
    Edit,
    History,
    JsonObject,
    ModelName,
    OfferedTool,
    Params,
    Regenerate,
    Request,
    Send,
    Token,
    ToolDecision,
    ToolDescription,
    ToolName,
    ToolResult,
)
from engine.vision.image import Image
from sessions.errors import NotFound, Refused
from sessions.limits.shares import Subject
from sessions.service import Sessions
from sessions.turn.message_request import OnBusy, OnDisconnect

Trigger = Literal["submit-message", "regenerate-message"]
_SHA256_CHARS = 64
RequestId = Annotated[str, Meta(min_length=1, max_length=128)]
Headers = dict[str, Token]
PAGE = 200
"""Messages of the history that are read: as many as a page may have."""
FEATURES = frozenset({REASONING, TOOLS})
"""What chats support besides text."""
ANONYMOUS_PREFIX = "/ai-sdk/"
"""Begins the client ids of clients without a name. No client of a native socket has such an id: those have no slash."""
CODE_HEADER = "X-Midstream-Code"
"""The header for the code of a refusal."""
_STATUS = {
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
Problem = Refused | Close


class ToolOfAMap(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of a client that names its tools by the keys of an object."""

    description: ToolDescription | None = None
    parameters: JsonObject | None = None


class GenerationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to generate a reply: the fields of `send`, and three fields of front ends that mean the same."""

    params: Params = Params()
    tools: tuple[OfferedTool, ...] | dict[ToolName, ToolOfAMap] = ()
    tool_choice: ToolName = "auto"
    on_busy: OnBusy = "interrupt"
    on_disconnect: OnDisconnect = "cancel"
    grace_s: float | None = None
    model: ModelName | None = None
    system: str | None = None

    def turn(self, *, grace_s: float) -> dict[str, Any]:
        """Return the fields of a frame. `grace_s`: the default. Raises BadParams."""
        grace_s = grace_s if self.grace_s is None else self.grace_s
        if not 0 <= grace_s <= 60:  # noqa: PLR2004 - what `send` allows
            raise BadParams("must be 0 to 60 seconds.", field="grace_s")
        params = msgspec.structs.replace(
            self.params,
            model=self.params.model or self.model,
            system=self.params.system if self.system is None else self.system,
        )
        return {
            "params": params,
            "tools": self._tools(),
            "tool_choice": self.tool_choice,
            "on_busy": self.on_busy,
            "on_disconnect": self.on_disconnect,
            "grace_s": grace_s,
        }

    def _tools(self) -> tuple[OfferedTool, ...]:
        if len(self.tools) > MAX_TOOLS:
            raise BadParams(f"must have at most {MAX_TOOLS} items.", field="tools")
        if isinstance(self.tools, tuple):
            return self.tools
        return tuple(
            OfferedTool(name=name, description=tool.description or "", parameters=tool.parameters)
            for name, tool in self.tools.items()
        )


class UIChatRequest(GenerationOptions, frozen=True, kw_only=True):
    """A body. `id`: of the chat, which is a conversation. `message_id`: what is edited, regenerated, or continued."""

    id: Name
    messages: list[msgspec.Raw]
    trigger: Trigger = "submit-message"
    message_id: Id | None = msgspec.field(default=None, name="messageId")


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a call that waited for approval."""

    id: str = ""
    approved: bool | None = None


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of a message, of any kind."""

    type: str
    text: str = ""
    tool_call_id: str = ""
    state: str = ""
    output: Any = None
    error_text: str | None = None
    provider_executed: bool | None = None
    approval: Approval | None = None
    url: str = ""
    media_type: str = ""


class UIMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message in a front end."""

    id: Id
    role: Literal["system", "user", "assistant"]
    parts: list[Part]


class NewMessage(msgspec.Struct, frozen=True):
    """A user's message with its images. `is_edit`: it replaces the one with its id."""

    message_id: str
    content: str
    is_edit: bool = False
    images: tuple[Image, ...] = ()

    @property
    def attachments(self) -> tuple[str, ...]:
        """The ids of its images."""
        return tuple(image.digest for image in self.images)


class Regeneration(msgspec.Struct, frozen=True):
    """Another reply to a user's message. `reply_id`: the existing one, if the client names it."""

    reply_id: str | None
    question: NewMessage


class ToolAnswers(msgspec.Struct, frozen=True):
    """Outcomes of calls of a message, which then continues."""

    message_id: str
    answers: tuple[ToolResult | ToolDecision, ...]


ChatAction = NewMessage | Regeneration | ToolAnswers
_request_decoder = msgspec.json.Decoder(UIChatRequest)
_message_decoder = msgspec.json.Decoder(UIMessage)


def chat_request(body: bytes) -> UIChatRequest:
    """Return the request in a body. Raises BadFrame, TooManyValues."""
    check_json_limits(body)
    try:
        return codec.read(_request_decoder, body.decode())
    except UnicodeDecodeError:
        raise BadFrame("The request is not UTF-8.") from None


def action_of(request: UIChatRequest) -> ChatAction:
    """Return what a request's last message asks for. Raises BadFrame, BadParams."""
    if not request.messages:
        raise BadParams("must have a message.", field="messages")
    last = codec.read(_message_decoder, bytes(request.messages[-1]).decode())
    if last.role == "assistant":
        return ToolAnswers(last.id, tuple(_answers(last)))
    if last.role == "system":
        raise BadParams("must end with a user message. Put instructions into `system`.", field="messages")
    is_edit = request.trigger == "submit-message" and request.message_id == last.id
    images = _images(last)
    submitted = NewMessage(last.id, _text(last, is_alone=not images), is_edit, images)
    return (
        Regeneration(request.message_id, submitted) if request.trigger == "regenerate-message" else submitted
    )


def edit_id(submitted: NewMessage) -> str:
    """Return the id of an edit: the same for the same edit sent again."""
    named = "\0".join((submitted.message_id, submitted.content, *submitted.attachments))
    return hashlib.sha256(named.encode()).hexdigest()


def _text(message: UIMessage, *, is_alone: bool) -> str:
    text = "\n\n".join(part.text for part in message.parts if part.type == "text")
    if not text and is_alone:
        raise BadParams("ends with a message without text.", field="messages")
    return text


def _images(message: UIMessage) -> tuple[Image, ...]:
    """Return the images of a message. Raises BadParams for other files, or too many."""
    files = [part for part in message.parts if part.type == "file"]
    if len(files) > MAX_IMAGES:
        why = f"ends with a message that has more than {MAX_IMAGES} files."
        raise BadParams(why, field="messages")
    return tuple(map(_image, files))


def _image(part: Part) -> Image:
    if not part.media_type.startswith("image/"):
        why = "has a file that is not an image. Supported: PNG, JPEG, WebP and GIF."
        raise BadParams(why, field="messages")
    try:
        return image_from_url(part.url)
    except InvalidImage as why:
        raise BadParams(f"has an unsupported file. {why}", field="messages") from None


def _answers(message: UIMessage) -> list[ToolResult | ToolDecision]:
    """Return the answers of a message to its calls, with those of earlier requests. Raises BadParams."""
    answers: list[ToolResult | ToolDecision] = []
    for part in message.parts:
        # a client that runs a call sends its result instead of a new approval
        may_be_approved = part.state == "approval-responded" or part.provider_executed
        if part.approval is not None and part.approval.approved is not None and may_be_approved:
            answers.append(_decision(part.tool_call_id, part.approval))
        elif part.state == "output-available" and not part.provider_executed:
            output = part.output
            content = output if isinstance(output, str) else msgspec.json.encode(output).decode()
            answers.append(ToolResult(call_id=part.tool_call_id, content=content))
        elif part.state == "output-error" and not part.provider_executed:
            answers.append(ToolResult(call_id=part.tool_call_id, error=part.error_text or "It failed."))
    return answers


def _decision(call_id: str, approval: Approval) -> ToolDecision:
    """Return a decision. Raises BadParams unless this server asked for the approval."""
    approved_call_id, _, shown = approval.id.rpartition(".")
    if approved_call_id != call_id or len(shown) != _SHA256_CHARS:
        raise BadParams("answers an approval that was not requested.", field="messages")
    return ToolDecision(call_id=call_id, args_sha256=shown, decision="allow" if approval.approved else "deny")


class ChatFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The root of clients' frames. Answers carry the same `requestId`."""

    request_id: RequestId = msgspec.field(name="requestId")

    @property
    def ref(self) -> str:
        """The id in its answers."""
        return self.request_id


class SendFrame(ChatFrame, frozen=True, kw_only=True, tag="send"):
    """A message, or outcomes of calls. `headers`: `authorization` has a token. `body`: options of the reply."""

    id: Name
    messages: list[msgspec.Raw]
    trigger: Trigger = "submit-message"
    message_id: Id | None = msgspec.field(default=None, name="messageId")
    headers: Headers = {}
    body: GenerationOptions = GenerationOptions()

    def request(self) -> UIChatRequest:
        """Return it as a request."""
        return UIChatRequest(
            id=self.id,
            messages=self.messages,
            trigger=self.trigger,
            message_id=self.message_id,
            **msgspec.structs.asdict(self.body),
        )


class ResumeFrame(ChatFrame, frozen=True, kw_only=True, tag="resume"):
    """Asks for the message that is being written, from its start."""

    id: Name
    headers: Headers = {}


class AbortFrame(ChatFrame, frozen=True, kw_only=True, tag="abort"):
    """The client wants no more of an answer."""


ClientFrame = SendFrame | ResumeFrame | AbortFrame


class ServerChatFrame(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", rename="camel", omit_defaults=True
):
    """The root of the server's frames."""

    request_id: str


class StartFrame(ServerChatFrame, frozen=True, kw_only=True, tag="start"):
    """A message begins."""


class ChunkFrame(ServerChatFrame, frozen=True, kw_only=True, tag="chunk"):
    """A chunk of it; `sequence` counts them from 0."""

    sequence: int
    chunk: AnyChunk


class EndFrame(ServerChatFrame, frozen=True, kw_only=True, tag="end"):
    """The message has been sent."""


class ErrorFrame(ServerChatFrame, frozen=True, kw_only=True, tag="error"):
    """The request was refused: a sentence for people."""

    error_text: str


class NoActiveFrame(ServerChatFrame, frozen=True, kw_only=True, tag="no-active"):
    """No message is being written."""


def token_of(headers: Headers) -> str | None:
    """Return `Authorization`, whatever its case."""
    return next((value for name, value in headers.items() if name.lower() == "authorization"), None)


class ChatHandler:
    """Carries out requests.

    `inner`: answers native frames; `take_read`: counts other reads of the store, and may refuse one; `grace_s`: how
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
        """Begin or continue a message. A new text is registered at once, so a later stop finds it.

        Raises Refused.
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
        """Answer calls of the last reply. Raises BadParams; NotFound for other calls."""
        if not tool_answers.answers:
            raise BadParams("ends with a reply none of whose calls is answered.", field="messages")
        connection.caller.grant.check(KeyScope.CHAT)
        self._take_read(connection.caller.subject)
        shown = await self._sessions.history(connection.owner, connection, request.id, limit=PAGE)
        chain = latest_replies(shown.page.messages)
        call_ids = [{call.call_id for call in message.calls or ()} for message in chain]
        submitted = {answer.call_id for answer in tool_answers.answers}
        place = next((n for n in range(len(chain) - 1, -1, -1) if call_ids[n] & submitted), None)
        if place is None:
            raise NotFound("The answered calls do not belong to the chat's last reply; reload the chat.")
        encoder.continue_from(tool_answers.message_id, reply := chain[place])
        if encoder.is_stopped:  # stopped before its turn was known
            last = Cancel(turn_id=chain[-1].turn_id, conversation_id=request.id)
            await _finish(self._inner.handle(connection, last))
            return
        keeps_calls = request.on_disconnect == "continue"
        self._sessions.keep_calls(connection.owner, request.id, reply.turn_id, kept=keeps_calls)
        following_replies = tuple(chain[place + 1 :])
        # a client repeats its earlier answers each time
        open_calls = {call.call_id for call in reply.calls or () if not call.state.is_settled}
        answers = [
            answer
            for answer in tool_answers.answers
            if answer.call_id in open_calls and not following_replies
        ]
        if KeyScope.READ not in connection.caller.grant.scopes:
            following_replies = ()
        for answer in answers:  # a change of one call must not end the message while others are answered
            is_allowed = isinstance(answer, ToolDecision) and answer.decision == "allow"
            encoder.answered(answer.call_id, is_allowed=is_allowed)
        for answer in answers:
            if not encoder.is_stopped:
                named = msgspec.structs.replace(answer, ref=encoder.ref, conversation_id=request.id)
                await _finish(self._inner.handle(connection, named))
        connection.push(
            CallsAnswered(ref=encoder.ref, has_new_answers=bool(answers), following_replies=following_replies)
        )


async def _finish(slow: PendingWork | None) -> None:
    if slow is not None:
        await slow


def chat_caller(identity: Identity, client_id: str | None, chat_id: str, scope: Scope) -> Caller:
    """Return a chat's caller."""
    return caller_of(identity, client_id or f"{ANONYMOUS_PREFIX}{chat_id}", scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatService:
    """What these endpoints share."""

    sessions: Sessions
    request_context: RequestContext
    access: AccessControl
    lifecycle: ConnectionLifecycle
    limiters: Limiters

    async def chat_handler(self, *, grace_s: float) -> ChatHandler:
        """Make the handler of requests. `grace_s`: how long a reply waits for its client by default. Raises EngineDown."""
        limits = await self.request_context.limits(self.request_context.model(None, EVERYTHING))
        take_read = self.limiters.take_read
        inner = RateLimiter(FrameHandler(self.sessions, limits), self.limiters)
        return ChatHandler(inner=inner, sessions=self.sessions, take_read=take_read, grace_s=grace_s)


def error_response(why: Problem) -> Response:
    """Return the answer to a refused request: a sentence, with its code in a header."""
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
