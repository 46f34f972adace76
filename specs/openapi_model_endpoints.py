"""The endpoints where a model answers, as parts of the OpenAPI document."""

from __future__ import annotations

import msgspec

from connections.api.agui.schema import RunError, RunInput
from connections.api.ai_sdk.endpoint import PATH as AI_SDK
from connections.api.ai_sdk.endpoint import ChatStopped
from connections.api.ai_sdk.requests import UIChatRequest
from connections.api.anthropic.errors import OVERLOADED
from connections.api.anthropic.schema import (
    CountRequest,
    MessageError,
    MessageRequest,
    ReplyMessage,
    TokensCount,
)
from connections.api.audio import routes as audio
from connections.api.audio import speech, transcriptions
from connections.api.audio.speech import MEDIA_TYPES
from connections.api.chat_requests import ChatRequest, CompletionRequest
from connections.api.embeddings import EmbeddingList, EmbeddingRequest
from connections.api.errors import ErrorBody
from connections.api.openai_chat import encoder as wire
from connections.api.responses.endpoint import MAX_ITEMS, Compaction, Counted, Deleted, Items
from connections.api.responses.parser import ConversationFields, Creation
from connections.api.responses.schema import Conversation, ConversationDeleted, Response
from connections.protocol.frames import Name
from specs.openapi_parts import (
    BEARER,
    Part,
    as_json,
    as_text,
    event,
    of_type,
    operation,
    refusals,
    response_of,
)
from specs.schemas import Schema, named

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
    once = {"model": "midstream-demo", "prompt": "Once upon a time", "max_tokens": 8}
    text = {"model": "bge-m3", "input": ["Hello!"]}
    model = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    every = {
        "200": as_json("All of them.", of_type(wire.Models)),
        **refusals(ErrorBody, nobody | {503: "Not now."}),
    }
    one = {
        "200": as_json("It.", of_type(wire.Model)),
        **refusals(ErrorBody, nobody | {404: "No such.", 503: "Not now."}),
    }
    vectors = _replies("Texts as vectors.", EmbeddingRequest, text, EmbeddingList, why)
    del vectors["post"]["responses"]["200"]["content"]["text/event-stream"]
    return {
        "/v1/embeddings": vectors,
        "/v1/chat/completions": _replies("Replies to messages.", ChatRequest, hello, wire.Completion, why),
        "/v1/completions": _replies(
            "Texts that go on from prompts.", CompletionRequest, once, wire.TextCompletion, why
        ),
        "/v1/models": {"get": operation("The models.", every) | BEARER},
        "/v1/models/{model}": {"get": operation("One model.", one) | {"parameters": [model]} | BEARER},
    }


def _input_endpoint(summary: str, example: Part, reply: type[msgspec.Struct], why: dict[int, str]) -> Part:
    """An endpoint that takes the same bodies as that of responses."""
    answers = {
        "200": as_json("It.", of_type(reply)),
        **refusals(ErrorBody, why | {429: "Too many.", 503: "Not now."}),
    }
    body = {
        "required": True,
        "content": {"application/json": {"schema": of_type(Creation), "example": example}},
    }
    return {"post": operation(summary, answers) | {"requestBody": body} | BEARER}


def _responses() -> Part:
    nobody = {401: "No key or JWT, or a bad one.", 403: "A page that may not ask."}
    why = nobody | {400: "Asks for what can't be had.", 404: "No such model.", 413: "Too long."}
    hello = {"model": "midstream-demo", "input": "Hello!", "max_output_tokens": 8}
    create = _replies("A response.", Creation, hello, Response, why | {415: "Compressed.", 503: "Not now."})
    name = {"name": "response_id", "in": "path", "required": True, "schema": {"type": "string"}}
    gone = nobody | {404: "No such response of yours.", 429: "Too many.", 503: "Not now."}

    def one(summary: str, words: str, reply: type[msgspec.Struct], *more: Part, **why: str) -> Part:
        refused = gone | {int(status[1:]): what for status, what in why.items()}
        answers = {"200": as_json(words, of_type(reply)), **refusals(ErrorBody, refused)}
        return operation(summary, answers) | {"parameters": [name, *more]} | BEARER

    read = one("A response as it stands.", "It.", Response, *_FOLLOWING, _400="No number.")
    read["responses"]["200"]["content"]["text/event-stream"] = {"schema": event("An event, or `[DONE]`.")}
    delete = one("Deletes a response.", "It is gone.", Deleted, _409="The conversation went on from it.")
    return {
        "/v1/responses": create,
        "/v1/responses/input_tokens": _input_endpoint("How long an input is.", hello, Counted, why),
        "/v1/responses/compact": _input_endpoint(
            "A summary in the place of an input.", hello, Compaction, why
        ),
        "/v1/responses/{response_id}": {"get": read, "delete": delete},
        "/v1/responses/{response_id}/cancel": {"post": one("Stops a response.", "As it ended.", Response)},
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
        answers = {"200": as_json(words, schema), **refusals(ErrorBody, gone | (more or {}))}
        return operation(summary, answers) | {"parameters": list(names)} | BEARER

    def body(example: Part) -> Part:
        content = {"application/json": {"schema": of_type(ConversationFields), "example": example}}
        return {"requestBody": {"required": True, "content": content}}

    one, items, wrong = of_type(Conversation), of_type(Items), {400: "Asks for what can't be had."}
    busy = wrong | {409: "A response is being written.", 413: "Too long."}
    last = {409: "It is not the last item."}
    response = {"metadata": {"topic": "greetings"}}
    place = "/v1/conversations/{conversation_id}"
    return {
        "/v1/conversations": {
            "post": act("Begins a conversation.", "It.", one, more=busy) | body(hello),
        },
        place: {
            "get": act("A conversation.", "It.", one, conversation),
            "post": act("Replaces the metadata.", "It.", one, conversation, more=wrong) | body(response),
            "delete": act(
                "Deletes a conversation.", "It is gone.", of_type(ConversationDeleted), conversation
            ),
        },
        f"{place}/items": {
            "get": act("The items.", "A page.", items, conversation, *_PAGING, more=wrong),
            "post": act("Adds items.", "The new items.", items, conversation, more=busy) | body(hello),
        },
        f"{place}/items/{{item_id}}": {
            "get": act("One item.", "It.", {"type": "object"}, conversation, item),
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
    answers = {"200": whole, **refusals(ErrorBody, why | {429: "Too many."})}
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
        f"{AI_SDK}/{{chat_id}}/stop": {"post": stop | of_a_chat},
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
    why_not = refusals(ErrorBody, why | {429: "Too many.", 503: "Not now."})
    words = as_json(
        "The words.",
        {"oneOf": [of_type(transcriptions.Transcription), of_type(transcriptions.VerboseTranscription)]},
    )
    words["content"] |= {kind: {"schema": {"type": "string"}} for kind in ("text/plain", "text/vtt")}
    events = {"oneOf": [of_type(transcriptions.TextDelta), of_type(transcriptions.TextDone)]}
    words["content"]["text/event-stream"] = {"schema": event("One of these.") | {"x-data": events}}
    form = {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}
    transcribe = operation("The words of a recording.", {"200": words, **why_not}) | {"requestBody": form}
    example = {"model": "espeak-ng", "voice": "en-us", "input": "Hello!"}
    text = {"application/json": {"schema": of_type(speech.SpeechRequest), "example": example}}
    content: Part = {
        kind.decode(): {"schema": {"type": "string", "format": "binary"}} for kind in MEDIA_TYPES.values()
    }
    parts = {"oneOf": [of_type(speech.AudioDelta), of_type(speech.AudioDone)]}
    content["text/event-stream"] = {"schema": event("One of these.") | {"x-data": parts}}
    spoken = {"200": {"description": "Sound, as it is made.", "content": content}, **why_not}
    speak = operation("A text as sound.", spoken) | {"requestBody": {"required": True, "content": text}}
    return {audio.TRANSCRIPTIONS: {"post": transcribe | BEARER}, audio.SPEECH: {"post": speak | BEARER}}


def paths() -> Part:
    """All of them."""
    return _openai() | _audio() | _responses() | _conversations() | _messages() | _agui() | _ai_sdk()
