"""Anthropic's `/v1/messages` and `/v1/messages/count_tokens`: their endpoints, the events of a reply, and refusals in its terms."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby
from typing import ClassVar, Literal, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Scope

from connections.api.anthropic.requests import (
    FIELD_NAMES,
    THREADS,
    CountRequest,
    MessageRequest,
    count_turn_request,
    message_turn_request,
    parse_count_request,
    parse_message_request,
)
from connections.api.endpoint import (
    ModelEndpoint,
    PageRoutes,
    RequestContext,
    SingleReplyEndpoint,
    ignored_header,
)
from connections.api.replies import problem_at_end, stream_reply
from connections.api.requests import (
    Problem,
    problem_of,
)
from connections.authentication.caller import Caller
from connections.http import (
    EndpointName,
    Exchange,
    forbidden_origin_message,
    json_response,
    refusal,
    sse,
)
from engine.messages import ToolCall
from sessions.errors import Overloaded, Refused
from sessions.events import Done, Reason
from sessions.limits.rates import FrameCost
from sessions.running.ephemeral import EphemeralReply, Piece, ReasoningPiece, TextPiece
from sessions.service import Sessions

R = TypeVar("R", bound=CountRequest)
_REASONS: dict[Reason, StopReason] = {
    Reason.STOP: "end_turn",
    Reason.TOOLS: "tool_use",
    Reason.LENGTH: "max_tokens",
    Reason.TIMEOUT: "max_tokens",
    Reason.FILTERED: "refusal",
}
_NO_INPUT = msgspec.Raw(b"{}")
_encode = msgspec.json.Encoder().encode
PATH = "/v1/messages"
OVERLOADED = 529
"""Anthropic's own status for overload, which its clients know."""
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    OVERLOADED: "overloaded_error",
}
_SERVERS = 500
_FORWARDED_HEADERS = ("retry-after", "retry-after-ms", "www-authenticate", "accept-encoding")
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]


class _AnthropicEndpoint(ModelEndpoint[R]):
    """Common parts of both endpoints. A key may be in `x-api-key` if there is no `Authorization`."""

    endpoint: ClassVar[EndpointName] = EndpointName.MESSAGES

    def names(self, request: R) -> Mapping[str, str]:  # noqa: ARG002 - they are the same for all
        """Return Anthropic's names of fields."""
        return FIELD_NAMES

    def refusal(self, refused: Refused) -> Response:
        """Return the answer to a refused request."""
        return error_response(refused, request_id())

    def token(self, request: Request) -> str | None:
        """Return a key as Anthropic's clients send it."""
        return request.headers.get("x-api-key")


class MessagesEndpoint(_AnthropicEndpoint[MessageRequest], SingleReplyEndpoint[MessageRequest]):
    """Answers messages."""

    read = staticmethod(parse_message_request)
    turn_request = staticmethod(message_turn_request)

    async def send_reply(self, exchange: Exchange, request: MessageRequest, reply: EphemeralReply) -> None:
        """Send a reply as a stream of events, or whole. Raises Problem if a whole one has no regular end."""
        headers = {"Request-Id": reply.turn_id, **ignored_header(reply)}
        if request.stream:
            await stream_reply(
                exchange,
                reply,
                MessagesEncoder(reply.turn_id, shows_reasoning=request.shows_reasoning),
                headers,
            )
            return
        pieces = [piece async for piece in reply]
        body = encode_message(reply, pieces, shows_reasoning=request.shows_reasoning)
        headers["X-Request-Id"] = reply.turn_id
        await exchange.answer(json_response(msgspec.Raw(body), headers=headers))


class CountTokensEndpoint(_AnthropicEndpoint[CountRequest]):
    """Counts tokens."""

    counts: ClassVar[FrameCost] = FrameCost.READ

    read = staticmethod(parse_count_request)
    turn_request = staticmethod(count_turn_request)

    async def answer(
        self,
        exchange: Exchange,
        caller: Caller,
        request: CountRequest,
        body_lease: ExitStack,  # noqa: ARG002 - held until all is counted
    ) -> None:
        """Answer with the count. Raises Refused."""
        ask = await self.build_request(exchange, caller, request)
        tokens = await self.sessions.ephemeral.count(caller.owner, ask)
        await exchange.answer(json_response(TokensCount(tokens), headers={"Request-Id": request_id()}))


def messages_routes(
    sessions: Sessions, request_context: RequestContext, pages: PageRoutes
) -> list[BaseRoute]:
    """Return the routes below `/v1`."""
    messages = MessagesEndpoint(sessions, request_context)
    count = CountTokensEndpoint(sessions, request_context)
    return [
        pages.route(PATH, messages, "POST", refusal=foreign_page),
        pages.route(f"{PATH}/count_tokens", count, "POST", refusal=foreign_page),
    ]


class MessagesEncoder:
    """Converts one stream. `shows_reasoning`: reasoning is sent, else only an empty block."""

    def __init__(self, turn_id: str, *, shows_reasoning: bool = True) -> None:
        self._turn_id = turn_id
        self._shows_reasoning = shows_reasoning
        self._begun = False
        self._index = -1
        self._open: type[TextPiece | ReasoningPiece] | None = None
        self._reasoning_hash = hashlib.sha256()

    def open(self) -> bytes:
        """Return nothing: a message begins with the count of its prompt."""
        return b""

    def begin(self, reply: EphemeralReply) -> bytes:
        """Return the message, as far as it is known."""
        self._begun = True
        count = reply.turn.count
        usage = _usage(count.prompt_tokens, count.cached_tokens)
        message = ReplyMessage(id=message_id(self._turn_id), model=reply.model, usage=usage)
        return _encode_events(MessageStart(message), Ping())

    def piece(self, piece: Piece) -> bytes:
        """Return what a piece adds to the open block, or a block of its own."""
        match piece:
            case TextPiece(text):
                return (
                    _encode_events(*self._append_delta(TextPiece, TextBlock(""), TextDelta(text)))
                    if text
                    else b""
                )
            case ReasoningPiece(text):
                return _encode_events(*self._add_reasoning(text))
            case ToolCall():
                return _encode_events(*self._call(piece))

    def end(self, reply: EphemeralReply) -> bytes:
        """Return the reason and the usage, or the failure."""
        done = reply.ended
        if (problem := problem_at_end(done)) is not None:
            return _encode_events(MessageError(error_of(problem), self._turn_id))
        begun = b"" if self._begun else self.begin(reply)
        return begun + _encode_events(
            *self._close(), MessageDelta(_end(done, reply.stop), usage_of(done)), MessageStop()
        )

    def fail(self, refused: Refused) -> bytes:
        """Return a failure outside the reply."""
        return _encode_events(MessageError(error_of(problem_of(refused)), self._turn_id))

    def ping(self) -> bytes:
        """Return a ping event."""
        return _encode_events(Ping())

    def _add_reasoning(self, text: str) -> Iterator[Event]:
        more = list(self._append_delta(ReasoningPiece, ThinkingBlock("", ""), ThinkingDelta(text)))
        self._reasoning_hash.update(text.encode())
        yield from more if self._shows_reasoning else more[:-1]

    def _append_delta(
        self, kind: type[TextPiece | ReasoningPiece], empty: Block, delta: TextDelta | ThinkingDelta
    ) -> Iterator[Event]:
        if self._open is not kind:
            yield from self._close()
            yield self._start(empty)
            self._open = kind
        yield BlockDelta(self._index, delta)

    def _call(self, call: ToolCall) -> Iterator[Event]:
        yield from self._close()
        yield self._start(ToolUseBlock(call.call_id, call.name, _NO_INPUT))
        yield BlockDelta(self._index, InputDelta(call.arguments))
        yield BlockStop(self._index)

    def _start(self, block: Block) -> BlockStart:
        self._index += 1
        return BlockStart(self._index, block)

    def _close(self) -> Iterator[Event]:
        """End the open block."""
        if self._open is ReasoningPiece:
            yield BlockDelta(self._index, SignatureDelta(_signature(self._reasoning_hash.hexdigest())))
            self._reasoning_hash = hashlib.sha256()
        if self._open is not None:
            yield BlockStop(self._index)
            self._open = None


def encode_message(reply: EphemeralReply, pieces: Sequence[Piece], *, shows_reasoning: bool = True) -> bytes:
    """Return a complete reply as JSON. Raises Problem if it has no regular end."""
    done = reply.ended
    if (problem := problem_at_end(done)) is not None:
        raise problem
    end = _end(done, reply.stop)
    message = ReplyMessage(
        id=message_id(reply.turn_id),
        model=reply.model,
        content=tuple(_blocks(pieces, shows_reasoning=shows_reasoning)),
        stop_reason=end.stop_reason,
        stop_sequence=end.stop_sequence,
        usage=usage_of(done),
    )
    return _encode(message)


def message_id(turn_id: str) -> str:
    """Return the message's id for a turn."""
    return f"msg_{turn_id.removeprefix('turn_')}"


def usage_of(done: Done) -> MessageUsage:
    """Return the usage."""
    counted = done.usage
    return _usage(
        counted.prompt_tokens, counted.cached_tokens, counted.generated_tokens, counted.reasoning_tokens
    )


def _usage(prompt: int, cached: int, generated: int = 0, thought: int = 0) -> MessageUsage:
    return MessageUsage(prompt - cached, generated, cached, ThinkingTokens(thought))


def _end(done: Done, stop: str | None) -> MessageEnd:
    return MessageEnd("stop_sequence" if stop is not None else _REASONS[done.reason], stop)


def _blocks(pieces: Sequence[Piece], *, shows_reasoning: bool) -> Iterator[Block]:
    """Join adjacent pieces, but not calls."""
    shown = (piece for piece in pieces if isinstance(piece, ToolCall) or piece.text)
    for kind, neighbours in groupby(shown, type):
        texts: list[str] = []
        for piece in neighbours:
            if isinstance(piece, ToolCall):
                yield ToolUseBlock(piece.call_id, piece.name, msgspec.Raw(piece.arguments.encode()))
            else:
                texts.append(piece.text)
        text = "".join(texts)
        if kind is TextPiece:
            yield TextBlock(text)
        elif kind is ReasoningPiece:
            signature = _signature(hashlib.sha256(text.encode()).hexdigest())
            yield ThinkingBlock(text if shows_reasoning else "", signature)


def _signature(digest: str) -> str:
    """Return a signature. Its text says what it is: clients return it unchanged, and nobody checks it."""
    return f"sha256:{digest}"


def _encode_events(*events: Event) -> bytes:
    return b"".join(sse(_encode(event), str(event.__struct_config__.tag)) for event in events)


def request_id() -> str:
    """Return an id for a request without a turn."""
    return f"req_{secrets.token_urlsafe(12)}"


def error_response(why: Refused, named: str) -> Response:
    """Return the answer to a refused request, whose id is `named`."""
    problem = problem_of(why)
    response = problem.response()
    kept = {name: value for name, value in response.headers.items() if name in _FORWARDED_HEADERS}
    details = ProblemDetails(problem.code) if problem.code == THREADS else msgspec.UNSET
    return _response(status_of(problem), str(problem), named, kept, details)


def error_of(problem: Problem) -> MessageProblem:
    """Return a problem as a stream sends it."""
    return MessageProblem(_type(status_of(problem)), str(problem))


def status_of(problem: Problem) -> int:
    """Return the status of a problem."""
    return OVERLOADED if problem.code == Overloaded.code else problem.status


def is_anthropic_request(scope: Scope) -> bool:
    """Return whether a client of Anthropic's API sent a request: its path says so, or the header that all of them send."""
    path: str = scope["path"]
    return path == PATH or path.startswith(f"{PATH}/") or "anthropic-version" in Headers(scope=scope)


def refusal_of(
    scope: Scope, status: int, code: str, why: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return the refusal of a request that reached no endpoint, in the shape that its client reads."""
    if is_anthropic_request(scope):
        return _response(status, why, request_id(), headers or {})
    return refusal(status, code, why, headers)


def foreign_page(origin: str | None) -> Response:
    """Return the answer to a page of an origin that is not allowed."""
    return _response(403, forbidden_origin_message(origin), request_id(), {})


def _type(status: int) -> str:
    return _TYPES.get(status, "api_error" if status >= _SERVERS else "invalid_request_error")


def _response(
    status: int,
    message: str,
    named: str,
    headers: Mapping[str, str],
    details: ProblemDetails | msgspec.UnsetType = msgspec.UNSET,
) -> Response:
    error = MessageError(MessageProblem(_type(status), message, details), named)
    return json_response(error, status=status, headers={"Request-Id": named, **headers})


class TextBlock(msgspec.Struct, frozen=True, tag="text"):
    """Text."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag="thinking"):
    """Reasoning. `signature`: a hash of the text, which proves nothing."""

    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, frozen=True, tag="tool_use"):
    """A call. `input`: a JSON object."""

    id: str
    name: str
    input: msgspec.Raw


Block = TextBlock | ThinkingBlock | ToolUseBlock


class ThinkingTokens(msgspec.Struct, frozen=True):
    """Reasoning tokens, as a part of the reply's."""

    thinking_tokens: int


class MessageUsage(msgspec.Struct, frozen=True):
    """Tokens. The prompt has `input_tokens` that were computed, and `cache_read_input_tokens` from the cache.

    `cache_creation_input_tokens` is 0: caching has no price.
    """

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    output_tokens_details: ThinkingTokens
    cache_creation_input_tokens: int = 0


class ReplyMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A reply; at the beginning of a stream without content and end."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: tuple[Block, ...] = ()
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class MessageStart(msgspec.Struct, frozen=True, tag="message_start"):
    """A stream begins."""

    message: ReplyMessage


class BlockStart(msgspec.Struct, frozen=True, tag="content_block_start"):
    """A block begins, still empty."""

    index: int
    content_block: Block


class TextDelta(msgspec.Struct, frozen=True, tag="text_delta"):
    """More text."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag="thinking_delta"):
    """More reasoning."""

    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag="signature_delta"):
    """The signature of the reasoning, at its end."""

    signature: str


class InputDelta(msgspec.Struct, frozen=True, tag="input_json_delta"):
    """The text of a call's input."""

    partial_json: str


class BlockDelta(msgspec.Struct, frozen=True, tag="content_block_delta"):
    """More of a block."""

    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(msgspec.Struct, frozen=True, tag="content_block_stop"):
    """A block is complete."""

    index: int


class MessageEnd(msgspec.Struct, frozen=True):
    """Why a reply ended. `stop_sequence`: the one that ended it."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, tag="message_delta"):
    """A reply ended. `usage`: of the whole reply."""

    delta: MessageEnd
    usage: MessageUsage


class MessageStop(msgspec.Struct, frozen=True, tag="message_stop"):
    """Nothing follows."""


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """The stream is alive."""


class ProblemDetails(msgspec.Struct, frozen=True):
    """Why a field can't be followed, in a form that Anthropic's SDKs act on."""

    error_code: str
    unsupported: tuple[()] = ()


class MessageProblem(msgspec.Struct, frozen=True):
    """A failure: a type for programs, a sentence for people."""

    type: str
    message: str
    details: ProblemDetails | msgspec.UnsetType = msgspec.UNSET


class MessageError(msgspec.Struct, frozen=True, tag="error"):
    """The body of a refusal, and of a stream's `error` event."""

    error: MessageProblem
    request_id: str


class TokensCount(msgspec.Struct, frozen=True):
    """The number of tokens of a prompt."""

    input_tokens: int


Event = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping | MessageError
