"""The HTTP endpoints as an OpenAPI 3.1 document: their objects come from the types that the endpoints decode and encode with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from app.metrics import CONTENT_TYPE, Report
from connections.api import audio, openai_chat
from connections.api.account import EVENTS_PATH, TicketGiven
from connections.api.admin import MOST, ConnectionsPage, Disconnected, KeysPage, Stopped, TurnsPage
from connections.api.agui.endpoint import RunError
from connections.api.agui.requests import RunInput
from connections.api.ai_sdk.endpoint import PATH as AI_SDK
from connections.api.ai_sdk.endpoint import ChatStopped
from connections.api.ai_sdk.requests import UIChatRequest
from connections.api.anthropic.endpoint import OVERLOADED, MessageError, ReplyMessage, TokensCount
from connections.api.anthropic.requests import CountRequest, MessageRequest
from connections.api.chat_requests import (
    MAX_BIAS,
    MAX_BIASES,
    MAX_TOP_LOGPROBS,
    OFF,
    ChatRequest,
)
from connections.api.endpoint import Erased, ExportEnd
from connections.api.openai_chat import EmbeddingList, EmbeddingRequest
from connections.api.responses.endpoint import MAX_ITEMS
from connections.api.responses.parser import (
    MAX_KEY_CHARS,
    MAX_METADATA,
    MAX_VALUE_CHARS,
    ConversationFields,
    Creation,
)
from connections.api.responses.schema import (
    Conversation,
    ConversationDeleted,
    Deleted,
    Items,
    Response,
)
from connections.http import RefusalBody
from connections.images import TYPES as IMAGE_TYPES
from connections.protocol.base import Name, ServerFacts
from connections.protocol.params import MAX_INTEGER
from sessions.events import Attachment
from sessions.store.owner_data import ExportedConversation, ExportedMessage, SharedPage
from specs.schemas import Schema, name_of, named, request_schemas, response_schemas

_RANGES: dict[str, Schema] = {
    **{field: {"minimum": OFF, "maximum": MAX_INTEGER} for field in ("top_k", "seed")},
    "top_logprobs": {"minimum": 0, "maximum": MAX_TOP_LOGPROBS},
    "logit_bias": {
        "maxProperties": MAX_BIASES,
        "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
    },
    "dimensions": {"minimum": 1, "maximum": openai_chat.MAX_DIMENSIONS},
    "truncation": {"enum": ["auto", "disabled"]},
    "metadata": {
        "maxProperties": MAX_METADATA,
        "propertyNames": {"maxLength": MAX_KEY_CHARS},
        "additionalProperties": {"type": "string", "maxLength": MAX_VALUE_CHARS},
    },
}
"""Ranges of OpenAI's fields, where they are not those of the native endpoint. A `top_k` or `seed` of -1 is none."""
_ANTHROPICS: dict[str, Schema] = {"system": {}}
"""A system prompt is as long as a message may be there."""
_OWN_RANGES: dict[type[msgspec.Struct], dict[str, Schema]] = {
    UIChatRequest: {},
    MessageRequest: _ANTHROPICS,
    CountRequest: _ANTHROPICS,
    RunInput: _ANTHROPICS,
}
"""Ranges of the requests to which OpenAI's do not apply."""

Part = dict[str, Any]

PLACE = "#/components/schemas/{name}"
_WHY = {
    400: "The request asks for something impossible.",
    401: "The key or token is missing or not valid.",
    403: "Pages of this origin may not ask, or the key lacks a scope.",
    404: "It was not found, or it is somebody else's.",
    409: "The state of the conversation does not allow this now.",
    413: "The request is too long.",
    415: "The body is compressed, or of another type.",
    429: "Too many requests.",
    503: "The server can't answer now.",
    OVERLOADED: "The server has too much to do.",
}
_OPEN: Part = {}
_BEARER: Part = {"bearer": []}


def document() -> Part:
    """Return the whole document."""
    paths = _service() | _conversations() | _admin() | _openai() | _responses() | _others() | _audio()
    operations = [operation for methods in paths.values() for operation in methods.values()]
    schemas: dict[str, Schema] = {}
    for request in dict.fromkeys(_types([one.get("requestBody") for one in operations])):
        schemas |= request_schemas((request,), PLACE, _OWN_RANGES.get(request, _RANGES))
    answers = tuple(dict.fromkeys(_types([one["responses"] for one in operations])))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Midstream over HTTP",
            "version": "1",
            "description": "PROTOCOL.md says what is promised. The WebSocket is in /asyncapi.yaml, its frames are in /schemas/v1.json. "
            "A path that is not here is answered by 404, a method by 405, both as a RefusalBody.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": _with_references(paths),
        "components": {
            "schemas": schemas | response_schemas(answers, PLACE),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "An API key or a JWT."},
                "key": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "x-api-key",
                    "description": "An API key or a JWT, as Anthropic's clients send it.",
                },
                "ticket": {
                    "type": "apiKey",
                    "in": "query",
                    "name": "ticket",
                    "description": "Opens one stream.",
                },
            },
        },
    }


def _operation(
    summary: str,
    content: Part,
    *,
    refused: Sequence[int] = (400, 401, 403, 404, 429, 503),
    refusal: Part | None = None,
    security: Sequence[Part] = (_OPEN, _BEARER),
    parameters: Sequence[Part] = (),
    body: Part | None = None,
) -> Part:
    """Describe an operation. `content`: that of the answer; `refusal`: that of a refusal, if it is not a RefusalBody.

    `security`: a token is needed where the operator configured any, unless `_OPEN` is missing; nothing: it never is.
    """
    refusal = refusal or _json(RefusalBody)
    answers = {"200": {"description": "Done.", "content": content}}
    answers |= {str(status): {"description": _WHY[status], "content": refusal} for status in refused}
    described: Part = {"summary": summary, "responses": answers}
    if security:
        described["security"] = list(security)
    if parameters:
        described["parameters"] = list(parameters)
    if body is not None:
        described["requestBody"] = {"required": True, "content": body}
    return described


def _types(part: Any) -> Iterator[type[msgspec.Struct]]:
    """Yield the types in a part of the document, where there will be references."""
    match part:
        case type():
            yield part
        case dict():
            yield from _types(list(part.values()))
        case list():
            for inner in part:
                yield from _types(inner)


def _with_references(part: Any) -> Any:
    """Return a part of the document with references to its types."""
    match part:
        case type():
            return {"$ref": PLACE.format(name=name_of(part))}
        case dict():
            return {name: _with_references(inner) for name, inner in part.items()}
        case list():
            return list(map(_with_references, part))
    return part


def _json(*schemas: type[msgspec.Struct] | Schema, example: Part | None = None) -> Part:
    """Describe content that is JSON of one of these types."""
    schema = schemas[0] if len(schemas) == 1 else {"oneOf": list(schemas)}
    return {"application/json": {"schema": schema} | ({} if example is None else {"example": example})}


def _event_stream(words: str, *types: type[msgspec.Struct]) -> Part:
    """Describe content that is a stream of events. `words`: what the data of each event is, one of these types."""
    text = {"type": "string"}
    fields = {"data": text | {"description": words}, "id": text, "event": text, "retry": {"type": "integer"}}
    event = {"type": "object", "description": "Each event.", "properties": fields, "required": ["data"]}
    data: Part = {"x-data": {"oneOf": list(types)}} if types else {}
    return {"text/event-stream": {"schema": event | data}}


def _text(media_type: str) -> Part:
    return {media_type: {"schema": {"type": "string"}}}


def _query(name: str, words: str, schema: Schema | None = None, *, required: bool = False) -> Part:
    """Describe a parameter of a query; it is a text, unless a schema says otherwise."""
    shape = schema or {"type": "string"}
    return {"name": name, "in": "query", "required": required, "description": words, "schema": shape}


def _path(name: str, schema: Schema | None = None) -> Part:
    return {"name": name, "in": "path", "required": True, "schema": schema or named(Name)}


_CLIENT = _query("client_id", "Needed unless the token is a JWT or a personal API key.", named(Name))
_EXPORT: Part = {
    "application/x-ndjson": {
        "schema": {
            "description": "One of these a line; the last one is an `end`.",
            "oneOf": [ExportedConversation, ExportedMessage, ExportEnd],
        }
    }
}


def _service() -> Part:
    """Describe the service itself: its health, its version, and these documents."""
    alive = _json({"type": "object", "properties": {"status": {"const": "ok"}}, "required": ["status"]})
    shape = {"type": "object"}
    yaml = {"application/yaml": {"schema": shape}}
    reads = {
        "/health": _operation("The same as /healthz.", alive, refused=(), security=()),
        "/healthz": _operation("Whether the process lives.", alive, refused=(), security=()),
        "/version": _operation("What runs here.", _json(ServerFacts), refused=(), security=()),
        "/readyz": _operation(
            "Whether turns can be taken.", _json(Report), refused=(503,), refusal=_json(Report), security=()
        ),
        "/metrics": _operation("Statistics for Prometheus.", _text(CONTENT_TYPE), refused=(), security=()),
        "/openapi.json": _operation("This document.", _json(shape), refused=(), security=()),
        "/asyncapi.yaml": _operation("The WebSocket, in AsyncAPI.", yaml, refused=(), security=()),
        "/schemas/v1.json": _operation("The frames, in JSON Schema.", _json(shape), refused=(), security=()),
    }
    return {path: {"get": read} for path, read in reads.items()}


def _conversations() -> Part:
    """Describe what belongs to the native protocol, and the caller's own data."""
    images: Part = {kind: {"schema": {}} for kind in IMAGE_TYPES}
    last = "The last event that was read"
    return {
        "/v1/tickets": {"post": _operation("A single-use ticket.", _json(TicketGiven))},
        "/v1/attachments": {
            "post": _operation(
                "Keeps an image for an hour, or with the message that shows it.",
                _json(Attachment),
                refused=(400, 401, 403, 413, 415, 429, 503),
                parameters=[_CLIENT],
                body=images,
            )
        },
        "/v1/attachments/{conversation_id}/{attachment_id}": {
            "get": _operation(
                "An image that a conversation shows.",
                images,
                parameters=[_CLIENT, _path("conversation_id"), _path("attachment_id")],
            )
        },
        "/v1/shares/{share_id}": {
            "get": _operation(
                "A conversation that its owner shared, oldest message first.",
                _json(SharedPage),
                refused=(403, 404, 429, 503),
                security=(),
                parameters=[
                    _path("share_id", {"type": "string"}),
                    _query("before", "The oldest message of the page before."),
                ],
            )
        },
        "/v1/export": {
            "get": _operation(
                "All that is stored of the caller.",
                _EXPORT,
                refused=(400, 401, 403, 429, 503),
                parameters=[_CLIENT],
            )
        },
        "/v1/me": {
            "delete": _operation(
                "Erases it.", _json(Erased), refused=(400, 401, 403, 429, 503), parameters=[_CLIENT]
            )
        },
        EVENTS_PATH: {
            "get": _operation(
                "A conversation as it continues, with the events of /v1/ws.",
                _event_stream("A frame of the server's."),
                security=(_OPEN, _BEARER, {"ticket": []}),
                parameters=[
                    _path("conversation_id"),
                    _CLIENT,
                    _query("last_event_id", f"{last}; the header counts first."),
                    {
                        "name": "Last-Event-ID",
                        "in": "header",
                        "description": f"{last}.",
                        "schema": {"type": "string"},
                    },
                ],
            )
        },
    }


def _admin() -> Part:
    """Describe what an operator's key opens."""
    principal, client = _query("principal", "As lists show it."), _query("client_id", "Only this client.")
    owner = [principal | {"required": True}, client]
    page = [
        _query("limit", "How many; 50 without it.", {"type": "integer", "minimum": 1, "maximum": MOST}),
        _query("after", "The `next` of the page before."),
    ]

    def act(summary: str, content: Part, *parameters: Part) -> Part:
        refused = (400, 401, 404, 429, 503)
        return _operation(summary, content, refused=refused, security=(_BEARER,), parameters=parameters)

    return {
        "/v1/admin/connections": {
            "get": act("Open connections.", _json(ConnectionsPage), principal, client, *page),
            "delete": act("Ends somebody's connections.", _json(Disconnected), *owner),
        },
        "/v1/admin/connections/{connection_id}": {
            "delete": act("Ends a connection.", _json(Disconnected), _path("connection_id"))
        },
        "/v1/admin/turns": {
            "get": act("Turns that run or wait.", _json(TurnsPage), principal, client, *page)
        },
        "/v1/admin/turns/{turn_id}": {"delete": act("Ends a turn.", _json(Stopped), _path("turn_id"))},
        "/v1/admin/export": {"get": act("All that is stored of an owner.", _EXPORT, *owner)},
        "/v1/admin/owner": {"delete": act("Erases it.", _json(Erased), *owner)},
        "/v1/admin/keys": {"get": act("Keys and their use.", _json(KeysPage), *page)},
    }


_BODY_REFUSED = (400, 401, 403, 404, 413, 415, 429, 503)
"""The refusals of endpoints that take a long body."""
_HELLO: Part = {"messages": [{"role": "user", "content": "Hello!"}]}
_DEMO: Part = {"model": "midstream-demo"}


def _openai() -> Part:
    """Describe the endpoints of OpenAI's that keep nothing."""

    def post(summary: str, content: Part, body: Part) -> Part:
        return {"post": _operation(summary, content, refused=_BODY_REFUSED, body=body)}

    chat = _DEMO | _HELLO | {"max_tokens": 8}
    model = _path("model", {"type": "string"})
    return {
        "/v1/embeddings": post(
            "Texts as vectors.",
            _json(EmbeddingList),
            _json(EmbeddingRequest, example={"model": "bge-m3", "input": ["Hello!"]}),
        ),
        "/v1/chat/completions": post(
            "Replies to messages.",
            _json(openai_chat.Completion) | _event_stream("A chunk, or `[DONE]`.", openai_chat.Chunk),
            _json(ChatRequest, example=chat),
        ),
        "/v1/models": {"get": _operation("The models.", _json(openai_chat.Models), refused=(401, 403, 503))},
        "/v1/models/{model}": {
            "get": _operation(
                "One model.", _json(openai_chat.Model), refused=(401, 403, 404, 503), parameters=[model]
            )
        },
    }


def _responses() -> Part:
    """Describe responses and their conversations."""
    hello = _json(Creation, example=_DEMO | {"input": "Hello!", "max_output_tokens": 8})
    added = _json(ConversationFields, example={"items": _HELLO["messages"]})
    response, conversation, item = (
        _path(f"{name}_id", {"type": "string"}) for name in ("response", "conversation", "item")
    )
    paging = [
        _query("order", "The newest first, by default.", {"type": "string", "enum": ["asc", "desc"]}),
        _query("limit", "How many.", {"type": "integer", "minimum": 1, "maximum": MAX_ITEMS}),
        _query("after", "The last item of the page before."),
    ]

    def act(summary: str, content: Part, *parameters: Part, body: Part | None = None) -> Part:
        refused = (400, 401, 403, 404, 429, 503) if body is None else (*_BODY_REFUSED, 409)
        return _operation(summary, content, refused=refused, parameters=parameters, body=body)

    place = "/v1/conversations/{conversation_id}"
    events = _event_stream("An event, or `[DONE]`.")
    delete = act("Deletes a response.", _json(Deleted), response)
    delete_item = act("Deletes the last item.", _json(Conversation), conversation, item)
    for deletion in (delete, delete_item):  # the conversation has continued from it
        deletion["responses"]["409"] = {"description": _WHY[409], "content": _json(RefusalBody)}
    return {
        "/v1/responses": {"post": act("Creates a response.", _json(Response) | events, body=hello)},
        "/v1/responses/{response_id}": {
            "get": act("A response as it is now.", _json(Response), response),
            "delete": delete,
        },
        "/v1/responses/{response_id}/input_items": {
            "get": act("What a response answered.", _json(Items), response, *paging)
        },
        "/v1/conversations": {"post": act("Begins a conversation.", _json(Conversation), body=added)},
        place: {
            "get": act("A conversation.", _json(Conversation), conversation),
            "delete": act("Deletes a conversation.", _json(ConversationDeleted), conversation),
        },
        f"{place}/items": {
            "get": act("The items.", _json(Items), conversation, *paging),
            "post": act("Adds items.", _json(Items), conversation, body=added),
        },
        f"{place}/items/{{item_id}}": {
            "delete": delete_item,
        },
    }


def _others() -> Part:
    """Describe the endpoints for Anthropic's clients, AG-UI and the AI SDK."""
    run = {"threadId": "t", "runId": "r"} | _HELLO
    message = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Hello!"}]}
    sent = {"id": "chat1", "messages": [message], "trigger": "submit-message"}
    stream = _event_stream("A chunk of the AI SDK's, or `[DONE]`.")
    kept = _json({"type": "array", "items": {"type": "object"}})

    def anthropic(summary: str, content: Part, body: Part) -> Part:
        return {
            "post": _operation(
                summary,
                content,
                refused=(*_BODY_REFUSED, OVERLOADED),
                refusal=_json(MessageError),
                security=(_OPEN, _BEARER, {"key": []}),
                body=body,
            )
        }

    def ai_sdk(summary: str, content: Part, *parameters: Part, body: Part | None = None) -> Part:
        """Refusals are sentences, which front ends show to their users."""
        return _operation(
            summary,
            content,
            refused=(400, 401, 403, 404, 429, 503) if body is None else (*_BODY_REFUSED, 409),
            refusal=_text("text/plain"),
            security=(_OPEN, _BEARER, {"ticket": []}),
            parameters=[*parameters, _CLIENT],
            body=body,
        )

    chat = _path("chat_id")
    seen = _query(
        "seen_off",
        "How many characters of the last step's text the reader saw; the reply ends there.",
        {"type": "integer", "minimum": 0},
    )
    resume = ai_sdk("The reply that is being written, from its start.", stream, chat)
    resume["responses"]["204"] = {"description": "Nothing is being written."}
    return {
        "/v1/messages": anthropic(
            "A reply to messages.",
            _json(ReplyMessage) | _event_stream("An event of Anthropic's."),
            _json(MessageRequest, example=_DEMO | _HELLO | {"max_tokens": 8}),
        ),
        "/v1/messages/count_tokens": anthropic(
            "The tokens of a prompt.", _json(TokensCount), _json(CountRequest, example=_DEMO | _HELLO)
        ),
        "/v1/ag-ui": {
            "post": _operation(
                "A run.",
                _event_stream("An event of AG-UI's."),
                refused=_BODY_REFUSED,
                refusal=_json(RunError),
                body=_json(RunInput, example=run),
            )
        },
        AI_SDK: {
            "post": ai_sdk("A message, answered in chunks.", stream, body=_json(UIChatRequest, example=sent))
        },
        f"{AI_SDK}/{{chat_id}}/stream": {"get": resume},
        f"{AI_SDK}/{{chat_id}}/stop": {"post": ai_sdk("Stops the reply.", _json(ChatStopped), chat, seen)},
        f"{AI_SDK}/{{chat_id}}/messages": {"get": ai_sdk("The stored messages, oldest first.", kept, chat)},
    }


def _audio() -> Part:
    """Describe speech, which is served if the operator says so."""
    text = {"type": "string"}
    form: Schema = {
        "type": "object",
        "required": ["file", "model"],
        "properties": {
            "file": {"type": "string", "format": "binary"},
            "model": text,
            "language": text,
            "response_format": {"enum": ["json", "text", "srt", "verbose_json", "vtt"]},
            "timestamp_granularities": {"type": "array", "items": {"enum": ["segment"]}},
            "stream": {"type": "boolean"},
        },
    }
    words = _json(audio.Transcription, audio.VerboseTranscription)
    sound: Part = {
        kind.decode(): {"schema": {"type": "string", "format": "binary"}}
        for kind in audio.MEDIA_TYPES.values()
    }
    spoken = {"model": "espeak-ng", "voice": "en-us", "input": "Hello!"}
    return {
        audio.TRANSCRIPTIONS: {
            "post": _operation(
                "The words of a recording.",
                words
                | _text("text/plain")
                | _text("text/vtt")
                | _event_stream("One of these.", audio.TextDelta, audio.TextDone),
                refused=_BODY_REFUSED,
                body={"multipart/form-data": {"schema": form}},
            )
        },
        audio.SPEECH: {
            "post": _operation(
                "A text as sound, sent as it is made.",
                sound | _event_stream("One of these.", audio.AudioDelta, audio.AudioDone),
                refused=_BODY_REFUSED,
                body=_json(audio.SpeechRequest, example=spoken),
            )
        },
    }
