"""The WebSocket as an AsyncAPI 3.0 document: which frames go in which direction, and what answers what."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from connections.native.endpoint import SUBPROTOCOL
from connections.protocol import codec, frames
from specs.examples import example_of
from specs.schemas import client_frames, name_of, schemas, server_frames

_CHANNEL = {"$ref": "#/channels/socket"}


def document() -> dict[str, Any]:
    """The whole document."""
    every = (*client_frames(), *server_frames())
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Midstream over WebSockets",
            "version": "1",
            "description": "Wire protocol v1. PROTOCOL.md says what the frames mean and what is promised of them.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "here": {
                "host": "{host}",
                "protocol": "ws",
                "description": "`wss` where TLS stands before or in the server.",
                "variables": {"host": {"default": "127.0.0.1:8000"}},
                "security": [{"$ref": "#/components/securitySchemes/bearer"}],
            }
        },
        "channels": {
            "socket": {
                "address": "/v1/ws",
                "title": f"Subprotocol {SUBPROTOCOL}",
                "messages": {_key(one): {"$ref": f"#/components/messages/{_key(one)}"} for one in every},
            }
        },
        "operations": {_key(frame): _request_operation(frame) for frame in client_frames()}
        | {"tell": _events_operation()},
        "components": {
            "messages": {_key(one): _message(one) for one in every},
            "schemas": schemas("#/components/schemas/{name}"),
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key, a JWT or a ticket, in the handshake or in `hello.token`; where the operator asks for one.",
                }
            },
        },
    }


def _key(frame: type[msgspec.Struct]) -> str:
    name = name_of(frame)
    return name[0].lower() + name[1:]


def _message(frame: type[msgspec.Struct]) -> dict[str, Any]:
    tag = frame.__struct_config__.tag
    return {
        "name": tag,
        "title": name_of(frame),
        "payload": {"$ref": f"#/components/schemas/{name_of(frame)}"},
        "examples": [{"payload": example_of(frame)}],
    }


def _request_operation(frame: type[msgspec.Struct]) -> dict[str, Any]:
    """What the server receives, and what it answers at once."""
    answers = codec.CLIENT_FRAMES[frame].answers
    response = {"channel": _CHANNEL, "messages": _references((*answers, frames.Error))}
    reply = {"reply": response} if answers else {}
    return {"action": "receive", "channel": _CHANNEL, "messages": _references([frame]), **reply}


def _events_operation() -> dict[str, Any]:
    """What the server sends unasked, to all whom it concerns."""
    return {"action": "send", "channel": _CHANNEL, "messages": _references(server_frames())}


def _references(types: Iterable[type[msgspec.Struct]]) -> list[dict[str, str]]:
    return [{"$ref": f"#/channels/socket/messages/{_key(one)}"} for one in types]
