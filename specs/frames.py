"""The frames of the WebSocket: as an AsyncAPI 3.0 document, as a page for people, and as TypeScript types; with examples."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from textwrap import wrap
from typing import Any

import msgspec

from connections.native.endpoint import SUBPROTOCOL
from connections.protocol import frames
from connections.protocol.base import ClientFrame
from sessions.limits.rates import FrameCost
from specs.bounds import table, with_table
from specs.schemas import Schema, client_frames, name_of, schemas, server_frames

_CHANNEL = {"$ref": "#/channels/socket"}


def asyncapi() -> dict[str, Any]:
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
        | {"notify": _events_operation()},
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
    answers = frames.CLIENT_FRAMES[frame].answers
    response = {"channel": _CHANNEL, "messages": _references((*answers, frames.Error))}
    reply = {"reply": response} if answers else {}
    return {"action": "receive", "channel": _CHANNEL, "messages": _references([frame]), **reply}


def _events_operation() -> dict[str, Any]:
    """What the server sends unasked, to all whom it concerns."""
    return {"action": "send", "channel": _CHANNEL, "messages": _references(server_frames())}


def _references(types: Iterable[type[msgspec.Struct]]) -> list[dict[str, str]]:
    return [{"$ref": f"#/channels/socket/messages/{_key(one)}"} for one in types]


Struct = type[msgspec.Struct]

COLUMNS = 100
COMMON = 3
"""A field that so many frames of one side have alike is described once for all of them."""
_REFERENCE_HEAD = """\
# Frames

<!-- Generated from the types by `make specs`. -->

This page lists every frame of `midstream.v1`. A frame is one JSON object, sent as text over
`GET /v1/ws`. [PROTOCOL.md](../PROTOCOL.md) says what the frames mean. A running service
serves an example of each frame at `/asyncapi.yaml`, and the schemas at `/schemas/v1.json`.

- A *turn* is the work on one reply, from `accepted` to `done`.
- Events are numbered by `seq` within an `epoch`. The server keeps them for some time in a journal,
  from which `resume` reads. Frames that are *not journalled* are sent only once.
- A tool call is *settled* once its `state` is final.
- Offsets and lengths count Unicode code points.
- A field with a `?` may be missing.
- Any client frame may have a `ref`, which the answer repeats. The answer may always be `error`.
- *Shared* fields are described once, before the frames.
- An *id* is a string of 1 to 128 characters. A *plain id* has only letters, digits and `._:-`.
"""
_IDS = {"": "id", "^[A-Za-z0-9._:-]+$": "plain id"}
"""The words for strings of 1 to 128 characters, by their pattern."""


def reference() -> str:
    """Return the whole page."""
    shapes = schemas("{name}")
    clients, server = _Side(client_frames(), shapes), _Side(server_frames(), shapes)
    page = _Page(shapes, (clients, server))
    blocks = [
        _REFERENCE_HEAD,
        *(
            block
            for heading, side in (("What clients send", clients), ("What the server sends", server))
            for block in page.side(heading, side)
        ),
        "## Types\n",
        *(block for name in page.named for block in page.named_type(name)),
    ]
    return "\n".join(blocks)


class _Side:
    """The frames that one peer sends, and the fields that several of them share."""

    def __init__(self, kinds: Iterable[Struct], shapes: Mapping[str, Schema]) -> None:
        self.frames = {frame: shapes[name_of(frame)] for frame in kinds}
        counts = Counter(
            (_labelled(name, shape), json.dumps(field))
            for shape in self.frames.values()
            for name, field in _own_fields(shape)
        )
        self.common: dict[str, Schema] = {}
        for (label, field), count in counts.most_common():
            if count >= COMMON:
                self.common.setdefault(label, json.loads(field))

    def parted(self, frame: Struct) -> tuple[list[str], dict[str, Schema]]:
        """Return a frame's common fields by name, and its own ones."""
        fields = {
            _labelled(name, self.frames[frame]): field for name, field in _own_fields(self.frames[frame])
        }
        common = [label for label, field in fields.items() if self.common.get(label) == field]
        return common, {label: field for label, field in fields.items() if label not in common}


def _own_fields(shape: Schema) -> Iterator[tuple[str, Schema]]:
    return (
        (name, field) for name, field in shape.get("properties", {}).items() if name not in {"type", "ref"}
    )


def _labelled(name: str, shape: Schema) -> str:
    return name if name in shape.get("required", ()) else f"{name}?"


class _Page:
    """The page's blocks. A type that is used once is described where it is used, the others under a heading."""

    def __init__(self, shapes: Mapping[str, Schema], sides: Iterable[_Side]) -> None:
        self._shapes = shapes
        self._tags = {_tag(frame) for side in sides for frame in side.frames}
        shown: list[Any] = [side.common for side in sides]
        shown += [side.parted(frame)[1] for side in sides for frame in side.frames]
        kinds = {name_of(frame) for side in sides for frame in side.frames}
        shown += [shape for name, shape in shapes.items() if name not in kinds]
        uses = Counter(_references_in(shown))
        self.named = [name for name in shapes if uses[name] > 1]

    def side(self, heading: str, side: _Side) -> Iterator[str]:
        """Yield the frames of one peer, after their common fields."""
        yield f"## {heading}\n"
        yield "Fields that several frames share:\n"
        yield from self._list(side.common, {})
        for frame in side.frames:
            yield from self._frame(frame, side)

    def named_type(self, name: str) -> Iterator[str]:
        """Yield a type that several places link to."""
        shape = self._shapes[name]
        yield f"### {self._heading(name)}\n"
        what, notes = _described(shape)
        yield from _paragraphs(what)
        if "enum" in shape:
            yield "\n".join(wrap(f"One of {_values(shape)}.", COLUMNS)) + "\n"
        yield from self._list(_labelled_fields(shape), notes)

    def _frame(self, frame: Struct, side: _Side) -> Iterator[str]:
        tag, (common, own) = _tag(frame), side.parted(frame)
        is_request = issubclass(frame, ClientFrame)
        is_answer = not is_request and tag in REQUEST_EXAMPLES
        yield f"### {tag} (from the server)\n" if is_answer else f"### {tag}\n"
        what, notes = _described(side.frames[frame])
        yield from _paragraphs(what)
        facts = [_request_heading(frame) if is_request else _event_heading(frame)]
        if common:
            facts.append(f"Shared: {', '.join(self._shared(frame, common, side))}.")
        yield from _paragraphs(" ".join(facts))
        yield from self._list(own, notes)

    def _shared(self, frame: Struct, common: Sequence[str], side: _Side) -> Iterator[str]:
        """Yield a frame's common fields. Most messages have those of `send`, and more."""
        send, _ = side.parted(frames.Send) if issubclass(frame, frames.TurnFrame) else ([], {})
        if send and frame is not frames.Send:
            yield "those of `send`"
            common = [label for label in common if label not in send]
        yield from (f"`{label}`" for label in common)

    def _heading(self, name: str) -> str:
        return f"{name} (type)" if name.lower() in self._tags else name

    def _list(self, fields: Mapping[str, Schema], notes: Mapping[str, str]) -> Iterator[str]:
        """Yield the fields of a type as a list, then the notes about shared fields, which are listed elsewhere."""
        items = [*self._items(fields, notes)]
        shared = notes.keys() - {label.rstrip("?") for label in fields}
        items += (_item(f"`{name}`: {note}", "") for name, note in notes.items() if name in shared)
        if items:
            yield "\n".join(items) + "\n"

    def _items(
        self, fields: Mapping[str, Schema], notes: Mapping[str, str], indent: str = ""
    ) -> Iterator[str]:
        """Yield fields as items, those of one kind in one item, and below it the fields of the types that only it has."""
        kinds: dict[tuple[str, str], list[str]] = {}
        for label, field in fields.items():
            alone = label if self._structs(field) or label.rstrip("?") in notes else ""
            kinds.setdefault((self._kind(label, field), alone), []).append(label)
        for (kind, _), labels in kinds.items():
            words = f"{', '.join(f'`{label}`' for label in labels)}: {kind}"
            note = notes.get(labels[0].rstrip("?"))
            structs = self._structs(fields[labels[0]])
            if len(structs) == 1:
                what, inner_notes = _described(structs[0])
                yield _item(f"{words}. {note or what}", indent)
                yield from self._items(_labelled_fields(structs[0]), inner_notes, f"{indent}  ")
                continue
            yield _item(f"{words}. {note}" if note else words, indent)
            for shape in structs:
                inner = _labelled_fields(shape)
                what, inner_notes = _described(shape)
                yield _item(f"{self._words(inner.pop('type'))}: {what}", f"{indent}  ")
                yield from self._items(inner, inner_notes, f"{indent}    ")

    def _structs(self, field: Schema) -> list[Schema]:
        """Return the objects that only this field has, and so are described below it."""
        once = [self._shapes[name] for name in _references_in(field) if name not in self.named]
        return [shape for shape in once if "properties" in shape]

    def _kind(self, label: str, field: Schema) -> str:
        kind = self._words(field)
        return (kind.removesuffix(" or null") if label.endswith("?") else kind) + _default(field)

    def _words(self, shape: Schema) -> str:
        """Return what a value may be. Raises ValueError where a schema says more than frames have."""
        match shape:
            case {"$ref": str(name)}:
                return self._type(name)
            case {"enum": [*_]}:
                return _values(shape)
            case {"anyOf": [{"$ref": _}, {"$ref": _}, *_]}:
                return "one of these objects"
            case {"anyOf": [*kinds]}:
                return " or ".join(dict.fromkeys(map(self._words, kinds)))
            case {"type": "array", "items": item}:
                most = f" at most {shape['maxItems']}" if "maxItems" in shape else ""
                items = re.sub("^(string|object)", r"\1s", self._words(item))
                return f"list of{most} {items}"
        return _scalar(shape)

    def _type(self, name: str) -> str:
        if name in self.named:
            return f"[{name}](#{_anchor(self._heading(name))})"
        return _values(self._shapes[name]) if "enum" in self._shapes[name] else "object"


def _described(shape: Schema) -> tuple[str, dict[str, str]]:
    """Return what a type is, and the notes about its fields, as in: What it is. `one`: a note. `other`: another."""
    fields = "|".join(shape.get("properties", ()))
    text = re.split(rf"(?:^|(?<=[.\"])\s+)`({fields})`:\s+", shape.get("description", ""))
    notes = zip(text[1::2], text[2::2], strict=True)
    return text[0], {field: note[:1].upper() + note[1:] for field, note in notes}


def _labelled_fields(shape: Schema) -> dict[str, Schema]:
    return {_labelled(name, shape): field for name, field in shape.get("properties", {}).items()}


def _item(words: str, indent: str) -> str:
    return "\n".join(
        wrap(
            f"- {' '.join(words.split())}",
            COLUMNS,
            initial_indent=indent,
            subsequent_indent=f"{indent}  ",
            break_on_hyphens=False,
            break_long_words=False,
        )
    )


def _references_in(part: object) -> list[str]:
    return re.findall(r'"\$ref": "(\w+)"', json.dumps(part))


def _scalar(shape: Schema) -> str:
    match shape["type"]:
        case "string" if (shape.get("minLength"), shape.get("maxLength")) == (1, 128):
            return _IDS[shape.get("pattern", "")]
        case "string":
            return "string" + _length(shape) + (f", `{shape['pattern']}`" if "pattern" in shape else "")
        case str(kind):
            return kind + _range(shape)
    raise ValueError(f"No words for {shape}.")


def _tag(frame: Struct) -> str:
    return str(frame.__struct_config__.tag)


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-").translate({ord(mark): None for mark in "()."})


def _request_heading(frame: Struct) -> str:
    kind = frames.CLIENT_FRAMES[frame]
    names = [f"`{_tag(answer)}`" for answer in kind.answers]
    return f"Answer: {' or '.join(names) or 'none'}."


def _event_heading(frame: Struct) -> str:
    feature = frames.SERVER_FRAMES[frame]
    return f"Feature: `{feature}`." if feature else ""


def _paragraphs(description: str) -> Iterator[str]:
    for paragraph in filter(None, description.split("\n\n")):
        yield "\n".join(wrap(" ".join(paragraph.split()), COLUMNS)) + "\n"


def _values(shape: Schema) -> str:
    return ", ".join(f"`{value}`" for value in shape["enum"])


def _length(shape: Schema) -> str:
    match shape:
        case {"minLength": least, "maxLength": most}:
            return f", {least} to {most:,} characters"
        case {"maxLength": most}:
            return f", at most {most:,} characters"
        case {"minLength": _}:
            return ", not empty"
    return ""


def _range(shape: Schema) -> str:
    match shape:
        case {"minimum": least, "maximum": most}:
            return f", {least:,} to {most:,}"
        case {"exclusiveMinimum": least, "maximum": most}:
            return f", above {least}, at most {most:,}"
        case {"minimum": least}:
            return f", at least {least}"
    return ""


def _default(field: Schema) -> str:
    default = field.get("default")
    has_default = isinstance(default, str | int | float) and default != ""
    return f", default `{json.dumps(default)}`" if has_default else ""


_CELL = 76


def protocol(text: str) -> str:
    """Return the text of PROTOCOL.md with the tables of frames as they are in the code."""
    requests: dict[tuple[str, str], list[str]] = {}
    for frame in client_frames():
        kind = frames.CLIENT_FRAMES[frame]
        scope = f"`{kind.scope}`" if kind.scope else "any"
        counts = "nothing" if kind.counts is FrameCost.NOTHING else str(kind.counts)
        requests.setdefault((scope, counts), []).append(f"`{_tag(frame)}`")
    events: dict[str, list[str]] = {}
    for frame in server_frames():
        feature = frames.SERVER_FRAMES[frame]
        events.setdefault(f"`{feature}`" if feature else "none", []).append(f"`{_tag(frame)}`")
    by_scope = table(
        ("Scope of the token", "Counts as", "Client frames"),
        ((*group, cell) for group, tags in requests.items() for cell in _cells(tags)),
    )
    by_feature = table(
        ("Feature", "Server frames"),
        ((feature, cell) for feature, tags in events.items() for cell in _cells(tags)),
    )
    return with_table(with_table(text, by_scope), by_feature)


def _cells(tags: Iterable[str]) -> list[str]:
    return wrap(", ".join(tags), _CELL)


_KINDS = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
_OBJECT = "Record<string, unknown>"
_TYPESCRIPT_HEAD = """\
// The frames of the protocol midstream.v1, generated from the server's types: `make specs` writes this file.
"""


def typescript(schemas: Mapping[str, Mapping[str, Any]]) -> str:
    """A module that exports a type for every schema."""
    return "\n".join(
        [_TYPESCRIPT_HEAD, *(line for name, schema in schemas.items() for line in _declared(name, schema))]
    )


def _declared(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    if words := schema.get("description"):
        yield from _comment(words)
    if "properties" not in schema:
        yield f"export type {name} = {type_of(schema)};\n"
        return
    yield f"export interface {name} {{"
    for field, shape in schema["properties"].items():
        yield f"  {field}{'' if field in schema['required'] else '?'}: {type_of(shape)};"
    yield "}\n"


def _comment(words: str) -> Iterator[str]:
    first, *more = words.splitlines()
    if not more:
        yield f"/** {first} */"
        return
    yield "/**"
    yield from (f" * {line}".rstrip() for line in (first, *more))
    yield " */"


def type_of(schema: Mapping[str, Any]) -> str:
    """The type of what a schema describes. Raises ValueError where it describes more than frames have."""
    match schema:
        case {"$ref": str(ref)}:
            return ref.rpartition("/")[2]
        case {"enum": [*values]}:
            return " | ".join(map(json.dumps, values))
        case {"anyOf": [*kinds]} | {"oneOf": [*kinds]}:
            return " | ".join(dict.fromkeys(map(type_of, kinds)))
        case {"type": "array", "items": item}:
            inner = type_of(item)
            return f"({inner})[]" if " " in inner else f"{inner}[]"
        case {"type": "object"}:
            return _OBJECT
        case {"type": str(kind)} if kind in _KINDS:
            return _KINDS[kind]
    raise ValueError(f"No type for {schema}.")


# Read in their order, the examples are one conversation; lines that would only repeat others are left out. Ann asks how green
# tea is made and stops the reply. She has it go on, asks for the weather by a tool of her page, has what she says translated
# while she says it, and tidies up. `tests/specs/test_examples.py` holds each to the codec, and all of them to each other.

Example = dict[str, Any]

KEPT = "Heat the water to 75 °C. Pour it over"
"""What Ann saw of the reply when she stopped it."""
_ARGS = '{"city": "Bern"}'
_TEA = {"conversation_id": "tea"}
_MODEL = "midstream-demo"
_USAGE: Example = {
    "prompt_tokens": 18,
    "cached_tokens": 0,
    "generated_tokens": 26,
    "sent_tokens": 21,
    "wasted_tokens": 5,
    "reasoning_tokens": 6,
    "reasoning_ms": 61.5,
}


def _sha256(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _by_type(*examples: Example) -> dict[str, Example]:
    return {example["type"]: example for example in examples}


_CALL: Example = {"call_id": "call_1"}
_LISTED: Example = {**_TEA, "title": "Green tea", "updated_at": 1790000042000, "messages": 5}

REQUEST_EXAMPLES = _by_type(
    {
        "type": "hello",
        "client_id": "ann-laptop",
        "features": ["reasoning", "tools", "continue", "titles", "interpret", "audio"],
    },
    {
        "type": "send",
        "client_msg_id": "m1",
        **_TEA,
        "content": "How do I make green tea?",
        "params": {"temperature": 0.7, "max_new_tokens": 200},
    },
    {"type": "cancel", "turn_id": "turn_1", "seen_off": len(KEPT)},
    {"type": "history", **_TEA, "limit": 20},
    {"type": "continue", **_TEA, "message_id": "msg_2", "client_msg_id": "m2"},
    {"type": "ack", **_TEA, "seq": 8},
    {
        "type": "edit",
        **_TEA,
        "message_id": "msg_1",
        "client_msg_id": "m3",
        "content": "Is it the weather for tea in Bern?",
        "tools": [
            {
                "name": "weather",
                "description": "The weather in a city now.",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
                "approval": "always",
            }
        ],
    },
    {"type": "tool_decision", **_TEA, **_CALL, "args_sha256": _sha256(_ARGS), "decision": "allow"},
    {"type": "tool_result", **_TEA, **_CALL, "content": "12 °C, rain"},
    {"type": "regenerate", **_TEA, "message_id": "msg_5", "client_msg_id": "m4"},
    {"type": "interpret.start", **_TEA, "client_msg_id": "m5", "source": "en", "target": "zh"},
    {"type": "source", **_TEA, "off": 0, "text": "Good morning ", "ref": "s1"},
    {"type": "resume", **_TEA, "epoch": "94ad68f5e69c58e4", "after_seq": 12},
    {"type": "conversations", "limit": 50},
    {"type": "rename", **_TEA, "title": "Green tea"},
    {"type": "search", "query": "green"},
    {"type": "share", **_TEA},
    {"type": "unshare", **_TEA},
    {"type": "auth.refresh", "token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl"},
    {"type": "ping", "t": 1790000050000},
    {
        "type": "audio.start",
        **_TEA,
        "input": {"format": "pcm16", "rate": 16000},
        "output": {"format": "pcm16", "rate": 24000, "voice": "en-us"},
        "turn_detection": {"type": "vad", "silence_ms": 400, "interrupt_ms": 300},
        "language": "en",
    },
    {"type": "audio.commit", **_TEA},
    {"type": "audio.clear", **_TEA},
    {"type": "played", **_TEA, "turn_id": "turn_5", "audio_ms": 860},
    {"type": "audio.stop", **_TEA},
    {"type": "delete", **_TEA, "ref": "r1"},
)
"""What a client sends, by its type."""

EVENT_EXAMPLES = _by_type(
    {
        "type": "ready",
        "connection_id": "conn_20abb47e3dfee2f6",
        "client_id": "ann-laptop",
        "features": ["reasoning", "tools", "continue", "titles", "interpret", "share", "audio"],
        "model": _MODEL,
        "models": [{"name": _MODEL, "context_tokens": 4096, "features": ["tools", "reasoning", "continue"]}],
        "heartbeat_ms": 20000,
        "resume_ttl_s": 2592000,
        "limits": {
            "max_frame_bytes": 65536,
            "max_content_chars": 32000,
            "max_new_tokens": 4096,
            "context_tokens": 4096,
            "max_active_turns": 1024,
            "max_queued_turns": 16,
            "messages_per_minute": None,
            "max_tool_rounds": 64,
            "max_images": 0,
            "max_image_bytes": 0,
        },
        "server": {"name": "midstream", "version": "0.1.0"},
    },
    {
        "type": "accepted",
        **_TEA,
        "client_msg_id": "m1",
        "turn_id": "turn_1",
        "message_id": "msg_1",
        "epoch": "94ad68f5e69c58e4",
        "seq": 1,
        "ref": "m1",
        "parent_id": None,
        "model": _MODEL,
    },
    {"type": "status", **_TEA, "turn_id": "turn_1", "state": "queued", "queue_position": 1},
    {
        "type": "reasoning",
        **_TEA,
        "turn_id": "turn_1",
        "seq": 2,
        "first_seq": 2,
        "off": 0,
        "text": "Three steps are enough.",
        "tokens": 6,
    },
    {
        "type": "delta",
        **_TEA,
        "turn_id": "turn_1",
        "seq": 3,
        "first_seq": 3,
        "off": 0,
        "text": "Heat the water to 75 °C. ",
        "tokens": 10,
    },
    {"type": "cancelled", "turn_id": "turn_1", "already": False},
    {
        "type": "done",
        **_TEA,
        "turn_id": "turn_1",
        "message_id": "msg_2",
        "seq": 5,
        "reason": "cancelled",
        "chars": len(KEPT),
        "usage": {**_USAGE},
        "timing": {"queued_ms": 1.4, "first_token_ms": 23.0, "total_ms": 812.6},
        "text_sha256": _sha256(KEPT),
        "saved": True,
        "cancel": {"cause": "client", "latency_ms": 0.4, "steps_after": 0},
        "model": _MODEL,
        "reasoning_chars": 23,
    },
    {
        "type": "history",
        **_TEA,
        "epoch": "94ad68f5e69c58e4",
        "seq": 5,
        "messages": [
            {
                "message_id": "msg_1",
                "parent_id": None,
                "siblings": ["msg_1"],
                "sibling_count": 1,
                "sibling_index": 0,
                "turn_id": "turn_1",
                "role": "user",
                "content": "How do I make green tea?",
                "status": "complete",
                "created_at": 1790000000000,
                "usage": None,
                "model": None,
            },
            {
                "message_id": "msg_2",
                "parent_id": "msg_1",
                "siblings": ["msg_2"],
                "sibling_count": 1,
                "sibling_index": 0,
                "turn_id": "turn_1",
                "role": "assistant",
                "content": KEPT,
                "status": "cancelled",
                "created_at": 1790000000813,
                "usage": {**_USAGE},
                "model": _MODEL,
                "reasoning": "Three steps are enough.",
            },
        ],
        "has_more": False,
    },
    {"type": "title", **_TEA, "title": "Making green tea"},
    {
        "type": "tool_call",
        **_TEA,
        "turn_id": "turn_3",
        "seq": 10,
        **_CALL,
        "index": 0,
        "name": "weather",
        "args": _ARGS,
        "args_sha256": _sha256(_ARGS),
        "where": "client",
        "needs": "approval",
        "off": 0,
        "tokens": 12,
        "expires_at": 1790003620000,
    },
    {
        "type": "tool_state",
        **_TEA,
        "turn_id": "turn_3",
        "seq": 13,
        **_CALL,
        "state": "done",
        "content": "12 °C, rain",
    },
    {"type": "tool_ack", **_TEA, **_CALL, "state": "done", "already": False},
    {"type": "resumed", **_TEA, "epoch": "94ad68f5e69c58e4", "replayed": 2, "live": "turn_4"},
    {"type": "gap", **_TEA, "epoch": "94ad68f5e69c58e4", "min_seq": 14},
    {
        "type": "snapshot",
        **_TEA,
        "epoch": "94ad68f5e69c58e4",
        "seq": 15,
        "turn_id": "turn_4",
        "text": "It rains. That is ",
    },
    {"type": "removed", **_TEA, "turn_id": "turn_5", "seq": 19},
    {
        "type": "source",
        **_TEA,
        "turn_id": "turn_6",
        "seq": 21,
        "off": 0,
        "text": "Good morning ",
    },
    {
        "type": "source_ack",
        "ref": "s1",
        **_TEA,
        "turn_id": "turn_6",
        "chars": 13,
        "final": False,
        "already": False,
    },
    {"type": "conversations", "conversations": [_LISTED], "has_more": False},
    {
        "type": "found",
        "hits": [
            {
                **_LISTED,
                "snippet": "How do I make green tea?",
                "off": 14,
                "len": 5,
                "message_id": "msg_1",
                "role": "user",
            }
        ],
    },
    {"type": "shared", **_TEA, "share_id": "UuIIj9E5dyI3sfpZiUBEfg"},
    {"type": "pong", "t": 1790000050000},
    {"type": "audio.started", **_TEA, "stream": 1, "voice": "en-us"},
    {"type": "speech", **_TEA, "state": "started", "at_ms": 480},
    {"type": "transcript", **_TEA, "text": "and black tea", "final": True, "utterance_id": "utterance_1"},
    {
        "type": "audio.reply",
        **_TEA,
        "turn_id": "turn_5",
        "stream": 1,
        "format": "pcm16",
        "rate": 24000,
        "from_ms": 0,
    },
    {
        "type": "marks",
        **_TEA,
        "turn_id": "turn_5",
        "marks": [
            {"off": 0, "len": 3, "start_ms": 12, "end_ms": 240},
            {"off": 4, "len": 7, "start_ms": 251, "end_ms": 780},
        ],
    },
    {"type": "audio.stopped", **_TEA, "reason": "stop"},
    {"type": "limits", "name": "tokens_per_day", "remaining": 4200, "reset_s": 18000},
    {
        "type": "error",
        "ref": "m4",
        "code": "busy",
        "message": "Another reply of this conversation is being written.",
        "retryable": True,
    },
    {"type": "deleted", **_TEA, "ref": "r1"},
    {"type": "goaway", "drain_ms": 30000, "reason": "The server is about to stop."},
)
"""What the server sends, by its type."""


def example_of(frame: type[msgspec.Struct]) -> Example:
    """Return the example of a kind of frame."""
    return (REQUEST_EXAMPLES if issubclass(frame, ClientFrame) else EVENT_EXAMPLES)[
        str(frame.__struct_config__.tag)
    ]
