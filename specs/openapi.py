"""The HTTP endpoints as an OpenAPI 3.1 document: their objects come from the types that the endpoints decode and encode with."""

from __future__ import annotations

from app.operations.metrics import CONTENT_TYPE
from app.operations.readiness import Report
from connections.api.account import TicketGiven
from connections.api.admin.endpoint import MOST
from connections.api.admin.operations import ConnectionsPage, Disconnected, KeysPage, Stopped, TurnsPage
from connections.api.agui.schema import RunError, RunInput
from connections.api.ai_sdk.endpoint import ChatStopped
from connections.api.ai_sdk.requests import UIChatRequest
from connections.api.anthropic.schema import (
    CountRequest,
    MessageError,
    MessageRequest,
    ReplyMessage,
    TokensCount,
)
from connections.api.audio import speech, transcriptions
from connections.api.chat_requests import OFF, ChatRequest, CompletionRequest
from connections.api.embeddings import EmbeddingList, EmbeddingRequest
from connections.api.errors import ErrorBody
from connections.api.events import PATH as EVENTS
from connections.api.openai_chat import encoder as wire
from connections.api.owner_data import Erased, ExportEnd
from connections.api.responses.endpoint import Compaction, Counted, Deleted, Items
from connections.api.responses.parser import ConversationFields, Creation
from connections.api.responses.schema import Conversation, ConversationDeleted, Response
from connections.http.json_responses import RefusalBody
from connections.images import TYPES as IMAGE_TYPES
from connections.protocol.frames import Name
from connections.protocol.params import MAX_INTEGER
from connections.protocol.server_info import ServerFacts
from sessions.events import Attachment
from sessions.store.owner_data import ExportedConversation, ExportedMessage
from sessions.store.sharing import SharedPage
from specs import openapi_model_endpoints
from specs.openapi_parts import (
    BEARER,
    PLACE,
    Part,
    as_json,
    as_text,
    event,
    in_path,
    in_query,
    of_type,
    operation,
    reading,
    refusals,
    response_of,
)
from specs.schemas import Schema, named, request_schemas, response_schemas

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
    wire.Completion,
    wire.Chunk,
    wire.TextCompletion,
    wire.Model,
    wire.Models,
    ErrorBody,
    ReplyMessage,
    TokensCount,
    MessageError,
    RunError,
    transcriptions.Transcription,
    transcriptions.VerboseTranscription,
    transcriptions.TextDelta,
    transcriptions.TextDone,
    speech.AudioDelta,
    speech.AudioDone,
)
_RANGES: dict[str, Schema] = {field: {"minimum": OFF, "maximum": MAX_INTEGER} for field in ("top_k", "seed")}
"""What OpenAI's endpoints take besides the native one's values: none, by a number."""
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
        | openapi_model_endpoints.paths()
        | _specifications(),
        "components": {
            "schemas": request_schemas(
                (ChatRequest, CompletionRequest, UIChatRequest, speech.SpeechRequest), PLACE, _RANGES
            )
            | request_schemas((MessageRequest, CountRequest, RunInput), PLACE, _ANTHROPICS)
            | request_schemas((Creation, ConversationFields, EmbeddingRequest), PLACE, _RANGES)
            | response_schemas(_RESPONSE_TYPES, PLACE)
            | response_schemas((Response, Deleted, Items, Counted, Compaction, EmbeddingList), PLACE)
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
    export = operation("All that is kept of whoever asks.", {"200": lines, **why})
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
    read = operation("A conversation as it goes on.", answers) | {"parameters": parameters}
    return {EVENTS: {"get": read | {"security": [{}, {"bearer": []}, {"ticket": []}]}}}


def _specifications() -> Part:
    shape = {"type": "object"}
    return {
        "/openapi.json": reading("This document.", {"200": as_json("OpenAPI.", shape)}),
        "/asyncapi.yaml": reading(
            "The WebSocket.", {"200": response_of("AsyncAPI.", "application/yaml", shape)}
        ),
        "/schemas/v1.json": reading("The frames.", {"200": as_json("JSON Schema.", shape)}),
    }
