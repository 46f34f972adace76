"""Requests of several APIs: how their bodies, schemas and images are read, and how they are refused."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from types import MappingProxyType
from typing import TypeVar

import msgspec
from starlette.responses import Response

from connections.http import STATUS, Refusal, RefusalBody, check_json_limits, refusal, type_of
from connections.images import InvalidImage, image_from_base64, image_from_url
from connections.protocol.base import Limits, Name
from connections.protocol.errors import Unauthenticated, field_message, shorten, validation_problem
from engine.messages import Message, ReplySpec, Tool
from engine.vision.image import Image
from sessions.errors import BadParams, Refused
from sessions.events import Failure
from sessions.limits.bounds import MAX_MESSAGES
from sessions.limits.rates import RateLimited
from sessions.turn.prompt import NO_IMAGES

RETRY_AFTER_S = 1
"""Seconds after which to try again, if nothing else is known."""
_STATUS = STATUS | {
    "invalid_value": 400,
    "content_too_long": 400,
    "context_overflow": 400,
    "filtered": 400,
    "model_not_found": 404,
    "conflict": 409,
}
_CODES = {
    "context_overflow": "context_length_exceeded",
    "rate_limited": "rate_limit_exceeded",
}  # as clients know them
_PARAMS = {
    "content_too_long": "messages",
    "context_overflow": "messages",
    "filtered": "messages",
    "model_not_found": "model",
}
NO_AUDIO = "Audio is not supported."
_NO_FUNCTIONS = "`functions` is not supported: use `tools`."
_NO_GRAMMAR = "This grammar format is not supported: send a Lark grammar as `guided_grammar`."
_NO_PATTERN = "`regex` is not supported: use `guided_regex`."
_NO_SCHEMA = "`json_schema` is not supported: use `response_format`."
_NO_TEMPLATE = "Chat templates are set by the operator: leave this field out."
_NO_BUDGET = "`thinking_budget` is not supported: use `reasoning_effort`."
_NO_SPEECH = "Spoken replies are not supported: replies are text."
_MAX_VALUE_BYTES = 200
NeutralValues = Mapping[str, tuple[tuple[object, ...], str]]
"""Unsupported fields: the values that change nothing, and why another one is refused."""
_NEUTRAL: NeutralValues = {
    # OpenAI's
    "functions": (([],), _NO_FUNCTIONS),
    "function_call": (("none", "auto"), _NO_FUNCTIONS),
    "modalities": ((["text"],), _NO_SPEECH),
    "audio": ((), _NO_SPEECH),
    "web_search_options": ((), "Web search is not supported."),
    # sampling
    "n": ((1,), "A request gets one reply: `n` must be 1."),
    "best_of": ((1,), "`best_of` is not supported: it must be 1."),
    "use_beam_search": ((False,), "Beam search is not supported."),
    "length_penalty": ((1,), "This server does not apply `length_penalty`: it must be 1."),
    "repeat_penalty": ((1,), "This server does not apply `repeat_penalty`: use `repetition_penalty`."),
    "top_a": ((0,), "This server does not apply `top_a`: it must be 0."),
    "typical_p": ((1,), "This server does not apply `typical_p`: it must be 1."),
    "tfs_z": ((1,), "This server does not apply `tfs_z`: it must be 1."),
    "mirostat": ((0,), "This server does not apply `mirostat`: it must be 0."),
    "dynatemp_range": ((0,), "This server does not apply `dynatemp_range`: it must be 0."),
    "dry_multiplier": ((0,), "This server does not apply `dry_multiplier`: it must be 0."),
    "xtc_probability": ((0,), "This server does not apply `xtc_probability`: it must be 0."),
    "allowed_token_ids": (([],), "This server does not apply `allowed_token_ids`."),
    "bad_words": (([],), "This server does not apply `bad_words`."),
    # the end of a reply, and what is shown of it
    "n_predict": ((-1,), "This server does not apply `n_predict`: use `max_tokens`."),
    "stop_token_ids": (([],), "This server does not apply `stop_token_ids`: use `stop`."),
    "include_stop_str_in_output": ((False,), "Replies never include the stop string."),
    "echo": ((False,), "Echoing the prompt is not supported."),
    "thinking_budget": ((0,), _NO_BUDGET),
    # what the model reads
    "chat_template": ((), _NO_TEMPLATE),
    "add_special_tokens": ((False,), _NO_TEMPLATE),
    "documents": (([],), "Documents are not supported."),
    "truncate_prompt_tokens": ((), "Prompt truncation is not supported."),
    # what the model may write
    "json_schema": ((), _NO_SCHEMA),
    "grammar": (("",), _NO_GRAMMAR),
    "ebnf": (("",), _NO_GRAMMAR),
    "regex": (("",), _NO_PATTERN),
}
_PARTS: Mapping[str, str] = {
    "input_image": "This API does not support images.",
    "input_audio": NO_AUDIO,
    "audio_url": NO_AUDIO,
    "video_url": "Videos are not supported.",
    "file": "Files are not supported.",
    "input_file": "Files are not supported.",
    "tool_use": "Send calls as `tool_calls`.",
    "tool_result": "Send tool results as messages with the role tool.",
    "reasoning": "Reasoning is allowed in assistant messages only.",
    "thinking": "Reasoning is allowed in assistant messages only.",
}
_NONE = b'"none"'
MAX_NAME_CHARS = 256
"""Characters of a call's id, or its function's name, in the history: other servers may have made them."""
MAX_TOOLS = 128
FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
EFFORT = re.compile(r"[a-z]{1,16}\Z")
_EFFORTS = {"none": "off", "default": "auto"}
BOUNDED_ROLES = ("system", "user")
"""Roles whose messages have a limited length. Other messages are limited by the body, and by the window."""
MAX_SCHEMA_BYTES = 256 * 1024
"""Bytes of one schema. An engine may support less, and says so."""
_encode = msgspec.json.Encoder().encode
ONLY_USER_IMAGES = "Images are allowed in user messages only."
IMAGES = ("image_url", "input_image", "image")
"""Types of message parts that are images."""
T = TypeVar("T")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Two passes, and neither makes objects of unsupported fields: millions of empty lists fit a body.
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
# OpenAI's voices; clients name them by default, and each stands for the server's own voice.
VOICES = frozenset(
    (
        *("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable"),
        *("marin", "nova", "onyx", "sage", "shimmer", "verse"),
    )
)


class Problem(Refused):
    """A refused request. The message is for the sender; the body is OpenAI's, unless a dialect has its own."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(shorten(message))
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_ms = retry_after_ms

    @property
    def body(self) -> bytes:
        """The error as JSON."""
        why = Refusal(message=str(self), type=type_of(self.status), param=self.param, code=self.code)
        return msgspec.json.encode(RefusalBody(why))

    def response(self) -> Response:
        """Return the refusal as a whole answer."""
        headers = {}
        if self.retry_after_ms is not None:
            headers["Retry-After"] = str(math.ceil(self.retry_after_ms / 1000))
            headers["Retry-After-Ms"] = str(self.retry_after_ms)
        if self.status == 401:  # noqa: PLR2004 - HTTP's word for it
            headers["WWW-Authenticate"] = "Bearer"
        if self.status == 415:  # noqa: PLR2004 - HTTP's word for it
            headers["Accept-Encoding"] = "identity"  # RFC 9110, section 12.5.3
        return refusal(self.status, self.code, str(self), headers, param=self.param)


def invalid(param: str | None, message: str, *, code: str = "invalid_value") -> Problem:
    """Return the refusal of a field's value."""
    return Problem(400, message, code=code, param=param)


def invalid_field(field: str, why: str, *, code: str = "invalid_value") -> Problem:
    """Return the refusal of a field's value. `why`: the rest of a sentence after the field's name."""
    return invalid(field, field_message(field, why), code=code)


def problem_of(refused: Refused) -> Problem:
    """Return a refusal of any layer as a problem."""
    if isinstance(refused, Problem):
        return refused
    if isinstance(refused, Unauthenticated):
        return Problem(401, str(refused), code="invalid_api_key")
    if isinstance(refused, RateLimited):
        return Problem(
            429, str(refused), code=_CODES[refused.code], retry_after_ms=max(1, refused.retry_after_ms or 0)
        )
    field = refused.field if isinstance(refused, BadParams) else None
    return _problem(refused.code, str(refused), param=field, again_ms=refused.retry_after_ms)


def with_client_field(refused: BadParams, names: Mapping[str, str]) -> BadParams:
    """Return the refusal with the client's name of its field. `names`: by the names of lower layers."""
    field = refused.field
    if field is None or (name := names.get(field)) is None:
        return refused
    return BadParams(str(refused).replace(f"`{field}`", f"`{name}`"), field=name)


def problem_from_failure(failure: Failure) -> Problem:
    """Return the problem that ended a reply."""
    return _problem(failure.code, failure.message, again_ms=failure.retry_after_ms)


def _problem(code: str, message: str, *, param: str | None = None, again_ms: int | None = None) -> Problem:
    """Return a problem; a temporary one says when to try again."""
    status = _STATUS.get(code, 503)
    again = (again_ms or RETRY_AFTER_S * 1000) if status == 503 else None  # noqa: PLR2004 - HTTP's word for it
    return Problem(
        status, message, code=_CODES.get(code, code), param=param or _PARAMS.get(code), retry_after_ms=again
    )


def reject_fields(
    fields: Mapping[str, msgspec.Raw],
    neutral: NeutralValues,
    codes: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raise Problem for the first field of `neutral` with another value. `codes`: of some refusals."""
    for field, (values, why) in neutral.items():
        if field in fields and not is_neutral(fields[field], values):
            raise invalid(field, why, code=codes.get(field, "unsupported_parameter"))


def reject_unsupported(fields: Mapping[str, msgspec.Raw]) -> None:
    """Raise Problem if a field is refused."""
    if "functions" in fields and bytes(fields.get("function_call", b"")) == _NONE:  # a reply without calls
        fields = {field: raw for field, raw in fields.items() if field != "functions"}
    reject_fields(fields, _NEUTRAL)


def is_neutral(raw: msgspec.Raw, neutral: tuple[object, ...]) -> bool:
    """Return whether `raw` is null or a `neutral` value; no long value is."""
    if memoryview(raw).nbytes > _MAX_VALUE_BYTES:
        return False
    value = msgspec.json.decode(raw)
    return value is None or any(_same(value, one) for one in neutral)


def _same(value: object, neutral: object) -> bool:
    """Return whether two values are equal, without taking `true` for 1."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def unsupported_part(kind: str) -> str:
    """Return why a message part that is not text is refused."""
    return _PARTS.get(kind, "Only text is supported.")


def schema_text(raw: msgspec.Raw, where: str, *, as_text: bool = False) -> str | None:
    """Return the schema as one line of JSON, with its fields in order; None if there is none.

    `as_text`: it may also be JSON in a string. Raises Problem.
    """
    schema = _decoded(bytes(raw), where)
    if as_text and isinstance(schema, str):
        schema = _decoded(schema.encode(), where)
    if schema is None:
        return None
    if not isinstance(schema, dict):
        raise invalid_field(where, "must be a JSON Schema object.")
    return _encode(schema).decode()


def required_schema(raw: msgspec.Raw, where: str) -> str:
    """Return the schema as one line of JSON. Raises Problem."""
    return required(schema_text(raw, where), where)


def checked_arguments(text: str | None, where: str) -> str:
    """Return the arguments of a call as the text of a JSON object. Raises Problem."""
    text = (text or "").strip() or "{}"
    try:
        if isinstance(msgspec.json.decode(text), dict):
            return text
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass
    raise invalid_field(where, "must be the text of a JSON object.")


def checked_name(text: str | None, where: str) -> str:
    """Return the id or the name of a call. Raises Problem."""
    if not 0 < len(text or "") <= MAX_NAME_CHARS:
        raise invalid_field(where, f"must have 1 to {MAX_NAME_CHARS} characters.")
    return text or ""


def checked_effort(effort: str, field: str) -> str:
    """Return how much the model should reason: `off`, `auto` or an effort. Raises Problem."""
    if not EFFORT.match(effort):
        raise invalid_field(field, "must be none or an effort such as low, medium or high.")
    return _EFFORTS.get(effort, effort)


def check_messages(given: Sequence[object]) -> None:
    """Raise Problem if a request has no message, or too many."""
    if not given:
        raise invalid("messages", "`messages` must have at least one message.")
    if len(given) > MAX_MESSAGES:
        raise invalid("messages", f"`messages` may have at most {MAX_MESSAGES} messages.")


def check_length(text: str, field: str, max_chars: int) -> None:
    """Raise Problem if a message is too long."""
    if len(text) > max_chars:
        why = f"The message is too long: it has {len(text)} characters, and {max_chars} are allowed."
        raise invalid(field, why, code="content_too_long")


def function_tool(name: str, description: str | None, parameters: msgspec.Raw, where: str) -> Tool:
    """Return a function that a client runs. `where`: its place in the request. Raises Problem."""
    if not FUNCTION_NAME.match(name):
        raise invalid_field(f"{where}.name", "must have 1 to 64 letters, digits, _ or -.")
    tool = Tool(name, description or "")
    schema = schema_text(parameters, f"{where}.parameters")
    return tool if schema is None else msgspec.structs.replace(tool, parameters=schema)


def unique_tools(found: Iterable[tuple[str, Tool]]) -> dict[str, Tool]:
    """Return tools by their names. `found`: each after its name's field. Raises Problem."""
    tools: dict[str, Tool] = {}
    for where, tool in found:
        if tool.name in tools:
            raise invalid_field(where, "is not unique: another tool has this name.")
        tools[tool.name] = tool
    return tools


def check_tool_count(tools: Sized) -> None:
    """Raise Problem if a request has too many tools."""
    if len(tools) > MAX_TOOLS:
        raise invalid_field("tools", f"may have at most {MAX_TOOLS} tools.")


def known_tool(name: str, tools: Iterable[Tool], where: str) -> str:
    """Return `name`, which one of `tools` must have. Raises Problem."""
    if all(tool.name != name for tool in tools):
        raise invalid_field(where, "is not the name of one of `tools`.")
    return name


def chosen_spec(chosen: ReplySpec, *, parallel_calls: bool) -> ReplySpec:
    """Return the chosen tools, and how to choose among them. Raises Problem if there are none for a required call."""
    if chosen.tools:
        return msgspec.structs.replace(chosen, parallel_calls=parallel_calls)
    if chosen.tool_choice in ("required", "named"):
        raise invalid_field("tool_choice", "requires `tools`.")
    return ReplySpec()


def _decoded(text: bytes, where: str) -> object:
    if len(text) > MAX_SCHEMA_BYTES:
        raise invalid_field(where, f"may have at most {MAX_SCHEMA_BYTES} bytes.")
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        raise invalid_field(where, "must be JSON.") from None
    except RecursionError:
        raise invalid_field(where, "is nested too deeply.") from None


def image_at(url: str | None, where: str, limits: Limits, *, detail: str | None = None) -> Image:
    """Return the image in a `data:` URL. `where`: its part of the request. Raises Problem."""
    return _read(lambda: image_from_url(required(url, where), detail or ""), where, limits)


def image_of(data: str | None, media_type: str, where: str, limits: Limits) -> Image:
    """Return the image in base64. Raises Problem."""
    return _read(lambda: image_from_base64(required(data, where), media_type), where, limits)


def check_images(messages: Sequence[Message], field: str, limits: Limits) -> None:
    """Raise Problem if a request has too many images. Stored ones without their bytes are not counted."""
    if sum(bool(image.data) for message in messages for image in message.images) > limits.max_images:
        raise invalid(field, f"A request may have at most {limits.max_images} images.")


def _read(read: Callable[[], Image], where: str, limits: Limits) -> Image:
    """Read an image, but only for a model that takes images."""
    if not limits.max_images:
        raise invalid(where, NO_IMAGES, code="unsupported_parameter")
    try:
        return read()
    except InvalidImage as why:
        raise invalid(where, str(why), code="invalid_image") from None


def required(text: str | None, where: str) -> str:
    """Return a text that must be there. Raises Problem."""
    if text is None:
        raise invalid_field(where, "is missing.")
    return text


def image_not_allowed(where: str, limits: Limits) -> Problem:
    """Return the refusal of an image in a message that may have none."""
    return invalid(where, ONLY_USER_IMAGES if limits.max_images else NO_IMAGES)


def decode_request(body: bytes, decode: Callable[[bytes], T]) -> T:
    """Return the request in a body, as `decode` reads it; refuse unsupported fields. Raises Problem, TooManyValues."""

    def checked(text: bytes) -> T:
        reject_unsupported(_fields(text))
        return decode(text)

    return decode_body(body, checked, missing_code="missing_required_parameter")


def decode_body(body: bytes, decode: Callable[[bytes], T], *, missing_code: str = "invalid_type") -> T:
    """Return the JSON object in a body, as `decode` reads it. Raises Problem, TooManyValues."""
    body = body.removeprefix(_BYTE_ORDER_MARK)
    check_json_limits(body)
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        wrong = validation_problem(error)
        code = missing_code if wrong.is_missing else "invalid_type"
        raise invalid(wrong.field, wrong.full_message(whole="The body"), code=code) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise invalid(None, "The body is not a JSON object.", code="invalid_json") from None


def null() -> msgspec.Raw:
    """Return the value of a missing field. A function, since msgspec's schemas support no such default."""
    return msgspec.Raw(b"null")


def is_conversation_id(text: str) -> bool:
    """Return whether a conversation can have this id."""
    try:
        msgspec.convert(text, Name)
    except msgspec.ValidationError:
        return False
    return True
