"""The HTTP doors as an OpenAPI 3.1 document: their objects come from the types that the doors decode and encode with."""

from __future__ import annotations

from typing import Any

import msgspec

from app.operations.metrics import CONTENT_TYPE
from app.operations.readiness import Report
from connections.account.acts import Erased, ExportEnd
from connections.admin.queries import MOST
from connections.admin.telling import ConnectionsPage, Disconnected, KeysPage, Stopped, TurnsPage
from connections.agui.fields import RunInput
from connections.agui.wire import RunError
from connections.aisdk.asking import UIChatRequest
from connections.aisdk.door import ChatStopped
from connections.aisdk.routes import PATH as AI_SDK
from connections.audio import routes as audio
from connections.audio import wire as sound
from connections.authentication.ticket_door import TicketGiven
from connections.events.door import PATH as EVENTS
from connections.http.json_answers import RefusalBody
from connections.messages.fields import CountRequest, MessageRequest
from connections.messages.problems import OVERLOADED
from connections.messages.wire import MessageError, ReplyMessage, TokensCount
from connections.openai import wire
from connections.openai.requests.fields import ChatRequest, CompletionRequest
from connections.openai.requests.sampling import OFF
from connections.responses.answers.wire import Response
from connections.responses.further_doors import Compaction, Counted
from connections.responses.kept_door import MOST_ITEMS, Deleted, Items
from connections.responses.requests.fields import Creation
from connections.wire.facts import ServerFacts
from connections.wire.frames import Name
from connections.wire.params import MAX_INTEGER
from sessions.store.belongings import ExportedConversation, ExportedMessage
from sessions.store.sharing import SharedPage
from specs.schemas import Schema, asked, name_of, named, told

Part = dict[str, Any]

_PLACE = "#/components/schemas/{name}"
_TOLD = (
    Report,
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
    wire.ErrorBody,
    ReplyMessage,
    TokensCount,
    MessageError,
    RunError,
    sound.Transcription,
    sound.VerboseTranscription,
    sound.TextDelta,
    sound.TextDone,
)
_RANGES: dict[str, Schema] = {field: {"minimum": OFF, "maximum": MAX_INTEGER} for field in ("top_k", "seed")}
"""What OpenAI's doors take beside the native one: none, by a number."""
_ANTHROPICS: dict[str, Schema] = {"system": {}}
"""A system prompt is as long as a message may be there."""
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
_BEARER: Part = {"security": [{}, {"bearer": []}]}
"""A token is asked for where the operator configured any."""


_FOLLOWING: tuple[Part, ...] = (
    {
        "name": "stream",
        "in": "query",
        "description": "Follows a response that nobody waits for.",
        "schema": {"type": "string", "enum": ["true", "false"]},
    },
    {
        "name": "starting_after",
        "in": "query",
        "description": "The number of the last event that was read.",
        "schema": {"type": "integer", "minimum": 0},
    },
)
_PAGING: tuple[Part, ...] = (
    {
        "name": "order",
        "in": "query",
        "description": "The newest first, unless it says otherwise.",
        "schema": {"type": "string", "enum": ["asc", "desc"]},
    },
    {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": MOST_ITEMS}},
    {
        "name": "after",
        "in": "query",
        "description": "The last item of the page before.",
        "schema": {"type": "string"},
    },
)


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
        | _shares()
        | _account()
        | _admin()
        | _events()
        | _openai()
        | _audio()
        | _responses()
        | _messages()
        | _agui()
        | _ai_sdk()
        | _specifications(),
        "components": {
            "schemas": asked(
                (ChatRequest, CompletionRequest, UIChatRequest, sound.SpeechRequest), _PLACE, _RANGES
            )
            | asked((MessageRequest, CountRequest, RunInput), _PLACE, _ANTHROPICS)
            | asked((Creation,), _PLACE, _RANGES)
            | told(_TOLD, _PLACE)
            | told((Response, Deleted, Items, Counted, Compaction), _PLACE),
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
        "/health": _get("The same as /healthz.", {"200": _json("It does.", alive)}),
        "/healthz": _get("Whether the process lives.", {"200": _json("It does.", alive)}),
        "/version": _get("What runs here.", {"200": _json("Its name and version.", _of(ServerFacts))}),
        "/readyz": _get(
            "Whether turns can be taken.",
            {"200": _json("They can.", _of(Report)), "503": _json("They can't now.", _of(Report))},
        ),
        "/metrics": _get("Figures for Prometheus.", {"200": _text("All of them.", CONTENT_TYPE)}),
    }


def _tickets() -> Part:
    answers = {
        "200": _json("A ticket.", _of(TicketGiven)),
        **_refusals(RefusalBody, {401: "No key or JWT, or a bad one.", 403: "A page that may not ask."}),
        **_refusals(RefusalBody, {404: "No authentication is configured.", 503: "Can't be judged now."}),
    }
    return {"/v1/tickets": {"post": _operation("A single-use ticket.", answers) | _BEARER}}


def _shares() -> Part:
    answers = {
        "200": _json("Messages, oldest first.", _of(SharedPage)),
        **_refusals(RefusalBody, {403: "A page that may not ask.", 404: "Nothing is shared under this id."}),
        **_refusals(RefusalBody, {429: "Too many requests.", 503: "Not now."}),
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
    read = _operation("A conversation that its owner shared.", answers) | {"parameters": parameters}
    return {"/v1/shares/{share_id}": {"get": read}}


def _account() -> Part:
    nobody = {401: "No key or JWT, or a bad one.", 403: "A page that may not ask."}
    why = _refusals(RefusalBody, nobody | {400: "No client_id.", 429: "Too many requests.", 503: "Not now."})
    client = {
        "name": "client_id",
        "in": "query",
        "description": "Needed unless the token is a JWT or a personal API key.",
        "schema": named(Name),
    }
    line = {"oneOf": [_of(kind) for kind in (ExportedConversation, ExportedMessage, ExportEnd)]}
    lines = _told_as("One of these a line; the last one is an `end`.", "application/x-ndjson", line)
    export = _operation("All that is kept of whoever asks.", {"200": lines, **why})
    erase = _operation("Erases it.", {"200": _json("How much there was.", _of(Erased)), **why})
    security = {"parameters": [client], "security": [{}, {"bearer": []}]}
    return {"/v1/export": {"get": export | security}, "/v1/me": {"delete": erase | security}}


def _admin() -> Part:
    """What an operator's key opens."""
    whose = [_query("principal", "As lists show it."), _query("client_id", "One of its clients alone.")]
    owner = [_query("principal", "As lists show it.", required=True), _query("client_id", "Not of a person.")]
    size = {"type": "integer", "minimum": 1, "maximum": MOST}
    page = [
        _query("limit", "How many; 50 without it.", size),
        _query("after", "The `next` of the page before."),
    ]
    line = {"oneOf": [_of(kind) for kind in (ExportedConversation, ExportedMessage, ExportEnd)]}
    return {
        "/v1/admin/connections": {
            "get": _act("Who is connected.", _json("A page.", _of(ConnectionsPage)), whose + page),
            "delete": _act("Ends somebody's.", _json("How many.", _of(Disconnected)), [owner[0], whose[1]]),
        },
        "/v1/admin/connections/{connection_id}": {
            "delete": _act("Ends one.", _json("It.", _of(Disconnected)), [_in_path("connection_id")])
        },
        "/v1/admin/turns": {
            "get": _act("What runs or waits.", _json("A page.", _of(TurnsPage)), whose + page)
        },
        "/v1/admin/turns/{turn_id}": {
            "delete": _act("Ends a turn.", _json("It.", _of(Stopped)), [_in_path("turn_id")])
        },
        "/v1/admin/export": {
            "get": _act(
                "All that is kept of an owner.",
                _told_as("One of these a line; the last one is an `end`.", "application/x-ndjson", line),
                owner,
            )
        },
        "/v1/admin/owner": {"delete": _act("Erases it.", _json("How much there was.", _of(Erased)), owner)},
        "/v1/admin/keys": {"get": _act("Keys and their use.", _json("A page.", _of(KeysPage)), page)},
    }


def _act(summary: str, done: Part, parameters: list[Part]) -> Part:
    why = {400: "Asks for what can't be had.", 401: "No admin key.", 404: "No such thing."}
    answers = {"200": done, **_refusals(RefusalBody, why | {429: "Too many requests.", 503: "Not now."})}
    return _operation(summary, answers) | {"parameters": parameters, "security": [{"bearer": []}]}


def _query(name: str, words: str, schema: Schema | None = None, *, required: bool = False) -> Part:
    shape = schema or {"type": "string"}
    return {"name": name, "in": "query", "required": required, "description": words, "schema": shape}


def _in_path(name: str) -> Part:
    return {"name": name, "in": "path", "required": True, "schema": named(Name)}


def _events() -> Part:
    answers = {
        "200": _told_as(
            "What happens, as it does on /v1/ws.", "text/event-stream", _event("A frame of the server's.")
        ),
        **_refusals(RefusalBody, {400: "A name that nothing can have.", 401: "No token, or a bad one."}),
        **_refusals(
            RefusalBody, {403: "A page that may not ask.", 404: "This owner has no such conversation."}
        ),
        **_refusals(RefusalBody, {429: "Too many connections.", 503: "Not now."}),
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
    read = _operation("A conversation as it goes on.", answers) | {"parameters": parameters}
    return {EVENTS: {"get": read | {"security": [{}, {"bearer": []}, {"ticket": []}]}}}


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
    once = {"model": "midstream-demo", "prompt": "Once upon a time", "max_tokens": 8}
    model = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    every = {
        "200": _json("All of them.", _of(wire.Models)),
        **_refusals(wire.ErrorBody, nobody | {503: "Not now."}),
    }
    one = {
        "200": _json("It.", _of(wire.Model)),
        **_refusals(wire.ErrorBody, nobody | {404: "No such.", 503: "Not now."}),
    }
    return {
        "/v1/chat/completions": _replies("Replies to messages.", ChatRequest, hello, wire.Completion, why),
        "/v1/completions": _replies(
            "Texts that go on from prompts.", CompletionRequest, once, wire.TextCompletion, why
        ),
        "/v1/models": {"get": _operation("The models.", every) | _BEARER},
        "/v1/models/{model}": {"get": _operation("One model.", one) | {"parameters": [model]} | _BEARER},
    }


def _asks(summary: str, example: Part, tells: type[msgspec.Struct], why: dict[int, str]) -> Part:
    """A door beside that of responses, which takes the same bodies."""
    answers = {
        "200": _json("It.", _of(tells)),
        **_refusals(wire.ErrorBody, why | {429: "Too many.", 503: "Not now."}),
    }
    body = {"required": True, "content": {"application/json": {"schema": _of(Creation), "example": example}}}
    return {"post": _operation(summary, answers) | {"requestBody": body} | _BEARER}


def _responses() -> Part:
    nobody = {401: "No key or JWT, or a bad one.", 403: "A page that may not ask."}
    why = nobody | {400: "Asks for what can't be had.", 404: "No such model.", 413: "Too long."}
    hello = {"model": "midstream-demo", "input": "Hello!", "max_output_tokens": 8}
    create = _replies("A response.", Creation, hello, Response, why | {415: "Compressed.", 503: "Not now."})
    name = {"name": "response_id", "in": "path", "required": True, "schema": {"type": "string"}}
    gone = nobody | {404: "No such response of yours.", 429: "Too many.", 503: "Not now."}

    def one(summary: str, words: str, tells: type[msgspec.Struct], *more: Part, **why: str) -> Part:
        refused = gone | {int(status[1:]): what for status, what in why.items()}
        answers = {"200": _json(words, _of(tells)), **_refusals(wire.ErrorBody, refused)}
        return _operation(summary, answers) | {"parameters": [name, *more]} | _BEARER

    read = one("A response as it stands.", "It.", Response, *_FOLLOWING, _400="No number.")
    read["responses"]["200"]["content"]["text/event-stream"] = {"schema": _event("An event, or `[DONE]`.")}
    delete = one("Deletes a response.", "It is gone.", Deleted, _409="The conversation went on from it.")
    return {
        "/v1/responses": create,
        "/v1/responses/input_tokens": _asks("How long an input is.", hello, Counted, why),
        "/v1/responses/compact": _asks("A summary in the place of an input.", hello, Compaction, why),
        "/v1/responses/{response_id}": {"get": read, "delete": delete},
        "/v1/responses/{response_id}/cancel": {"post": one("Stops a response.", "As it ended.", Response)},
        "/v1/responses/{response_id}/input_items": {
            "get": one("What a response answered.", "Items.", Items, *_PAGING, _400="No number.")
        },
    }


def _agui() -> Part:
    hello = {"threadId": "t", "runId": "r", "messages": [{"role": "user", "content": "Hello!"}]}
    body = {"required": True, "content": {"application/json": {"schema": _of(RunInput), "example": hello}}}
    told = _told_as("A stream of events.", "text/event-stream", _event("An event of AG-UI's."))
    answers = {"200": told, **_refusals(RunError, {name: _WHY[name] for name in _WHY if name != OVERLOADED})}
    return {"/v1/ag-ui": {"post": _operation("A run.", answers) | {"requestBody": body} | _BEARER}}


def _messages() -> Part:
    hello = {"model": "midstream-demo", "messages": [{"role": "user", "content": "Hello!"}]}
    whole = _json("All of it, or a stream of events.", _of(ReplyMessage))
    whole["content"]["text/event-stream"] = {"schema": _event("An event of Anthropic's.")}
    counted = _json("The count.", _of(TokensCount))
    keys: Part = {"security": [{}, {"bearer": []}, {"key": []}]}

    def post(summary: str, asks: type[msgspec.Struct], example: Part, told: Part) -> Part:
        body = {"required": True, "content": {"application/json": {"schema": _of(asks), "example": example}}}
        answers = {"200": told, **_refusals(MessageError, _WHY)}
        return {"post": _operation(summary, answers) | {"requestBody": body} | keys}

    return {
        "/v1/messages": post("A reply to messages.", MessageRequest, hello | {"max_tokens": 8}, whole),
        "/v1/messages/count_tokens": post("The tokens of a prompt.", CountRequest, hello, counted),
    }


def _replies(
    summary: str, asks: type[msgspec.Struct], example: Part, tells: type[msgspec.Struct], why: dict[int, str]
) -> Part:
    """A door that answers whole, or as a stream of chunks."""
    whole = _json("All of it, or a stream of chunks.", _of(tells))
    whole["content"]["text/event-stream"] = {"schema": _event("A chunk, or `[DONE]`.")}
    answers = {"200": whole, **_refusals(wire.ErrorBody, why | {429: "Too many."})}
    body = {"required": True, "content": {"application/json": {"schema": _of(asks), "example": example}}}
    return {"post": _operation(summary, answers) | {"requestBody": body} | _BEARER}


def _ai_sdk() -> Part:
    hello = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Hello!"}]}
    sent = {"id": "chat1", "messages": [hello], "trigger": "submit-message"}
    body = {"schema": _of(UIChatRequest), "example": sent}
    stream = _told_as("A message.", "text/event-stream", _event("A chunk of the AI SDK's, or `[DONE]`."))
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
    send = _operation("A message, answered in chunks.", {"200": stream, **_sentences(409, 413, 415)})
    stop = _operation(
        "Ends what is being written.", {"200": _json("What it met.", _of(ChatStopped)), **_sentences()}
    )
    kept = {"200": _json("Messages of the AI SDK's, oldest first.", shape), **_sentences()}
    resume = _operation("What is being written, from its start.", {"200": stream, **nothing, **_sentences()})
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
        f"{AI_SDK}/{{chat_id}}/stop": {"post": stop | of_a_chat},
        f"{AI_SDK}/{{chat_id}}/messages": {"get": _operation("What is kept of a chat.", kept) | of_a_chat},
    }


def _sentences(*more: int) -> Part:
    """Refusals as sentences: front ends put them before their users."""
    statuses = (400, 401, 403, 404, *more, 429, 503)
    return {str(status): _text("Why not, in a sentence.", "text/plain") for status in statuses}


def _audio() -> Part:
    """Served where the operator says so."""
    why = {
        400: "Asks for what can't be had.",
        401: "No key or JWT, or a bad one.",
        403: "A page that may not ask.",
    }
    why |= {404: "No such model, or not served here.", 413: "Too long.", 415: "Compressed, or no form."}
    refusals = _refusals(wire.ErrorBody, why | {429: "Too many.", 503: "Not now."})
    words = _json("The words.", {"oneOf": [_of(sound.Transcription), _of(sound.VerboseTranscription)]})
    words["content"] |= {kind: {"schema": {"type": "string"}} for kind in ("text/plain", "text/vtt")}
    events = {"oneOf": [_of(sound.TextDelta), _of(sound.TextDone)]}
    words["content"]["text/event-stream"] = {"schema": _event("One of these.") | {"x-data": events}}
    form = {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}
    hear = _operation("The words of a recording.", {"200": words, **refusals}) | {"requestBody": form}
    example = {"model": "espeak-ng", "voice": "en-us", "input": "Hello!"}
    text = {"application/json": {"schema": _of(sound.SpeechRequest), "example": example}}
    bytes_ = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in ("audio/wav", "audio/pcm")}
    spoken = {"200": {"description": "Sound, as it is made.", "content": bytes_}, **refusals}
    speak = _operation("A text as sound.", spoken) | {"requestBody": {"required": True, "content": text}}
    return {audio.TRANSCRIPTIONS: {"post": hear | _BEARER}, audio.SPEECH: {"post": speak | _BEARER}}


def _specifications() -> Part:
    shape = {"type": "object"}
    return {
        "/openapi.json": _get("This document.", {"200": _json("OpenAPI.", shape)}),
        "/asyncapi.yaml": _get("The WebSocket.", {"200": _told_as("AsyncAPI.", "application/yaml", shape)}),
        "/schemas/v1.json": _get("The frames.", {"200": _json("JSON Schema.", shape)}),
    }


def _event(words: str) -> Schema:
    """One event of a stream, as those read the schema of `text/event-stream` who read it at all."""
    text = {"type": "string"}
    fields = {"data": text | {"description": words}, "id": text, "event": text, "retry": {"type": "integer"}}
    return {"type": "object", "description": "Each event.", "properties": fields, "required": ["data"]}


def _get(summary: str, answers: Part) -> Part:
    return {"get": _operation(summary, answers)}


def _operation(summary: str, answers: Part) -> Part:
    return {"summary": summary, "responses": answers}


def _refusals(body: type[msgspec.Struct], why: dict[int, str]) -> Part:
    return {str(status): _json(words, _of(body)) for status, words in why.items()}


def _json(words: str, schema: Schema) -> Part:
    return _told_as(words, "application/json", schema)


def _text(words: str, media_type: str) -> Part:
    return _told_as(words, media_type, {"type": "string"})


def _told_as(words: str, media_type: str, schema: Schema) -> Part:
    return {"description": words, "content": {media_type: {"schema": schema}}}


def _of(struct: type[msgspec.Struct]) -> Schema:
    return {"$ref": _PLACE.format(name=name_of(struct))}
