"""Frames and HTTP requests that attacks are made of: the least that each endpoint takes, and some that are larger."""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from typing import Any

from tests.attack.client import Attacker
from tests.chaos.minimal_websocket import framed

MODEL, VOICE = "midstream-demo", "espeak-ng"
COMPLETIONS, RESPONSES, SPEECH = "/v1/chat/completions", "/v1/responses", "/v1/audio/speech"
MESSAGE = {"role": "user", "content": "Hello."}
_RUN = {"threadId": "t", "runId": "r", "messages": [{"id": "m", **MESSAGE}]}

STREAMED: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"model": MODEL, "messages": [MESSAGE], "max_tokens": 1_000, "stream": True},
    RESPONSES: {"model": MODEL, "input": "Hello.", "max_output_tokens": 1_000, "stream": True},
    "/v1/messages": {"model": MODEL, "messages": [MESSAGE], "max_tokens": 1_000, "stream": True},
    "/v1/ag-ui": _RUN | {"forwardedProps": {"max_tokens": 1_000}},
    "/v1/ai-sdk/chat": {
        "id": "unread",
        "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "Hello."}]}],
        "on_busy": "enqueue",
    },
}
"""A long reply as a stream, by each endpoint that has such."""
WHOLE: dict[str, dict[str, Any]] = {
    "/v1/messages/count_tokens": {"model": MODEL, "messages": [MESSAGE]},
    "/v1/embeddings": {"model": "vectors", "input": "Hello."},
    SPEECH: {"model": VOICE, "voice": "en-us", "input": "Hello."},
}
"""What is answered at once."""
BODIES = STREAMED | WHOLE


def frame(kind: str, **fields: object) -> bytes:
    """Return a frame of JSON."""
    return framed(json.dumps({"type": kind} | fields).encode())


def send(conversation_id: str, content: str = "Hello.", *, words: int = 1, **fields: object) -> bytes:
    """Return a `send` frame whose id was never used."""
    given = {"conversation_id": conversation_id, "content": content, "params": {"max_new_tokens": words}}
    return frame("send", **{"client_msg_id": uuid.uuid4().hex} | given | fields)


def get(path: str, *, key: str | None = None, **headers: str) -> bytes:
    """Return a whole request without a body."""
    return _request("GET", path, key, headers)


def post(path: str, body: bytes, *, key: str | None = None) -> bytes:
    """Return a whole request."""
    return _request("POST", path, key, {"Content-Length": str(len(body))}) + body


def head(path: str, **headers: str) -> bytes:
    """Return the head of a request whose body is something else; underscores stand for hyphens."""
    return _request("POST", path, None, headers)


def _request(method: str, path: str, key: str | None, headers: dict[str, str]) -> bytes:
    named = {"Host": "127.0.0.1"} | ({"Authorization": f"Bearer {key}"} if key else {}) | headers
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in named.items()]
    return f"{method} {path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode()


def minimal_request(path: str, *, key: str | None = None, **more: object) -> bytes:
    """Return the request of an endpoint, with other fields."""
    return post(path, json.dumps(BODIES[path] | more, separators=(",", ":")).encode(), key=key)


def completion(**fields: object) -> bytes:
    """Return the body of a request for one token."""
    return json.dumps({"model": MODEL, "messages": [MESSAGE], "max_tokens": 1} | fields).encode()


async def a_spoken_sentence(attacker: Attacker) -> str:
    """Have one sentence spoken: the first loads PyAV, 20 MB that stay, whoever asks."""
    await attacker.ask(minimal_request(SPEECH, key=attacker.client_id))
    return ""


def png(points: bytes) -> bytes:
    """Return an image whose points are not decoded here."""
    size = struct.pack(">IIBBBBB", 512, 512, 8, 2, 0, 0, 0)
    written = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", size), (b"IDAT", points), (b"IEND", b""))
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)
