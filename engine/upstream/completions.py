"""Requests and replies in the shape of OpenAI's chat completions. Pure.

A request becomes the body for an upstream, and its prompt's length is estimated. The upstream's chunks become what `Engine`
promises: pieces with tokens, and one end.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from engine.errors import EngineLost, PromptRejected
from engine.history import UNKNOWN, TemplateRules, normalized
from engine.messages import (
    PLAIN,
    ChosenToken,
    Chunk,
    ErrorCode,
    Finished,
    FinishReason,
    Format,
    Grammar,
    JsonObject,
    JsonSchema,
    Message,
    Output,
    Params,
    Reasoning,
    Regex,
    ReplySpec,
    Request,
    Started,
    TokenLogprob,
    Tool,
    ToolCallOutput,
)
from engine.text.detokenizer import whole_length
from engine.text.reply_text import LogprobQueue
from engine.upstream.options import Features, UpstreamOptions
from engine.vision.image import Image, in_order

T = TypeVar("T")


def decoded(decode: Callable[[Any], T], received: bytes | str | msgspec.Raw) -> T | None:
    """Return what an upstream's JSON says; None if it can't be read."""
    try:
        return decode(received)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


TOKENS_A_MESSAGE = 4
"""About how many tokens a chat template puts around a message or a tool."""


def estimated_tokens(messages: Sequence[Message], bytes_per_token: float, spec: ReplySpec = PLAIN) -> int:
    """Estimate a prompt's length without a tokenizer: UTF-8 bytes divided by `bytes_per_token`, plus frames and images.

    With three bytes a token the estimate is rather too high, since today's vocabularies have four or more for English,
    and three for most other scripts. Raises PromptRejected if there is no message, or one that is not text.
    """
    if not messages:
        raise PromptRejected("There is no message to answer.")
    try:
        tools = (text for tool in spec.shown_tools for text in (tool.name, tool.description, tool.parameters))
        size = sum(map(_size, messages)) + sum(len(text.encode()) for text in tools)
    except UnicodeEncodeError as error:
        raise PromptRejected(f"The messages are not text: {error}") from error
    framed = len(messages) + len(spec.shown_tools)
    return ceil(size / bytes_per_token) + TOKENS_A_MESSAGE * framed + seen_tokens(messages)


def seen_tokens(messages: Sequence[Message]) -> int:
    """Return about how many tokens the images of a prompt take."""
    return sum(image.tokens for message in messages for image in message.images)


def _size(message: Message) -> int:
    calls = sum(len(call.name.encode()) + len(call.arguments.encode()) for call in message.calls)
    return len(message.content.encode()) + calls


def most_new_tokens(requested: int | None, options: UpstreamOptions, prompt_tokens: int) -> int:
    """Return the most tokens of the reply: what was asked for, as far as the window has room."""
    return max(1, min(requested or options.max_new_tokens, options.context_tokens - prompt_tokens))


def body_of(request: Request, options: UpstreamOptions, max_new_tokens: int) -> dict[str, Any]:
    """Return the body of `POST /chat/completions`."""
    features, spec = options.features, request.spec
    limit = "max_completion_tokens" if features.max_completion_tokens else "max_tokens"
    body: dict[str, Any] = {
        "model": options.model,
        **prompt_of(request.messages, spec, features),
        "stream": True,
        limit: max_new_tokens,
        **_sampling(request.params, features),
        **_logprobs(request, features),
        **_format(spec.format, features),
    }
    if features.usage or features.continuous_usage:
        body["stream_options"] = {"include_usage": True}
        if features.continuous_usage:
            body["stream_options"]["continuous_usage_stats"] = True
    if features.priority != "off":
        body["priority"] = request.priority if features.priority == "high_first" else -request.priority
    if features.prompt_cache_key and (session := session_of(request)) is not None:
        body["prompt_cache_key"] = session
    if features.cache_salt and request.cache_salt:
        body["cache_salt"] = _digest(request.cache_salt)
    return body


def prompt_of(messages: Sequence[Message], spec: ReplySpec, features: Features) -> dict[str, Any]:
    """Return the fields that make the prompt, which replies and counts have in common."""
    known = normalized(
        messages, TemplateRules() if features.any_history else UNKNOWN, continues=spec.continues
    )
    return {
        "messages": [_message(message, thinks=features.template) for message in known],
        **_tools(spec),
        **_thinking(spec, features),
        **({"continue_final_message": True, "add_generation_prompt": False} if spec.continues else {}),
    }


def _message(message: Message, *, thinks: bool) -> dict[str, Any]:
    """Return a message in OpenAI's shape. `thinks`: include its thoughts, under both of their names."""
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.images:
        fields["content"] = [_part(part) for part in in_order(message.content, message.images)]
    if message.role == "tool":
        fields["tool_call_id"] = message.call_id
    if message.reasoning and thinks:
        fields |= {"reasoning_content": message.reasoning, "reasoning": message.reasoning}
    if message.calls:
        fields["content"] = message.content or None
        calls = [(call.call_id, {"name": call.name, "arguments": call.arguments}) for call in message.calls]
        fields["tool_calls"] = [{"id": name, "type": "function", "function": call} for name, call in calls]
    return fields


def _part(part: str | Image) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    detail = {"detail": part.detail} if part.detail else {}
    return {"type": "image_url", "image_url": {"url": part.url, **detail}}


def _tools(spec: ReplySpec) -> dict[str, Any]:
    if not spec.shown_tools:
        return {}
    named = {"type": "function", "function": {"name": spec.tool_name}}
    choice = named if spec.tool_choice == "named" else spec.tool_choice
    fields: dict[str, Any] = {"tools": [_tool(tool) for tool in spec.shown_tools], "tool_choice": choice}
    return fields if spec.parallel_calls else {**fields, "parallel_tool_calls": False}


def _tool(tool: Tool) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": msgspec.Raw(tool.parameters.encode()),
    }
    return {"type": "function", "function": function}


def _thinking(spec: ReplySpec, features: Features) -> dict[str, Any]:
    """Return the fields for reasoning. `reasoning_effort` is `none` for no reasoning."""
    fields: dict[str, Any] = {}
    variables = dict(spec.template)
    if spec.reasoning != "auto" and features.reasoning:
        fields["reasoning_effort"] = "none" if spec.reasoning in ("off", "least") else spec.reasoning
    if spec.reasoning in ("off", "least") and features.template:
        variables = {"enable_thinking": False, "thinking": False} | variables
    return fields | ({"chat_template_kwargs": variables} if variables else {})


def _format(format_: Format | None, features: Features) -> dict[str, Any]:
    match format_:
        case None:
            return {}
        case JsonObject():
            return {"response_format": {"type": "json_object"}}
        case JsonSchema(schema):
            named = {"name": "reply", "strict": True, "schema": msgspec.Raw(schema.encode())}
            return {"response_format": {"type": "json_schema", "json_schema": named}}
        case Regex(pattern):
            return _named_format("regex", pattern, features)
        case Grammar(lark):
            return _named_format("grammar", lark, features)


def _named_format(name: str, text: str, features: Features) -> dict[str, Any]:
    match features.format:
        case "guided":
            return {f"guided_{name}": text}
        case "sglang":
            return {name: text}
        case _:
            return {"structured_outputs": {name: text}}


def session_of(request: Request) -> str | None:
    """Return a digest of the conversation and its owner, which reveals neither; None if there is no conversation."""
    return _digest(f"{request.cache_salt}\n{request.conversation}") if request.conversation else None


def _sampling(params: Params, features: Features) -> dict[str, Any]:
    """Return the sampling fields. Those that the upstream lacks were refused before, or change nothing."""
    greedy = params.do_sample is False or params.temperature == 0
    chosen = {
        "temperature": 0.0 if greedy else params.temperature,
        "top_p": None if greedy else params.top_p,
        "top_k": params.top_k if features.top_k and not greedy else None,
        "min_p": params.min_p if features.min_p and not greedy else None,
        "repetition_penalty": params.repetition_penalty if features.repetition_penalty else None,
        "presence_penalty": params.presence_penalty if features.penalties else None,
        "frequency_penalty": params.frequency_penalty if features.penalties else None,
        "logit_bias": {str(token): bias for token, bias in params.logit_bias} or None,
        "min_tokens": params.min_tokens if features.min_tokens else None,
        "ignore_eos": params.ignore_eos if features.ignore_eos else None,
        "skip_special_tokens": False if params.special_tokens and features.special_tokens else None,
        "seed": params.seed,
        "stop": list(params.stop) or None,
    }
    return {name: value for name, value in chosen.items() if value is not None}


def _logprobs(request: Request, features: Features) -> dict[str, Any]:
    top = request.params.top_logprobs
    if top is None or not features.logprobs:
        return {}
    return {"logprobs": True, "top_logprobs": top}


def _digest(text: str) -> str:
    """Return a digest, since salts and conversations hold clients' ids, which an upstream must not read."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


NO_LOGPROBS = msgspec.Raw(b"null")
Byte = Annotated[int, Meta(ge=0, le=255)]

MOST_TOKENS = 100_000_000
"""More than any window has."""

Tokens = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]

MAX_CALLS = 128
"""The most calls of one reply."""

MAX_CALL_BYTES = 1 << 20
"""The most characters of the names and arguments of all calls of one reply; each takes a byte or more."""

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,256}\Z")
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}\Z")
_REASONS = {"length": FinishReason.LENGTH, "max_tokens": FinishReason.LENGTH}
_FILTERED = "content_filter"
Piece = Chunk | Reasoning | ToolCallOutput


class _Likely(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: tuple[Byte, ...] | None = None

    def as_logprob(self) -> TokenLogprob:
        return TokenLogprob(self.token, self.logprob, None if self.bytes is None else bytes(self.bytes))


class _Chosen(_Likely, frozen=True):
    top_logprobs: tuple[_Likely, ...] | None = None

    @property
    def size(self) -> int:
        return len(self.token.encode() if self.bytes is None else self.bytes)


class _Logprobs(msgspec.Struct, frozen=True):
    content: tuple[_Chosen, ...] | None = None


_logprobs_of = msgspec.json.Decoder(_Logprobs | None).decode


class UpstreamLogprobs:
    """Takes text and tokens in whichever chunks they come. A token waits until the text is as long as its bytes say.

    So tokens don't reveal text that an upstream holds back, as vLLM does before a stop string.
    """

    def __init__(self) -> None:
        self._queue = LogprobQueue()
        self._early: deque[tuple[int, _Chosen]] = (
            deque()
        )  # with the text's length in bytes up to the token's end
        self._named = 0
        self._heard = 0
        self._chars = 0

    def add(self, text: str, logprobs: msgspec.Raw) -> None:
        """Take a chunk's text and log-probabilities, which are ignored in another shape than OpenAI's."""
        parsed = decoded(_logprobs_of, logprobs)
        for one in () if parsed is None else parsed.content or ():
            self._named += one.size
            self._early.append((self._named, one))
        self._heard += len(text.encode(errors="surrogatepass"))
        self._chars += len(text)
        while self._early and self._early[0][0] <= self._heard:
            _, one = self._early.popleft()
            top = tuple(other.as_logprob() for other in one.top_logprobs or ())
            self._queue.put([ChosenToken(one.as_logprob(), top, self._chars)])

    def pass_over(self, text: str) -> None:
        """Take text whose tokens must not be published, since they spell more than the text: reasoning or a call."""
        size = len(text.encode(errors="surrogatepass"))
        self._named += size
        self._heard += size
        self._chars += len(text)

    def leave(self, text: str) -> tuple[ChosenToken, ...]:
        """Note that the reply's next text is output; return the tokens that go with it."""
        return self._queue.leave(text)


class CachedDetails(msgspec.Struct, frozen=True):
    """How many tokens of the prompt were in a cache."""

    cached_tokens: Tokens | None = None


class Usage(msgspec.Struct, frozen=True):
    """Totals of tokens, so far or at the end."""

    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    prompt_tokens_details: CachedDetails | None = None


class FunctionPart(msgspec.Struct, frozen=True):
    """More of a function's call. `arguments`: text; some servers send the object itself."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class CallPart(msgspec.Struct, frozen=True):
    """More of a call. `index`: the call's place in the reply; some servers leave it out and send calls whole."""

    index: int | None = None
    id: str | None = None
    function: FunctionPart | None = None


class Delta(msgspec.Struct, frozen=True):
    """What is new in a reply. Reasoning has two names, which other servers may use for anything."""

    content: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: tuple[CallPart, ...] | None = None

    @property
    def thought(self) -> str:
        """The model's reasoning."""
        named = (self.reasoning_content, self.reasoning)
        return next((text for text in named if isinstance(text, str) and text), "")

    @property
    def has_content(self) -> bool:
        """Whether the delta has anything."""
        return bool(self.content or self.thought or self.tool_calls)


class Choice(msgspec.Struct, frozen=True):
    """News of a reply. `stop_reason`: vLLM's stop string or token id."""

    delta: Delta | None = None
    finish_reason: str | None = None
    logprobs: msgspec.Raw = NO_LOGPROBS
    stop_reason: Any = None

    @property
    def news(self) -> Delta:
        """What is new."""
        return self.delta or Delta()


class Completion(msgspec.Struct, frozen=True):
    """One chunk. `usage`: a `Usage`, or whatever a server sends as one."""

    choices: tuple[Choice, ...] | None = None
    usage: msgspec.Raw = NO_LOGPROBS
    error: Any = None

    @property
    def has_content(self) -> bool:
        """Whether the chunk has any of the reply."""
        return any(choice.news.has_content for choice in self.choices or ())


@dataclass(slots=True)
class _PartialCall:
    index: int | None
    name: str = ""
    call_id: str = ""
    arguments: list[str] = field(default_factory=list)
    size: int = 0

    def is_another(self, part: CallPart) -> bool:
        """Whether a part belongs to another call, by its index, or, without one, by a name or an id of its own."""
        if part.index is not None or self.index is not None:
            return part.index != self.index
        begins = part.function is not None and bool(part.function.name)
        return begins or bool(part.id and part.id != self.call_id)

    def extend(self, part: CallPart) -> None:
        """Take a part."""
        self.call_id = self.call_id or part.id or ""
        if (function := part.function) is not None:
            name, arguments = function.name or "", function.arguments or ""
            text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
            self.name += name
            self.arguments.append(text)
            self.size += len(name) + len(text)


class ToolCallAssembler:
    """Puts calls together. One call is open at a time; the next one, text, or the end of the reply closes it.

    A call without a valid name, or whose arguments are no JSON object, becomes text.
    """

    def __init__(self, request_id: str, name: str) -> None:
        """Take the request's id, and the upstream's name, for errors."""
        self._request_id = request_id
        self._upstream = name
        self._open: _PartialCall | None = None
        self._calls = 0
        self._closed_size = 0

    def take(self, parts: Sequence[CallPart]) -> list[ToolCallOutput | str]:
        """Take parts; return what is whole now. Raises EngineLost if there are too many calls, or too large ones."""
        whole: list[ToolCallOutput | str] = []
        for part in parts:
            if self._open is None or self._open.is_another(part):
                whole += self.close()
                self._calls += 1
                if self._calls > MAX_CALLS:
                    raise EngineLost(
                        f"The engine {self._upstream} sent more than {MAX_CALLS} calls in one reply."
                    )
                self._open = _PartialCall(part.index)
            self._open.extend(part)
            if self._closed_size + self._open.size > MAX_CALL_BYTES:
                raise EngineLost(
                    f"The engine {self._upstream} sent calls of more than {MAX_CALL_BYTES} bytes."
                )
        return whole

    def close(self) -> list[ToolCallOutput | str]:
        """Return the open call, which is whole now, if there is one."""
        opened, self._open = self._open, None
        if opened is None:
            return []
        self._closed_size += opened.size
        arguments = "".join(opened.arguments).strip()
        is_object = isinstance(decoded(msgspec.json.decode, arguments or "{}"), dict)
        if _NAME.match(opened.name) is not None and is_object:
            call_id = opened.call_id if _ID.match(opened.call_id) else ""
            return [ToolCallOutput(self._request_id, opened.name, arguments or "{}", 0, call_id)]
        text = f"{opened.name}({arguments})" if opened.name else arguments
        return [text] if text else []


_usage = msgspec.json.Decoder(Usage | None).decode


class UpstreamReply:
    """Takes chunks, and gives outputs.

    Tokens are counted by the upstream's totals if they come in time, else as one for each chunk with content.
    """

    def __init__(
        self,
        request_id: str,
        *,
        prompt_tokens: int,
        max_new_tokens: int,
        most_tokens: int = MOST_TOKENS,
        logprobs: bool = False,
        upstream: str = "",
    ) -> None:
        """Take the estimated length of the prompt, the longest reply, and whether log-probabilities were asked for.

        `most_tokens`: an upstream's totals are ignored if its prompt or reply is longer.
        """
        self._most_tokens = most_tokens
        self._request_id = request_id
        self._logprobs = UpstreamLogprobs() if logprobs else None
        self._calls = ToolCallAssembler(request_id, upstream)
        self._waiting = ""
        self._thinks = False  # what waits is a thought
        self._shown_tokens = 0
        self._chunks = 0
        self._reason: FinishReason | None = None
        self._stop_detail: str | None = None
        self._stop: str | None = None
        self.started = False
        self.max_new_tokens = max_new_tokens
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = 0
        self.generated_tokens = 0

    @property
    def ended(self) -> bool:
        """Whether the upstream named a finish reason, or the reply is as long as it may get."""
        return self._reason is not None

    @property
    def has_reason(self) -> bool:
        """Whether the upstream named the finish reason."""
        return self._stop_detail is not None

    def take(self, completion: Completion) -> list[Output]:
        """Return the outputs of a chunk. Raises EngineLost if there are too many calls."""
        outputs: list[Output] = []
        choice = completion.choices[0] if completion.choices else None
        pieces = self._pieces_of(choice) if choice is not None and not self.ended else []
        if completion.usage is not NO_LOGPROBS:
            self._account(completion.usage)
        if choice is not None and not self.started:
            self.started = True
            outputs.append(Started(self._request_id, self.prompt_tokens, self.cached_tokens))
        outputs += self._counted(pieces)
        if choice is not None and not self.ended:
            self._end(choice)
        return outputs

    def finish(self) -> list[Output]:
        """Return what was held back, and the end."""
        error = "The engine's own filter ended the reply." if self._stop_detail == _FILTERED else None
        reason = FinishReason.ERROR if error else self._reason or FinishReason.STOP
        return [*self.rest(), self.finished(reason, error=error)]

    def rest(self) -> list[Output]:
        """Return what was held back, since the reply has ended."""
        return self._counted([*self._close_call(), *self._flush()])

    def finished(
        self,
        reason: FinishReason,
        *,
        steps_after: int | None = None,
        error: str | None = None,
        code: ErrorCode = ErrorCode.INTERNAL,
    ) -> Finished:
        """Return the end of the reply, with this reason."""
        counts = (self.prompt_tokens, self.cached_tokens, self.generated_tokens)
        stop = self._stop if reason is FinishReason.STOP else None
        return Finished(self._request_id, reason, *counts, steps_after, error, code, stop=stop)

    def _pieces_of(self, choice: Choice) -> list[Piece]:
        if choice.news.has_content:
            self._chunks += 1
            self.generated_tokens = max(self.generated_tokens, self._chunks)
            if self._chunks > self.max_new_tokens:
                return []
        return list(self._ready(choice))

    def _ready(self, choice: Choice) -> Iterator[Piece]:
        """Yield the pieces of a chunk that are ready now. Raises EngineLost if there are too many calls."""
        news = choice.news
        if news.thought:
            yield from self._extend(news.thought, thinks=True)
        if self._logprobs is not None and (news.thought or news.tool_calls):
            self._logprobs.pass_over(news.content or "")
        elif self._logprobs is not None:
            self._logprobs.add(news.content or "", choice.logprobs)
        if news.content:
            yield from self._extend(news.content, thinks=False)
        if news.tool_calls:
            yield from self._flush()
            for call in self._calls.take(news.tool_calls):
                yield from self._call(call)

    def _extend(self, text: str, *, thinks: bool) -> Iterator[Piece]:
        yield from self._close_call()
        if thinks is not self._thinks:
            yield from self._flush()
        self._thinks = thinks
        self._waiting += text
        yield from self._emit(whole_length(self._waiting))

    def _close_call(self) -> Iterator[Piece]:
        for call in self._calls.close():
            yield from self._call(call)

    def _call(self, call: ToolCallOutput | str) -> Iterator[Piece]:
        if isinstance(call, ToolCallOutput):
            yield call
            return
        self._thinks = False
        if self._logprobs is not None:
            self._logprobs.pass_over(call)
        self._waiting += call
        yield from self._flush()

    def _flush(self) -> Iterator[Piece]:
        yield from self._emit(len(self._waiting))

    def _emit(self, length: int) -> Iterator[Piece]:
        text, self._waiting = self._waiting[:length], self._waiting[length:]
        if not text:
            return
        if self._thinks:
            yield Reasoning(self._request_id, text, 0)
        else:
            logprobs = self._logprobs.leave(text) if self._logprobs is not None else ()
            yield Chunk(self._request_id, text, 0, logprobs)

    def _counted(self, pieces: Iterable[Piece]) -> list[Output]:
        """Return the pieces. The first one carries all tokens that were generated since the last piece."""
        counted: list[Output] = []
        for piece in pieces:
            tokens = max(0, self.generated_tokens - self._shown_tokens)
            self._shown_tokens += tokens
            counted.append(msgspec.structs.replace(piece, tokens=tokens))
        return counted

    def _account(self, raw: msgspec.Raw) -> None:
        """Take an upstream's totals, unless they can't be true: then our own counts remain."""
        usage = decoded(_usage, raw)
        if usage is None:
            return
        prompt = usage.prompt_tokens or self.prompt_tokens
        cached = (usage.prompt_tokens_details or CachedDetails()).cached_tokens or self.cached_tokens
        generated = usage.completion_tokens or self.generated_tokens
        if prompt <= self._most_tokens and generated <= self._most_tokens and cached <= prompt:
            self.prompt_tokens, self.cached_tokens, self.generated_tokens = prompt, cached, generated

    def _end(self, choice: Choice) -> None:
        """Note the end, also if an upstream continues beyond the requested length."""
        reason = choice.finish_reason
        if reason is not None:
            self._reason = _REASONS.get(reason, FinishReason.STOP)
            self._stop_detail = reason
            self._stop = choice.stop_reason if isinstance(choice.stop_reason, str) else None
        elif self._chunks > self.max_new_tokens:
            self._reason = FinishReason.LENGTH
