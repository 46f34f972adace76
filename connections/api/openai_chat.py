"""OpenAI's endpoints without a conversation: chat completions, embeddings and models."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import ClassVar, Literal

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from connections.api.chat_requests import (
    ChatRequest,
    chat_turn_request,
    field_names,
    parse_chat_request,
    shows_reasoning,
)
from connections.api.endpoint import (
    HttpEndpoint,
    PageRoutes,
    RequestContext,
    SingleReplyEndpoint,
    ignored_header,
)
from connections.api.replies import FinishReason, ReplyToken, finish_reason, reply_token, stream_reply
from connections.api.requests import Problem, decode_request, invalid, invalid_field, problem_of
from connections.authentication.caller import Caller
from connections.http import SSE_DONE, EndpointName, Exchange, json_response, sse
from connections.protocol.base import Grant
from engine import messages
from engine.api import Texts
from engine.messages import ChosenToken, Languages
from engine.served_models import ServedModel
from engine.upstream.engine import UpstreamEmbedder
from sessions.embedding import Embedding
from sessions.errors import Forbidden, ModelNotFound, Refused
from sessions.events import Done
from sessions.running.ephemeral import EphemeralReply, Piece, ReasoningPiece, TextPiece
from sessions.service import Sessions

_encode = msgspec.json.Encoder().encode
MAX_DIMENSIONS = 65_536
_IDS = re.compile(rb"\[\s*(\[|[0-9])")
_REFUSED: Mapping[str, str] = {
    "input_type": "`input_type` is not supported: add the model's prefix to each text.",
    "prompt_name": "`prompt_name` is not supported: add the model's prefix to each text.",
}
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class ChatCompletionsEndpoint(SingleReplyEndpoint[ChatRequest]):
    """`POST /v1/chat/completions`."""

    endpoint: ClassVar[EndpointName] = EndpointName.CHAT

    read = staticmethod(parse_chat_request)
    names = staticmethod(field_names)
    turn_request = staticmethod(chat_turn_request)

    async def send_reply(self, exchange: Exchange, request: ChatRequest, reply: EphemeralReply) -> None:
        """Send a reply as a stream of chunks, or whole. Raises Problem if a whole one has no regular end."""
        encoder = ChatCompletionsEncoder(
            reply,
            usage=request.includes_usage,
            logprobs=bool(request.logprobs),
            reasoning=shows_reasoning(request),
        )
        if request.stream:
            await stream_reply(exchange, reply, encoder, ignored_header(reply))
            return
        completion = encoder.completion([piece async for piece in reply])
        headers = {"X-Request-Id": reply.turn_id, **ignored_header(reply)}
        await exchange.answer(json_response(completion, headers=headers))


class ModelsEndpoint:
    """Lists models."""

    def __init__(self, request_context: RequestContext) -> None:
        self._request_context = request_context
        self._created = int(time.time())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            response = await self._answer(Request(scope, receive))
        except Refused as refused:
            response = self._request_context.refusal(refused, EndpointName.MODELS)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        grant = (await self._request_context.caller(request)).grant
        name: str | None = request.path_params.get("model")
        answer: Model | Models
        if name is None:
            models = self._request_context.models(grant)
            named = ((model, name) for model in models for name in (model.name, *model.aliases))
            answer = Models(data=tuple(self._shown(model, name) for model, name in named))
        else:
            answer = self._shown(self._request_context.model(name, grant), name)
        return json_response(answer)

    def _shown(self, model: ServedModel, name: str) -> Model:
        facts = model.engine.facts
        window = UNSET if facts is None else facts.context_tokens
        takes_images = facts is not None and "images" in facts.features
        modalities = Architecture(input_modalities=("text", "image") if takes_images else ("text",))
        return Model(
            id=name,
            created=self._created,
            max_model_len=window,
            context_length=window,
            root=UNSET if name == model.name else model.name,
            languages=UNSET if facts is None or facts.languages is None else facts.languages,
            architecture=UNSET if facts is None else modalities,
        )


def openai_routes(sessions: Sessions, request_context: RequestContext, pages: PageRoutes) -> list[BaseRoute]:
    """Return the routes below `/v1`."""
    chat = ChatCompletionsEndpoint(sessions, request_context)
    embeddings = EmbeddingsEndpoint(sessions.embedding, request_context)
    models = ModelsEndpoint(request_context)
    return [
        pages.route("/v1/chat/completions", chat, "POST"),
        pages.route("/v1/models", models, "GET"),
        pages.route("/v1/models/{model:path}", models, "GET"),
        pages.route("/v1/embeddings", embeddings, "POST"),
    ]


class PromptTokens(msgspec.Struct, frozen=True):
    """Details of the prompt's tokens."""

    cached_tokens: int


class ReplyTokens(msgspec.Struct, frozen=True):
    """Details of the reply's tokens."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokens
    completion_tokens_details: ReplyTokens


class Logprobs(msgspec.Struct, frozen=True):
    """The log-probabilities of a text's tokens."""

    content: tuple[ReplyToken, ...]
    refusal: None = None


class CalledFunction(msgspec.Struct, frozen=True):
    """A function to be called. `arguments`: the text of a JSON object."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call in a complete reply."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Reply(msgspec.Struct, frozen=True):
    """The message of a complete reply. Its reasoning has DeepSeek's name, and vLLM's newer one."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: tuple[ToolCall, ...] | msgspec.UnsetType = msgspec.UNSET


class Choice(msgspec.Struct, frozen=True):
    """The reply: there is one for each request."""

    message: Reply
    finish_reason: FinishReason
    index: int = 0
    logprobs: Logprobs | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A complete reply. `created`: Unix seconds."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: Usage


class CallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A call, which comes in one piece. `index`: its place among the reply's calls."""

    index: int
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chunk adds to the message. Reasoning has two names, as in a complete reply."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[CallDelta, ...] = ()


class ChunkChoice(msgspec.Struct, frozen=True):
    """A chunk's part of the reply."""

    delta: Delta
    finish_reason: FinishReason | None = None
    index: int = 0
    logprobs: Logprobs | None = None


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a stream. `usage` is left out unless requested; then it is null in all chunks but the last."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """What a model reads and writes, in OpenRouter's terms."""

    input_modalities: tuple[Literal["text", "image"], ...] = ("text",)
    output_modalities: tuple[Literal["text"], ...] = ("text",)


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A served model, or an alias whose `root` is its model. `created`: Unix seconds of the start.

    Its window in tokens has vLLM's name and OpenRouter's: clients read one or the other. Both, and its
    `architecture`, are missing before the model is loaded. `languages`: of a model that only translates.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["midstream"] = "midstream"
    max_model_len: int | msgspec.UnsetType = msgspec.UNSET
    context_length: int | msgspec.UnsetType = msgspec.UNSET
    root: str | msgspec.UnsetType = msgspec.UNSET
    languages: Languages | msgspec.UnsetType = msgspec.UNSET
    architecture: Architecture | msgspec.UnsetType = msgspec.UNSET


class Models(msgspec.Struct, frozen=True, kw_only=True):
    """All models."""

    object: Literal["list"] = "list"
    data: tuple[Model, ...]


class ChatCompletionsEncoder:
    """Converts a reply. `usage`: a stream ends with its usage; `reasoning`: reasoning is sent.

    `logprobs`: text comes with its tokens' log-probabilities; they may be empty, as some come with later text.
    """

    def __init__(self, reply: EphemeralReply, *, usage: bool, logprobs: bool, reasoning: bool) -> None:
        self._reply = reply
        self._usage = usage
        self._logprobs = logprobs
        self._reasoning = reasoning
        self._id = f"chatcmpl-{reply.turn_id.removeprefix('turn_')}"
        self._created = int(time.time())
        self._calls = 0

    def open(self) -> bytes:
        """Return the first chunk."""
        return self._chunk(ChunkChoice(Delta(role="assistant", content="")))

    def begin(self, reply: EphemeralReply) -> bytes:  # noqa: ARG002 - the first chunk has nothing of the prompt
        """Return nothing."""
        return b""

    def piece(self, piece: Piece) -> bytes:
        """Return a chunk with a piece of the reply, or nothing."""
        match piece:
            case TextPiece(text, logprobs):
                return self._chunk(ChunkChoice(Delta(content=text), logprobs=self._logprobs_of(logprobs)))
            case ReasoningPiece(text):
                thought = Delta(reasoning_content=text, reasoning=text)
                return self._chunk(ChunkChoice(thought)) if self._reasoning else b""
            case messages.ToolCall():
                delta = CallDelta(index=self._calls, id=piece.call_id, function=_function(piece))
                self._calls += 1
                return self._chunk(ChunkChoice(Delta(tool_calls=(delta,))))

    def end(self, reply: EphemeralReply) -> bytes:
        """Return the last chunk with its reason, and the usage if requested; or why the reply failed."""
        totals = self._chunk(usage=usage_of(reply.ended)) if self._usage else b""
        try:
            last = self._chunk(ChunkChoice(Delta(), finish_reason=finish_reason(reply.ended)))
        except Problem as problem:
            return totals + self.fail(problem)
        return last + totals + SSE_DONE

    def fail(self, refused: Refused) -> bytes:
        """Return an error event."""
        return sse(problem_of(refused).body, "error")

    def ping(self) -> bytes:
        """Return nothing: all chunks have a part of the reply."""
        return b""

    def completion(self, pieces: Sequence[Piece]) -> Completion:
        """Return the complete reply. Raises Problem if it has no regular end."""
        tokens = [one for piece in pieces if isinstance(piece, TextPiece) for one in piece.logprobs]
        message = assistant_message(pieces, thinks=self._reasoning)
        done = self._reply.ended
        return Completion(
            id=self._id,
            created=self._created,
            model=self._reply.model,
            choices=(Choice(message, finish_reason(done), logprobs=self._logprobs_of(tokens)),),
            usage=usage_of(done),
        )

    def _logprobs_of(self, tokens: Sequence[ChosenToken]) -> Logprobs | None:
        return Logprobs(tuple(map(reply_token, tokens))) if self._logprobs else None

    def _chunk(self, *choices: ChunkChoice, usage: Usage | None = None) -> bytes:
        """Return a chunk. It has the model that writes now: a fallback may have taken over."""
        chunk = Chunk(
            id=self._id,
            created=self._created,
            model=self._reply.model,
            choices=choices,
            usage=usage if self._usage else msgspec.UNSET,
        )
        return sse(_encode(chunk))


def assistant_message(pieces: Sequence[Piece], *, thinks: bool = True) -> Reply:
    """Return the message of a complete reply; without text if it is all calls."""
    text = "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))
    thought = "".join(piece.text for piece in pieces if isinstance(piece, ReasoningPiece)) if thinks else ""
    calls = tuple(
        ToolCall(id=piece.call_id, function=_function(piece))
        for piece in pieces
        if isinstance(piece, messages.ToolCall)
    )
    return Reply(
        content=None if calls and not text else text,
        reasoning_content=thought or msgspec.UNSET,
        reasoning=thought or msgspec.UNSET,
        tool_calls=calls or msgspec.UNSET,
    )


def _function(call: messages.ToolCall) -> CalledFunction:
    return CalledFunction(call.name, call.arguments)


def usage_of(done: Done) -> Usage:
    """Return the usage of an ended turn."""
    usage = done.usage
    return Usage(
        usage.prompt_tokens,
        usage.generated_tokens,
        usage.prompt_tokens + usage.generated_tokens,
        PromptTokens(usage.cached_tokens),
        ReplyTokens(usage.reasoning_tokens),
    )


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Texts to embed. `user` and unknown fields have no effect."""

    model: str | None = None
    input: str | list[str]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """Tokens that the model read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddedText(msgspec.Struct, frozen=True, kw_only=True):
    """The vector of a text: a list of numbers, or its 32-bit little-endian floats in base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: msgspec.Raw


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors of all texts, in order."""

    object: Literal["list"] = "list"
    data: tuple[EmbeddedText, ...]
    model: str
    usage: EmbeddingUsage


class EmbeddingsEndpoint(HttpEndpoint[EmbeddingRequest]):
    """Answers requests. Each counts as a message, and its tokens as those of a prompt."""

    endpoint: ClassVar[EndpointName] = EndpointName.EMBEDDINGS

    def __init__(self, embedding: Embedding, request_context: RequestContext) -> None:
        super().__init__(request_context)
        self._embedding = embedding

    def read(self, body: bytes) -> EmbeddingRequest:
        """Return the request in a body. Raises Problem, TooManyValues."""
        return decode_request(body, _decoded)

    async def serve(
        self, exchange: Exchange, caller: Caller, request: EmbeddingRequest, body_lease: ExitStack
    ) -> None:
        """Answer with the vectors. Raises Refused."""
        writers = self.request_context.names(caller.grant)
        embedder = embedder_for(request.model, self._embedding.embedders, caller.grant, writers)
        texts = texts_of(request, embedder)
        await self.request_context.count(caller)
        vectors = await self._embedding.embed(caller.owner, caller.group, embedder, texts)
        body_lease.close()
        self.request_context.used(caller, vectors.tokens)
        data = tuple(EmbeddedText(index=place, embedding=one) for place, one in enumerate(vectors.vectors))
        usage = EmbeddingUsage(vectors.tokens, vectors.tokens)
        await exchange.answer(json_response(EmbeddingList(data=data, model=embedder.name, usage=usage)))


_request = msgspec.json.Decoder(EmbeddingRequest).decode


def _decoded(body: bytes) -> EmbeddingRequest:
    fields = _fields(body)
    if _IDS.match(memoryview(fields.get("input", b""))):
        why = "Token IDs are not supported as `input`: send text."
        raise invalid("input", why, code="unsupported_parameter")
    for field, why in _REFUSED.items():
        if bytes(fields.get(field, b"null")) != b"null":
            raise invalid(field, why, code="unsupported_parameter")
    return _request(body)


def embedder_for(
    name: str | None, embedders: Sequence[UpstreamEmbedder], grant: Grant, writers: Sequence[str]
) -> UpstreamEmbedder:
    """Return the embedder. `writers`: the models that write replies. Raises Problem, ModelNotFound, Forbidden."""
    if not embedders:
        why = "Embeddings are off: the operator has configured no embedding model."
        raise Problem(404, why, code="model_not_found", param="model")
    allowed = [one for one in embedders if not grant.models or one.name in grant.models]
    names = [one.name for one in allowed]
    if name in writers:
        served = "" if not names else " For those it has " + ", ".join(f'"{one}"' for one in names) + "."
        why = f'The model "{name}" writes replies, and makes no embeddings.{served}'
        raise invalid("model", why, code="unsupported_model")
    found = next((one for one in allowed if name in (None, one.name)), None)
    if found is None and name in [one.name for one in embedders]:
        raise Forbidden(f'This key may not use the model "{name}".')
    if found is None and not names:
        raise Forbidden("This key may not use any embedding model.")
    if found is None:
        raise ModelNotFound(name or "", names)
    return found


def texts_of(request: EmbeddingRequest, embedder: UpstreamEmbedder) -> Texts:
    """Return the texts for the embedder. Raises Problem."""
    texts = (request.input,) if isinstance(request.input, str) else tuple(request.input)
    if not 0 < len(texts) <= embedder.max_texts or not all(texts):
        why = f"must be a non-empty string, or a list of 1 to {embedder.max_texts}."
        raise invalid_field("input", why)
    if request.dimensions is not None and not embedder.takes_dimensions:
        why = f'The vectors of "{embedder.name}" have one length: leave `dimensions` out.'
        raise invalid("dimensions", why, code="unsupported_parameter")
    if request.dimensions is not None and not 0 < request.dimensions <= MAX_DIMENSIONS:
        raise invalid_field("dimensions", f"must be from 1 to {MAX_DIMENSIONS}.")
    packed = request.encoding_format == "base64"
    return Texts(texts, dimensions=request.dimensions, packed=packed)
