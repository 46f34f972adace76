"""JSON Schemas of the frames (draft 2020-12), from their types.

A client's frame may leave out what has a default. A server's is described as it is written: what equals a default is left
out where the type says so, so that `null` comes only where it means something.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from inspect import cleandoc
from typing import Any, get_args

import msgspec
from msgspec import inspect

from connections.protocol import frames, params
from connections.protocol.base import ClientFrame
from engine import messages
from sessions.conversation.history_page import HistoryPage, ShownMessage
from sessions.store.index import Listed

Schema = dict[str, Any]
Types = tuple[type[msgspec.Struct], ...]

_NAMES: dict[type, str] = {
    HistoryPage: "History",
    ShownMessage: "Message",
    Listed: "ConversationSummary",
    messages.Languages: "ModelLanguages",
    frames.ConversationsPage: "Conversations",
    frames.LimitNear: "LimitsLeft",
    frames.GoAway: "Goaway",
    frames.Error: "ErrorFrame",
}
"""What the page and its users call what has another name in the code."""

_ENDPOINT_PREFIXES = {"connections.api.responses": "Responses"}
"""Endpoints whose types are called as another endpoint's are: what begins their names here."""

_LENGTH: Schema = {"minimum": params.UNLIMITED, "not": {"const": 0}}
_RANGES: dict[str, Schema] = {
    **dict.fromkeys(("max_new_tokens", "max_tokens", "max_completion_tokens", "max_output_tokens"), _LENGTH),
    "temperature": {"minimum": 0, "maximum": params.MAX_TEMPERATURE},
    "top_p": {"minimum": params.SMALLEST_TOP_P, "maximum": 1},
    "top_k": {"minimum": 0, "maximum": params.MAX_INTEGER},
    "repetition_penalty": {"minimum": params.MIN_PENALTY, "maximum": params.MAX_PENALTY},
    "seed": {"minimum": 0, "maximum": params.MAX_INTEGER},
    "min_p": {"minimum": 0, "maximum": 1},
    "presence_penalty": {"minimum": -2, "maximum": 2},
    "frequency_penalty": {"minimum": -2, "maximum": 2},
    "min_tokens": {"minimum": 0},
    "max_time_s": {"exclusiveMinimum": 0, "maximum": params.MAX_TIME_S},
    "chars_per_s": {
        "minimum": 0,
        "maximum": params.MAX_CHARS_PER_S,
        "not": {"exclusiveMinimum": 0, "exclusiveMaximum": params.MIN_CHARS_PER_S},
    },
    "system": {"maxLength": params.MAX_SYSTEM_CHARS},
}
_STOP: Schema = {"type": "string", "minLength": 1, "maxLength": params.MAX_STOP_CHARS}
_STOPS: Schema = {"type": "array", "items": _STOP, "maxItems": params.MAX_STOPS}


def client_frames() -> Types:
    """What clients send, in the order of the protocol's table."""
    return get_args(frames.Request)


def server_frames() -> Types:
    """What the native endpoint sends, in the order of the protocol's table."""
    return tuple(frames.SERVER_FRAMES)


def name_of(frame: type[msgspec.Struct]) -> str:
    """What a type is called in the specifications: a client's is a request."""
    is_request = issubclass(frame, ClientFrame)
    prefix = next(
        (own for room, own in _ENDPOINT_PREFIXES.items() if frame.__module__.startswith(f"{room}.")), ""
    )
    return f"{frame.__name__}Request" if is_request else _NAMES.get(frame, prefix + frame.__name__)


def schemas(place: str) -> dict[str, Schema]:
    """The schema of every frame and of what is in it, by name. `place`: a template for references, as `#/$defs/{name}`."""
    return request_schemas(client_frames(), place) | response_schemas(server_frames(), place)


def request_schemas(types: Types, place: str, own: Mapping[str, Schema] | None = None) -> dict[str, Schema]:
    """Schemas of what is read. `own`: ranges of fields, where they are not those of the native endpoint."""
    found = _components(types, place)
    ranges = {**_RANGES, **(own or {})}
    for fields in (schema["properties"] for schema in found.values()):
        for field in fields.keys() & ranges.keys():
            fields[field].get("anyOf", [fields[field]])[0] |= ranges[field]
        if "stop" in fields:  # OpenAI's clients may name one alone, or none
            several = fields["stop"].get("anyOf")
            fields["stop"] |= _STOPS if several is None else {"anyOf": [_STOP, _STOPS, {"type": "null"}]}
    return found


def response_schemas(types: Types, place: str) -> dict[str, Schema]:
    """Schemas of what is written."""
    found = _components(types, place)
    for struct in structs(types):
        _as_written(found[name_of(struct)], struct)
    return found


def document() -> Schema:
    """All schemas as one document: any frame is valid under it, and `Request` and `Frame` have a direction each."""
    place = "#/$defs/{name}"
    unions = {
        name: {
            "title": name,
            "description": what,
            "oneOf": [{"$ref": place.format(name=name_of(one))} for one in types],
        }
        for name, what, types in (
            ("Request", "Any frame of a client's.", client_frames()),
            ("Frame", "Any frame of the server's.", server_frames()),
        )
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:midstream:frames:v1",
        "title": "Frames of midstream.v1",
        "description": "One JSON object each, as text on /v1/ws. Fields that are not here are ignored.",
        "anyOf": [{"$ref": place.format(name=name)} for name in unions],
        "$defs": unions | schemas(place),
    }


def named(kind: Any) -> Schema:
    """The schema of a type that is no object."""
    schema: Schema = _renamed(msgspec.json.schema(kind), {}, "")
    return schema


def structs(types: Iterable[type[msgspec.Struct]]) -> set[type[msgspec.Struct]]:
    """These types and all that are in them."""
    found: set[type[msgspec.Struct]] = set()
    waiting: list[Any] = list(inspect.multi_type_info(types))
    while waiting:
        match waiting.pop():
            case inspect.StructType(cls=struct, fields=fields) if struct not in found:
                found.add(struct)
                waiting.extend(field.type for field in fields)
            case inspect.UnionType(types=several):
                waiting.extend(several)
            case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
                waiting.append(item)
    return found


def _components(types: Types, place: str) -> dict[str, Schema]:
    """msgspec's, under our names."""
    known = structs(types)
    names = {struct.__name__: name_of(struct) for struct in known}
    names |= {
        f"{struct.__module__}.{struct.__name__}": name_of(struct) for struct in known
    }  # of two with one name
    _, found = msgspec.json.schema_components(types, ref_template="ref:{name}")
    return {
        (title := names.get(name, name)): _renamed(schema, names, place) | {"title": title}
        for name, schema in found.items()
    }


def _renamed(schema: Any, names: dict[str, str], place: str) -> Any:
    match schema:
        case {"$ref": str(ref), **rest}:
            return {"$ref": place.format(name=names.get(name := ref.removeprefix("ref:"), name))} | _renamed(
                rest, names, place
            )
        case {"description": str(words), **rest}:
            return {"description": re.sub(r"\bNone\b", "null", cleandoc(words))} | _renamed(
                rest, names, place
            )
        case {
            "pattern": str(pattern),
            **rest,
        }:  # Python's end of a text is `$` in the regular expressions of the web
            return {"pattern": re.sub(r"\\Z$", "$", pattern)} | _renamed(rest, names, place)
        case dict():
            return {
                name: _renamed(inner, names, place)
                for name, inner in schema.items()
                if name != "discriminator"
            }
        case list() | tuple():  # defaults are as Python has them
            return [_renamed(inner, names, place) for inner in schema]
    return schema


def _as_written(schema: Schema, struct: type[msgspec.Struct]) -> None:
    """Fields that are always there are required; one that is left out where it is null is never null.

    Where defaults are left out, UNSET is the default of what is always there: it equals no value that is written.
    """
    leaves_out = struct.__struct_config__.omit_defaults
    required = [] if struct.__struct_config__.tag is None else ["type"]
    for field in msgspec.structs.fields(struct):
        shape = schema["properties"][field.encode_name]
        shape.pop("default", None)
        if field.required or leaves_out == (field.default is msgspec.UNSET):
            required.append(field.encode_name)
        elif field.default is None:
            kinds = [kind for kind in shape.pop("anyOf", ()) if kind != {"type": "null"}]
            shape |= kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    schema["required"] = required
