"""The HTTP endpoints as an OpenAPI 3.1 document: their objects come from the types that the endpoints decode and encode with."""

from __future__ import annotations

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

_RESPONSE_TYPES = (
    Report,
    Attachment,
    TicketGiven,
    SharedPage,
    ExportedConversation,
    ExportedMessage,
    ExportEnd,
    Erased,
    ConnectionsPage,
    TurnsPage,
    Disconnected,
    Stopped,
    KeysPage,
    RefusalBody,
    ServerFacts,
    ChatStopped,
    openai_chat.Completion,
    openai_chat.Chunk,
    openai_chat.Model,
    openai_chat.Models,
    ReplyMessage,
    TokensCount,
    MessageError,
    RunError,
    audio.Transcription,
    audio.VerboseTranscription,
    audio.TextDelta,
    audio.TextDone,
    audio.AudioDelta,
    audio.AudioDone,
)
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


def document() -> Part:
    """The whole document."""
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
        "paths": _health()
        | _tickets()
        | _attachments()
        | _shares()
        | _account()
        | _admin()
        | _events()
        | _model_endpoints()
        | _specifications(),
        "components": {
            "schemas": request_schemas((ChatRequest, audio.SpeechRequest), PLACE, _RANGES)
            | request_schemas((UIChatRequest,), PLACE)
            | request_schemas((MessageRequest, CountRequest, RunInput), PLACE, _ANTHROPICS)
            | request_schemas((Creation, ConversationFields, EmbeddingRequest), PLACE, _RANGES)
            | response_schemas(_RESPONSE_TYPES, PLACE)
            | response_schemas((Response, Deleted, Items, EmbeddingList), PLACE)
            | response_schemas((Conversation, ConversationDeleted), PLACE),
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


def _health() -> Part:
    alive = {"type": "object", "properties": {"status": {"const": "ok"}}, "required": ["status"]}
    return {
        "/health": reading("The same as /healthz.", {"200": as_json("It does.", alive)}),
        "/healthz": reading("Whether the process lives.", {"200": as_json("It does.", alive)}),
        "/version": reading(
            "What runs here.", {"200": as_json("Its name and version.", of_type(ServerFacts))}
        ),
        "/readyz": reading(
            "Whether turns can be taken.",
            {
                "200": as_json("They can.", of_type(Report)),
                "503": as_json("They can't now.", of_type(Report)),
            },
        ),
        "/metrics": reading("Figures for Prometheus.", {"200": as_text("All of them.", CONTENT_TYPE)}),
    }


def _tickets() -> Part:
    answers = {
        "200": as_json("A ticket.", of_type(TicketGiven)),
        **refusals(RefusalBody, {401: "No key or JWT, or a bad one.", 403: "A page that may not ask."}),
        **refusals(RefusalBody, {404: "No authentication is configured.", 503: "Can't be judged now."}),
    }
    return {"/v1/tickets": {"post": operation("A single-use ticket.", answers) | BEARER}}


def _attachments() -> Part:
    nobody = {401: "No key or JWT, or a bad one.", 403: "A page that may not ask.", 503: "Not now."}
    uploads = {400: "No image, or no client_id.", 413: "Too large.", 415: "Compressed."}
    client = in_query("client_id", "Needed unless the token is a JWT or a personal API key.", named(Name))
    upload = operation(
        "Keeps an image for an hour, or with the message that shows it.",
        {
            "200": as_json("What names it.", of_type(Attachment)),
            **refusals(RefusalBody, uploads | nobody | {429: "Too many requests, or images."}),
        },
    )
    body = {"required": True, "content": {kind: {"schema": {}} for kind in IMAGE_TYPES}}
    image = {"description": "The image.", "content": {kind: {"schema": {}} for kind in IMAGE_TYPES}}
    unread = {400: "No client_id.", 404: "No such image.", 429: "Too many requests."}
    read = operation(
        "An image that a conversation shows.", {"200": image, **refusals(RefusalBody, unread | nobody)}
    )
    places = [client, in_path("conversation_id"), in_path("attachment_id")]
    return {
        "/v1/attachments": {"post": upload | BEARER | {"parameters": [client], "requestBody": body}},
        "/v1/attachments/{conversation_id}/{attachment_id}": {"get": read | BEARER | {"parameters": places}},
    }


def _shares() -> Part:
    answers = {
        "200": as_json("Messages, oldest first.", of_type(SharedPage)),
        **refusals(RefusalBody, {403: "A page that may not ask.", 404: "Nothing is shared under this id."}),
        **refusals(RefusalBody, {429: "Too many requests.", 503: "Not now."}),
    }
    parameters = [
        {"name": "share_id", "in": "path", "required": True, "schema": {"type": "string"}},
        {
            "name": "before",
            "in": "query",
            "description": "The oldest message of the page before.",
            "schema": {"type": "string"},
        },
    ]
    read = operation("A conversation that its owner shared.", answers) | {"parameters": parameters}
    return {"/v1/shares/{share_id}": {"get": read}}


def _account() -> Part:
    nobody = {401: "No key or JWT, or a bad one.", 403: "A page that may not ask."}
    why = refusals(RefusalBody, nobody | {400: "No client_id.", 429: "Too many requests.", 503: "Not now."})
    client = {
        "name": "client_id",
        "in": "query",
        "description": "Needed unless the token is a JWT or a personal API key.",
        "schema": named(Name),
    }
    line = {"oneOf": [of_type(kind) for kind in (ExportedConversation, ExportedMessage, ExportEnd)]}
    lines = response_of("One of these a line; the last one is an `end`.", "application/x-ndjson", line)
    export = operation("All that is kept of the caller.", {"200": lines, **why})
    erase = operation("Erases it.", {"200": as_json("How much there was.", of_type(Erased)), **why})
    security = {"parameters": [client], "security": [{}, {"bearer": []}]}
    return {"/v1/export": {"get": export | security}, "/v1/me": {"delete": erase | security}}


def _admin() -> Part:
    """What an operator's key opens."""
    whose = [
        in_query("principal", "As lists show it."),
        in_query("client_id", "Only this client of the owner."),
    ]
    owner = [
        in_query("principal", "As lists show it.", required=True),
        in_query("client_id", "Not of a person."),
    ]
    size = {"type": "integer", "minimum": 1, "maximum": MOST}
    page = [
        in_query("limit", "How many; 50 without it.", size),
        in_query("after", "The `next` of the page before."),
    ]
    line = {"oneOf": [of_type(kind) for kind in (ExportedConversation, ExportedMessage, ExportEnd)]}
    return {
        "/v1/admin/connections": {
            "get": _act("Who is connected.", as_json("A page.", of_type(ConnectionsPage)), whose + page),
            "delete": _act(
                "Ends somebody's.", as_json("How many.", of_type(Disconnected)), [owner[0], whose[1]]
            ),
        },
        "/v1/admin/connections/{connection_id}": {
            "delete": _act("Ends one.", as_json("It.", of_type(Disconnected)), [in_path("connection_id")])
        },
        "/v1/admin/turns": {
            "get": _act("What runs or waits.", as_json("A page.", of_type(TurnsPage)), whose + page)
        },
        "/v1/admin/turns/{turn_id}": {
            "delete": _act("Ends a turn.", as_json("It.", of_type(Stopped)), [in_path("turn_id")])
        },
        "/v1/admin/export": {
            "get": _act(
                "All that is kept of an owner.",
                response_of("One of these a line; the last one is an `end`.", "application/x-ndjson", line),
                owner,
            )
        },
        "/v1/admin/owner": {
            "delete": _act("Erases it.", as_json("How much there was.", of_type(Erased)), owner)
        },
        "/v1/admin/keys": {"get": _act("Keys and their use.", as_json("A page.", of_type(KeysPage)), page)},
    }


def _act(summary: str, done: Part, parameters: list[Part]) -> Part:
    why = {400: "Asks for what can't be had.", 401: "No admin key.", 404: "No such thing."}
    answers = {"200": done, **refusals(RefusalBody, why | {429: "Too many requests.", 503: "Not now."})}
    return operation(summary, answers) | {"parameters": parameters, "security": [{"bearer": []}]}


def _events() -> Part:
    answers = {
        "200": response_of(
            "What happens, as it does on /v1/ws.", "text/event-stream", event("A frame of the server's.")
        ),
        **refusals(RefusalBody, {400: "A name that nothing can have.", 401: "No token, or a bad one."}),
        **refusals(
            RefusalBody, {403: "A page that may not ask.", 404: "This owner has no such conversation."}
        ),
        **refusals(RefusalBody, {429: "Too many connections.", 503: "Not now."}),
    }
    name = named(Name)
    place = {"type": "string"}
    parameters = [
        {"name": "conversation_id", "in": "path", "required": True, "schema": name},
        {
            "name": "client_id",
            "in": "query",
            "description": "Needed unless the token is a JWT or a personal API key.",
            "schema": name,
        },
        {
            "name": "last_event_id",
            "in": "query",
            "schema": place,
            "description": "As the header, which counts first.",
        },
        {
            "name": "Last-Event-ID",
            "in": "header",
            "schema": place,
            "description": "The last event that was read.",
        },
    ]
    read = operation("A conversation as it continues.", answers) | {"parameters": parameters}
    return {EVENTS_PATH: {"get": read | {"security": [{}, {"bearer": []}, {"ticket": []}]}}}


def _specifications() -> Part:
    shape = {"type": "object"}
    return {
        "/openapi.json": reading("This document.", {"200": as_json("OpenAPI.", shape)}),
        "/asyncapi.yaml": reading(
            "The WebSocket.", {"200": response_of("AsyncAPI.", "application/yaml", shape)}
        ),
        "/schemas/v1.json": reading("The frames.", {"200": as_json("JSON Schema.", shape)}),
    }


_WHY = {
    400: "Asks for what can't be had.",
    401: "No key or JWT, or a bad one.",
    403: "A page that may not ask.",
    404: "No such model.",
    413: "Too long.",
    415: "Compressed.",
    429: "Too many.",
    503: "Not now.",
    OVERLOADED: "Too much to do.",
}
_FORM: Schema = {
    "type": "object",
    "required": ["file", "model"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "model": {"type": "string"},
        "language": {"type": "string"},
        "response_format": {"enum": ["json", "text", "srt", "verbose_json", "vtt"]},
        "timestamp_granularities": {"type": "array", "items": {"enum": ["word", "segment"]}},
        "stream": {"type": "boolean"},
    },
}
"""Of a recording whose words are wanted."""
_PAGING: tuple[Part, ...] = (
    {
        "name": "order",
        "in": "query",
        "description": "The newest first, unless it says otherwise.",
        "schema": {"type": "string", "enum": ["asc", "desc"]},
    },
    {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": MAX_ITEMS}},
    {
        "name": "after",
        "in": "query",
        "description": "The last item of the page before.",
        "schema": {"type": "string"},
    },
)


def _openai() -> Part:
    nobody = {401: "No key or JWT, or a bad one.", 403: "A page that may not ask."}
    why = nobody | {
        400: "Asks for what can't be had.",
        404: "No such model.",
        413: "Too long.",
        415: "Compressed.",
        503: "Not now.",
    }
    hello = {"model": "midstream-demo", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8}
    text = {"model": "bge-m3", "input": ["Hello!"]}
    model = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    every = {
        "200": as_json("All of them.", of_type(openai_chat.Models)),
        **refusals(RefusalBody, nobody | {503: "Not now."}),
    }
    one = {
        "200": as_json("It.", of_type(openai_chat.Model)),
        **refusals(RefusalBody, nobody | {404: "No such.", 503: "Not now."}),
    }
    vectors = _replies("Texts as vectors.", EmbeddingRequest, text, EmbeddingList, why)
    del vectors["post"]["responses"]["200"]["content"]["text/event-stream"]
    return {
        "/v1/embeddings": vectors,
        "/v1/chat/completions": _replies(
            "Replies to messages.", ChatRequest, hello, openai_chat.Completion, why
        ),
        "/v1/models": {"get": operation("The models.", every) | BEARER},
        "/v1/models/{model}": {"get": operation("One model.", one) | {"parameters": [model]} | BEARER},
    }


def _responses() -> Part:
    nobody = {401: "No key or JWT, or a bad one.", 403: "A page that may not ask."}
    why = nobody | {400: "Asks for what can't be had.", 404: "No such model.", 413: "Too long."}
    hello = {"model": "midstream-demo", "input": "Hello!", "max_output_tokens": 8}
    create = _replies("A response.", Creation, hello, Response, why | {415: "Compressed.", 503: "Not now."})
    name = {"name": "response_id", "in": "path", "required": True, "schema": {"type": "string"}}
    gone = nobody | {404: "No such response of yours.", 429: "Too many.", 503: "Not now."}

    def one(summary: str, words: str, reply: type[msgspec.Struct], *more: Part, **why: str) -> Part:
        refused = gone | {int(status[1:]): what for status, what in why.items()}
        answers = {"200": as_json(words, of_type(reply)), **refusals(RefusalBody, refused)}
        return operation(summary, answers) | {"parameters": [name, *more]} | BEARER

    read = one("A response as it stands.", "It.", Response)
    delete = one(
        "Deletes a response.", "It is gone.", Deleted, _409="The conversation has continued from it."
    )
    return {
        "/v1/responses": create,
        "/v1/responses/{response_id}": {"get": read, "delete": delete},
        "/v1/responses/{response_id}/input_items": {
            "get": one("What a response answered.", "Items.", Items, *_PAGING, _400="No number.")
        },
    }


def _conversations() -> Part:
    nobody = {401: "No key or JWT, or a bad one.", 403: "A page that may not ask.", 429: "Too many."}
    gone = nobody | {404: "No such conversation or item of yours.", 503: "Not now."}
    conversation, item = (
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in ("conversation_id", "item_id")
    )
    hello = {"items": [{"role": "user", "content": "Hello!"}]}

    def act(
        summary: str, words: str, schema: Schema, *names: Part, more: dict[int, str] | None = None
    ) -> Part:
        answers = {"200": as_json(words, schema), **refusals(RefusalBody, gone | (more or {}))}
        return operation(summary, answers) | {"parameters": list(names)} | BEARER

    def body(example: Part) -> Part:
        content = {"application/json": {"schema": of_type(ConversationFields), "example": example}}
        return {"requestBody": {"required": True, "content": content}}

    one, items, wrong = of_type(Conversation), of_type(Items), {400: "Asks for what can't be had."}
    busy = wrong | {409: "A response is being written.", 413: "Too long."}
    last = {409: "It is not the last item."}
    place = "/v1/conversations/{conversation_id}"
    return {
        "/v1/conversations": {
            "post": act("Begins a conversation.", "It.", one, more=busy) | body(hello),
        },
        place: {
            "get": act("A conversation.", "It.", one, conversation),
            "delete": act(
                "Deletes a conversation.", "It is gone.", of_type(ConversationDeleted), conversation
            ),
        },
        f"{place}/items": {
            "get": act("The items.", "A page.", items, conversation, *_PAGING, more=wrong),
            "post": act("Adds items.", "The new items.", items, conversation, more=busy) | body(hello),
        },
        f"{place}/items/{{item_id}}": {
            "delete": act("Deletes the last item.", "The conversation.", one, conversation, item, more=last),
        },
    }


def _agui() -> Part:
    hello = {"threadId": "t", "runId": "r", "messages": [{"role": "user", "content": "Hello!"}]}
    body = {
        "required": True,
        "content": {"application/json": {"schema": of_type(RunInput), "example": hello}},
    }
    response = response_of("A stream of events.", "text/event-stream", event("An event of AG-UI's."))
    answers = {
        "200": response,
        **refusals(RunError, {name: _WHY[name] for name in _WHY if name != OVERLOADED}),
    }
    return {"/v1/ag-ui": {"post": operation("A run.", answers) | {"requestBody": body} | BEARER}}


def _messages() -> Part:
    hello = {"model": "midstream-demo", "messages": [{"role": "user", "content": "Hello!"}]}
    whole = as_json("All of it, or a stream of events.", of_type(ReplyMessage))
    whole["content"]["text/event-stream"] = {"schema": event("An event of Anthropic's.")}
    counted = as_json("The count.", of_type(TokensCount))
    keys: Part = {"security": [{}, {"bearer": []}, {"key": []}]}

    def post(summary: str, request: type[msgspec.Struct], example: Part, response: Part) -> Part:
        body = {
            "required": True,
            "content": {"application/json": {"schema": of_type(request), "example": example}},
        }
        answers = {"200": response, **refusals(MessageError, _WHY)}
        return {"post": operation(summary, answers) | {"requestBody": body} | keys}

    return {
        "/v1/messages": post("A reply to messages.", MessageRequest, hello | {"max_tokens": 8}, whole),
        "/v1/messages/count_tokens": post("The tokens of a prompt.", CountRequest, hello, counted),
    }


def _replies(
    summary: str,
    request: type[msgspec.Struct],
    example: Part,
    reply: type[msgspec.Struct],
    why: dict[int, str],
) -> Part:
    """An endpoint that answers whole, or as a stream of chunks."""
    whole = as_json("All of it, or a stream of chunks.", of_type(reply))
    whole["content"]["text/event-stream"] = {"schema": event("A chunk, or `[DONE]`.")}
    answers = {"200": whole, **refusals(RefusalBody, why | {429: "Too many."})}
    body = {
        "required": True,
        "content": {"application/json": {"schema": of_type(request), "example": example}},
    }
    return {"post": operation(summary, answers) | {"requestBody": body} | BEARER}


def _ai_sdk() -> Part:
    hello = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Hello!"}]}
    sent = {"id": "chat1", "messages": [hello], "trigger": "submit-message"}
    body = {"schema": of_type(UIChatRequest), "example": sent}
    stream = response_of("A message.", "text/event-stream", event("A chunk of the AI SDK's, or `[DONE]`."))
    shape = {"type": "array", "items": {"type": "object"}}
    chat = {"name": "chat_id", "in": "path", "required": True, "schema": named(Name)}
    client = {
        "name": "client_id",
        "in": "query",
        "description": "Whose chat it is, where the token is no person's. Without it the chat's id is the name.",
        "schema": named(Name),
    }
    of_a_chat = {"parameters": [chat, client], "security": [{}, {"bearer": []}, {"ticket": []}]}
    nothing = {"204": {"description": "Nothing is being written."}}
    seen = {
        "name": "seen_off",
        "in": "query",
        "description": "How many characters of the last step's text the reader saw; the reply ends there.",
        "schema": {"type": "integer", "minimum": 0},
    }
    send = operation("A message, answered in chunks.", {"200": stream, **_sentences(409, 413, 415)})
    stop = operation(
        "Ends what is being written.", {"200": as_json("What it met.", of_type(ChatStopped)), **_sentences()}
    )
    kept = {"200": as_json("Messages of the AI SDK's, oldest first.", shape), **_sentences()}
    resume = operation("What is being written, from its start.", {"200": stream, **nothing, **_sentences()})
    return {
        AI_SDK: {
            "post": send
            | of_a_chat
            | {
                "parameters": [client],
                "requestBody": {"required": True, "content": {"application/json": body}},
            }
        },
        f"{AI_SDK}/{{chat_id}}/stream": {"get": resume | of_a_chat},
        f"{AI_SDK}/{{chat_id}}/stop": {"post": stop | of_a_chat | {"parameters": [chat, client, seen]}},
        f"{AI_SDK}/{{chat_id}}/messages": {"get": operation("What is kept of a chat.", kept) | of_a_chat},
    }


def _sentences(*more: int) -> Part:
    """Refusals as sentences: front ends put them before their users."""
    statuses = (400, 401, 403, 404, *more, 429, 503)
    return {str(status): as_text("Why not, in a sentence.", "text/plain") for status in statuses}


def _audio() -> Part:
    """Served where the operator says so."""
    why = {
        400: "Asks for what can't be had.",
        401: "No key or JWT, or a bad one.",
        403: "A page that may not ask.",
    }
    why |= {404: "No such model, or not served here.", 413: "Too long.", 415: "Compressed, or no form."}
    why_not = refusals(RefusalBody, why | {429: "Too many.", 503: "Not now."})
    words = as_json(
        "The words.",
        {"oneOf": [of_type(audio.Transcription), of_type(audio.VerboseTranscription)]},
    )
    words["content"] |= {kind: {"schema": {"type": "string"}} for kind in ("text/plain", "text/vtt")}
    events = {"oneOf": [of_type(audio.TextDelta), of_type(audio.TextDone)]}
    words["content"]["text/event-stream"] = {"schema": event("One of these.") | {"x-data": events}}
    form = {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}
    transcribe = operation("The words of a recording.", {"200": words, **why_not}) | {"requestBody": form}
    example = {"model": "espeak-ng", "voice": "en-us", "input": "Hello!"}
    text = {"application/json": {"schema": of_type(audio.SpeechRequest), "example": example}}
    content: Part = {
        kind.decode(): {"schema": {"type": "string", "format": "binary"}}
        for kind in audio.MEDIA_TYPES.values()
    }
    parts = {"oneOf": [of_type(audio.AudioDelta), of_type(audio.AudioDone)]}
    content["text/event-stream"] = {"schema": event("One of these.") | {"x-data": parts}}
    spoken = {"200": {"description": "Sound, as it is made.", "content": content}, **why_not}
    speak = operation("A text as sound.", spoken) | {"requestBody": {"required": True, "content": text}}
    return {audio.TRANSCRIPTIONS: {"post": transcribe | BEARER}, audio.SPEECH: {"post": speak | BEARER}}


def _model_endpoints() -> Part:
    """All of them."""
    return _openai() | _audio() | _responses() | _conversations() | _messages() | _agui() | _ai_sdk()


Part = dict[str, Any]

PLACE = "#/components/schemas/{name}"
BEARER: Part = {"security": [{}, {"bearer": []}]}
"""A token is asked for where the operator configured any."""


def in_query(name: str, words: str, schema: Schema | None = None, *, required: bool = False) -> Part:
    """A parameter of a query; a text, unless a schema says otherwise."""
    shape = schema or {"type": "string"}
    return {"name": name, "in": "query", "required": required, "description": words, "schema": shape}


def in_path(name: str) -> Part:
    """A name in a path."""
    return {"name": name, "in": "path", "required": True, "schema": named(Name)}


def event(words: str) -> Schema:
    """One event of a stream, as those read the schema of `text/event-stream` who read it at all."""
    text = {"type": "string"}
    fields = {"data": text | {"description": words}, "id": text, "event": text, "retry": {"type": "integer"}}
    return {"type": "object", "description": "Each event.", "properties": fields, "required": ["data"]}


def reading(summary: str, answers: Part) -> Part:
    """A path that is read."""
    return {"get": operation(summary, answers)}


def operation(summary: str, answers: Part) -> Part:
    """What is asked, and its answers by status."""
    return {"summary": summary, "responses": answers}


def refusals(body: type[msgspec.Struct], why: dict[int, str]) -> Part:
    """Answers of one type, with the reason of each status."""
    return {str(status): as_json(words, of_type(body)) for status, words in why.items()}


def as_json(words: str, schema: Schema) -> Part:
    """An answer of JSON."""
    return response_of(words, "application/json", schema)


def as_text(words: str, media_type: str) -> Part:
    """An answer of plain text."""
    return response_of(words, media_type, {"type": "string"})


def response_of(words: str, media_type: str, schema: Schema) -> Part:
    """An answer of a media type."""
    return {"description": words, "content": {media_type: {"schema": schema}}}


def of_type(struct: type[msgspec.Struct]) -> Schema:
    """The place of a type's schema."""
    return {"$ref": PLACE.format(name=name_of(struct))}
