"""OpenAI's endpoints without a conversation: chat completions, completions, embeddings and models."""

from __future__ import annotations

import re
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import ClassVar, Literal, TypeVar

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from connections.api.chat_requests import (
    ChatRequest,
    ChoicesRequest,
    CompletionRequest,
    chat_turn_request,
    completion_turn_requests,
    field_names,
    parse_chat_request,
    parse_completion_request,
    shows_reasoning,
)
from connections.api.endpoint import HttpEndpoint, ModelEndpoint, PageRoutes, RequestContext, ignored_header
from connections.api.replies import FinishReason, ReplyToken, finish_reason, reply_token
from connections.api.requests import Problem, decode_request, invalid, invalid_field
from connections.authentication.caller import Caller
from connections.http import SSE_DONE, EndpointName, Exchange, json_response, sse
from connections.protocol.base import Grant, Limits
from engine import messages
from engine.api import Texts
from engine.messages import ChosenToken, Languages
from engine.served_models import ServedModel
from engine.upstream.engine import UpstreamEmbedder
from sessions.embedding import Embedding
from sessions.errors import Forbidden, ModelNotFound, Refused
from sessions.events import Done
from sessions.running.ephemeral import EphemeralRequest, Piece, ReasoningPiece, ReplySet, TextPiece
from sessions.service import Sessions

R = TypeVar("R", bound=ChoicesRequest)
_encode = msgspec.json.Encoder().encode
MAX_DIMENSIONS = 65_536
_IDS = re.compile(rb"\[\s*(\[|[0-9])")
_REFUSED: Mapping[str, str] = {
    "input_type": "`input_type` is not supported: add the model's prefix to each text.",
    "prompt_name": "`prompt_name` is not supported: add the model's prefix to each text.",
}
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class GenerationEndpoint(ModelEndpoint[R]):
    """Answers requests. A client that leaves stops its turns."""

    names = staticmethod(field_names)

    @abstractmethod
    def encoder(self, request: R, turn_id: str, created: int) -> ReplyEncoder:
        """Return the replies' encoder."""

    async def answer(self, exchange: Exchange, caller: Caller, request: R, body_lease: ExitStack) -> None:
        """Have turns write the replies. Raises Refused."""
        turn_requests = await self.build_requests(exchange, caller, request)
        # each reply counts as a message; one was counted when the request came
        number = sum(ask.replies for ask in turn_requests)
        self.request_context.take(caller, number - 1)
        await self.request_context.count(caller, number)
        replies = await self.sessions.ephemeral.answers(caller.owner, turn_requests)
        body_lease.close()
        encoder = self.encoder(request, replies.first.turn_id, int(time.time()))
        prompts = [number for number, ask in enumerate(turn_requests) for _ in range(ask.replies)]
        try:
            await (_send_stream if request.stream else _send_complete)(exchange, replies, encoder, prompts)
        finally:
            replies.cancel()


async def _send_stream(
    exchange: Exchange, replies: ReplySet, encoder: ReplyEncoder, prompts: Sequence[int]
) -> None:
    replies.on_overflow(exchange.cut_off)
    await exchange.begin_events(replies.first.turn_id, ignored_header(replies.first))
    first = (encoder.begin(number, reply.model) for number, reply in enumerate(replies.all))
    await exchange.write(b"".join(first))
    last = await _send_pieces(exchange, replies, encoder, prompts)
    await exchange.write(last, more=False)


async def _send_pieces(
    exchange: Exchange, replies: ReplySet, encoder: ReplyEncoder, prompts: Sequence[int]
) -> bytes:
    """Send all pieces; return what is left: ends of replies with no piece after, and the stream's."""
    calls, ended = [0] * len(replies), b""
    try:
        async for number, piece in replies:
            model = replies[number].model  # a fallback may answer
            if piece is None:
                ended += encoder.end(number, model, replies[number].ended)
                continue
            part = ended + encoder.piece(number, model, piece, calls[number])
            calls[number] += isinstance(piece, messages.ToolCall)
            ended = b""
            if part:
                await exchange.write(part)
    except Problem as problem:
        return ended + encoder.fail(replies.first.model, problem, *_ended_replies(replies, prompts))
    return ended + encoder.close(replies.first.model, *_ended_replies(replies, prompts))


def _ended_replies(replies: ReplySet, prompts: Sequence[int]) -> tuple[list[Done], list[int]]:
    """Return the ends so far, and the numbers of their prompts."""
    ended = [(reply.done, prompt) for reply, prompt in zip(replies.all, prompts, strict=True) if reply.done]
    return [done for done, _ in ended], [prompt for _, prompt in ended]


async def _send_complete(
    exchange: Exchange, replies: ReplySet, encoder: ReplyEncoder, prompts: Sequence[int]
) -> None:
    """Send all replies at once. Raises Problem if a reply has no regular end."""
    pieces: list[list[Piece]] = [[] for _ in replies.all]
    async for number, piece in replies:
        if piece is None:
            encoder.end(number, replies[number].model, replies[number].ended)
        else:
            pieces[number].append(piece)
    complete = [(some, reply.ended) for some, reply in zip(pieces, replies.all, strict=True)]
    body = encoder.whole(replies.first.model, complete, prompts)
    headers = {"X-Request-Id": replies.first.turn_id, **ignored_header(replies.first)}
    await exchange.answer(json_response(msgspec.Raw(body), headers=headers))


class ChatCompletionsEndpoint(GenerationEndpoint[ChatRequest]):
    """`POST /v1/chat/completions`."""

    endpoint: ClassVar[EndpointName] = EndpointName.CHAT

    read = staticmethod(parse_chat_request)

    def turn_requests(self, request: ChatRequest, limits: Limits) -> list[EphemeralRequest]:
        """Return the turns' requests. Raises Problem."""
        return [chat_turn_request(request, limits)]

    def encoder(self, request: ChatRequest, turn_id: str, created: int) -> ChatCompletionsEncoder:
        """Return the replies' encoder."""
        return ChatCompletionsEncoder(
            turn_id=turn_id,
            created=created,
            usage=request.includes_usage,
            logprobs=bool(request.logprobs),
            reasoning=shows_reasoning(request),
        )


class CompletionsEndpoint(GenerationEndpoint[CompletionRequest]):
    """`POST /v1/completions`: prompts without a chat template."""

    endpoint: ClassVar[EndpointName] = EndpointName.COMPLETIONS

    read = staticmethod(parse_completion_request)

    turn_requests = staticmethod(completion_turn_requests)

    def encoder(self, request: CompletionRequest, turn_id: str, created: int) -> CompletionsEncoder:
        """Return the texts' encoder."""
        return CompletionsEncoder(
            turn_id=turn_id,
            created=created,
            usage=request.includes_usage,
            logprobs=request.logprobs is not None,
        )


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
    completions = CompletionsEndpoint(sessions, request_context)
    embeddings = EmbeddingsEndpoint(sessions.embedding, request_context)
    models = ModelsEndpoint(request_context)
    return [
        pages.route("/v1/chat/completions", chat, "POST"),
        pages.route("/v1/completions", completions, "POST"),
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
    """Tokens of a request: of its prompts, each counted once, and of all replies."""

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
    """One reply."""

    message: Reply
    finish_reason: FinishReason
    index: int = 0
    logprobs: Logprobs | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """Complete replies. `created`: Unix seconds."""

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
    """A chunk's part of one reply."""

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


class TextLogprobs(msgspec.Struct, frozen=True):
    """The log-probabilities of a text's tokens, by position. `text_offset`: code points before each."""

    tokens: tuple[str, ...]
    token_logprobs: tuple[float, ...]
    top_logprobs: tuple[dict[str, float], ...]
    text_offset: tuple[int, ...]


class TextChoice(msgspec.Struct, frozen=True):
    """One text, or a chunk's part of it."""

    text: str
    index: int = 0
    logprobs: TextLogprobs | None = None
    finish_reason: FinishReason | None = None


class TextCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """Complete texts, or a part of a stream. `usage` is left out of chunks unless requested, as in `Chunk`."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: tuple[TextChoice, ...]
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


class _ReplyEncoder(msgspec.Struct, frozen=True, kw_only=True):
    """The common values of one request's answers. `created`: Unix seconds; `usage`: a stream ends with its usage.

    `logprobs`: text comes with its tokens' log-probabilities; they may be empty, as some come with later text.
    """

    turn_id: str
    created: int
    usage: bool = False
    logprobs: bool = False

    def close(self, model: str, ends: Sequence[Done], prompts: Sequence[int]) -> bytes:
        """Return the end of the stream: the usage if requested. `prompts`: as in `usage_of`."""
        return self.totals(model, ends, prompts) + SSE_DONE

    def fail(self, model: str, problem: Problem, ends: Sequence[Done], prompts: Sequence[int]) -> bytes:
        """Return the end of the stream if a reply has no regular end: the usage, then the problem."""
        return self.totals(model, ends, prompts) + sse(problem.body, "error")

    def totals(self, model: str, ends: Sequence[Done], prompts: Sequence[int]) -> bytes:
        """Return the chunk with the usage, if requested."""
        raise NotImplementedError


class ChatCompletionsEncoder(_ReplyEncoder, frozen=True, kw_only=True):
    """Converts the replies to a chat. `reasoning`: reasoning is sent."""

    reasoning: bool = True

    def begin(self, number: int, model: str) -> bytes:
        """Return the first chunk of a reply."""
        return self._event(model, ChunkChoice(Delta(role="assistant", content=""), index=number))

    def piece(self, number: int, model: str, piece: Piece, calls: int) -> bytes:
        """Return a chunk with a piece of a reply, or nothing. `calls`: the reply's calls before it."""
        match piece:
            case TextPiece(text, logprobs):
                token_logprobs = self._logprobs(logprobs)
                return self._event(
                    model, ChunkChoice(Delta(content=text), index=number, logprobs=token_logprobs)
                )
            case ReasoningPiece(text):
                thought = Delta(reasoning_content=text, reasoning=text)
                return self._event(model, ChunkChoice(thought, index=number)) if self.reasoning else b""
            case messages.ToolCall():
                delta = CallDelta(index=calls, id=piece.call_id, function=_function(piece))
                return self._event(model, ChunkChoice(Delta(tool_calls=(delta,)), index=number))

    def end(self, number: int, model: str, done: Done) -> bytes:
        """Return the last chunk of a reply, with its reason. Raises Problem if it has no regular end."""
        return self._event(model, ChunkChoice(Delta(), finish_reason=finish_reason(done), index=number))

    def whole(
        self, model: str, replies: Sequence[tuple[Sequence[Piece], Done]], prompts: Sequence[int]
    ) -> bytes:
        """Return complete replies as JSON. Raises Problem if one is incomplete."""
        return _encode(
            Completion(
                id=self._id,
                created=self.created,
                model=model,
                choices=tuple(
                    self._choice(number, pieces, done) for number, (pieces, done) in enumerate(replies)
                ),
                usage=usage_of([done for _, done in replies], prompts),
            )
        )

    def _choice(self, number: int, pieces: Sequence[Piece], done: Done) -> Choice:
        tokens = [one for piece in pieces if isinstance(piece, TextPiece) for one in piece.logprobs]
        reason = finish_reason(done)
        return Choice(
            assistant_message(pieces, thinks=self.reasoning), reason, number, self._logprobs(tokens)
        )

    @property
    def _id(self) -> str:
        return f"chatcmpl-{self.turn_id.removeprefix('turn_')}"

    def _logprobs(self, tokens: Sequence[ChosenToken]) -> Logprobs | None:
        return Logprobs(tuple(map(reply_token, tokens))) if self.logprobs else None

    def _event(self, model: str, *choices: ChunkChoice, totals: Usage | None = None) -> bytes:
        usage = totals if self.usage else msgspec.UNSET
        chunk = Chunk(id=self._id, created=self.created, model=model, choices=choices, usage=usage)
        return sse(_encode(chunk))

    def totals(self, model: str, ends: Sequence[Done], prompts: Sequence[int]) -> bytes:
        """Return the chunk with the usage, if requested."""
        return self._event(model, totals=usage_of(ends, prompts)) if self.usage else b""


class CompletionsEncoder(_ReplyEncoder, frozen=True, kw_only=True):
    """Converts texts, which continue prompts."""

    def begin(self, number: int, model: str) -> bytes:  # noqa: ARG002 - as at the chat's endpoint
        """Return nothing: the text comes first."""
        return b""

    def piece(self, number: int, model: str, piece: Piece, calls: int) -> bytes:  # noqa: ARG002 - there are none
        """Return a part of a text."""
        choice = TextChoice(_text(piece), number, self._logprobs([piece]))
        return sse(_encode(self._completion(model, (choice,), self._pending_usage)))

    def end(self, number: int, model: str, done: Done) -> bytes:
        """Return the last part of a text, with the reason. Raises Problem if it has no regular end."""
        choice = TextChoice("", number, finish_reason=finish_reason(done))
        return sse(_encode(self._completion(model, (choice,), self._pending_usage)))

    def whole(
        self, model: str, replies: Sequence[tuple[Sequence[Piece], Done]], prompts: Sequence[int]
    ) -> bytes:
        """Return complete texts as JSON. Raises Problem if one is incomplete."""
        choices = tuple(
            TextChoice("".join(map(_text, pieces)), number, self._logprobs(pieces), finish_reason(done))
            for number, (pieces, done) in enumerate(replies)
        )
        usage = usage_of([done for _, done in replies], prompts)
        return _encode(self._completion(model, choices, usage))

    @property
    def _pending_usage(self) -> msgspec.UnsetType | None:
        """The value of `usage` before the end."""
        return None if self.usage else msgspec.UNSET

    def totals(self, model: str, ends: Sequence[Done], prompts: Sequence[int]) -> bytes:
        """Return the chunk with the usage, if requested."""
        if not self.usage:
            return b""
        return sse(_encode(self._completion(model, (), usage_of(ends, prompts))))

    def _completion(
        self, model: str, choices: tuple[TextChoice, ...], usage: Usage | msgspec.UnsetType | None
    ) -> TextCompletion:
        name = f"cmpl-{self.turn_id.removeprefix('turn_')}"
        return TextCompletion(id=name, created=self.created, model=model, choices=choices, usage=usage)

    def _logprobs(self, pieces: Sequence[Piece]) -> TextLogprobs | None:
        if not self.logprobs:
            return None
        tokens = [one for piece in pieces if isinstance(piece, TextPiece) for one in piece.logprobs]
        return TextLogprobs(
            tokens=tuple(one.chosen.token for one in tokens),
            token_logprobs=tuple(one.chosen.logprob for one in tokens),
            top_logprobs=tuple({other.token: other.logprob for other in one.top} for one in tokens),
            text_offset=tuple(map(_offset, tokens)),
        )


ReplyEncoder = ChatCompletionsEncoder | CompletionsEncoder


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


def usage_of(ends: Sequence[Done], prompts: Sequence[int]) -> Usage:
    """Return the usage of ended turns. `prompts`: the number of each one's prompt; a shared one counts once."""
    usages = [done.usage for done in ends]
    by_prompt = dict(reversed(list(zip(prompts, usages, strict=True))))
    prompt = sum(usage.prompt_tokens for usage in by_prompt.values())
    cached = sum(usage.cached_tokens for usage in by_prompt.values())
    generated = sum(usage.generated_tokens for usage in usages)
    thought = sum(usage.reasoning_tokens for usage in usages)
    return Usage(prompt, generated, prompt + generated, PromptTokens(cached), ReplyTokens(thought))


def _text(piece: Piece) -> str:
    """Return a piece as text, whatever the engine parsed it as."""
    return piece.arguments if isinstance(piece, messages.ToolCall) else piece.text


def _offset(token: ChosenToken) -> int:
    """Return a token's offset in whole characters; from its text if its bytes are unknown."""
    raw = token.chosen.raw
    text = token.chosen.token if raw is None else raw.decode(errors="ignore")
    return max(0, token.end - len(text))


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
