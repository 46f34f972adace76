"""The frames as a page for people: what each is, its fields, and an example (`docs/reference.md`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

import msgspec

from connections.protocol import codec
from connections.protocol.frames import ClientFrame
from specs.examples import REQUEST_EXAMPLES, Example, example_of
from specs.schemas import Schema, client_frames, name_of, schemas, server_frames

Struct = type[msgspec.Struct]

COLUMNS = 100
_HEAD = """\
# Frames

<!-- Generated from the types by `make specs`. -->

Every frame of `midstream.v1`, from the types that the server decodes and encodes with. A frame is
one JSON object, sent as text over `GET /v1/ws`. [PROTOCOL.md](../PROTOCOL.md) says what is promised
of them. For programs there are `/asyncapi.yaml` and `/schemas/v1.json`.

The examples are one conversation. Ann asks how green tea is made, and stops the reply. She has it
go on, asks for the weather by a tool of her page, and tidies up. Ids are short here; yours are
longer. Treat them as opaque.

Any frame of a client may carry `ref`; its answer carries it back. Unknown fields are ignored.
"""


def document() -> str:
    """Return the whole page."""
    page = _Page(schemas("{name}"))
    blocks = [
        _HEAD,
        "## What clients send\n",
        *(block for frame in client_frames() for block in page.frame(frame)),
        "## What the server sends\n",
        *(block for frame in server_frames() for block in page.frame(frame)),
        "## What is in them\n",
        *(block for name in page.parts for block in page.part(name)),
    ]
    return "\n".join(blocks)


class _Page:
    """What has a heading on the page, and where."""

    def __init__(self, shapes: Mapping[str, Schema]) -> None:
        self._shapes = shapes
        frames = (*client_frames(), *server_frames())
        self.parts = [name for name in shapes if name not in {name_of(frame) for frame in frames}]
        self._tags = {_tag(frame) for frame in frames}

    def frame(self, frame: Struct) -> Iterator[str]:
        """Yield what a frame is, how it is answered, its fields, an example."""
        shape, tag = self._shapes[name_of(frame)], _tag(frame)
        is_request = issubclass(frame, ClientFrame)
        is_answer = not is_request and tag in REQUEST_EXAMPLES
        yield f"### {tag} (answer)\n" if is_answer else f"### {tag}\n"
        yield from _paragraphs(shape["description"])
        if notes := _request_heading(frame) if is_request else _event_heading(frame):
            yield "\n".join(wrap(notes, COLUMNS)) + "\n"
        yield from self._fields(
            shape, is_request=is_request, hidden={"type", "ref"} if is_request else {"type"}
        )
        yield f"```json\n{pretty(example_of(frame))}\n```\n"

    def part(self, name: str) -> Iterator[str]:
        """Yield what stands within frames."""
        shape = self._shapes[name]
        yield f"### {self._heading(name)}\n"
        yield from _paragraphs(shape.get("description", ""))
        if "enum" in shape:
            yield "\n".join(wrap(f"One of {_values(shape)}.", COLUMNS)) + "\n"
        yield from self._fields(shape, is_request="default" in json.dumps(shape), hidden=set())

    def _heading(self, name: str) -> str:
        return f"{name} (part)" if name.lower() in self._tags else name

    def _fields(self, shape: Schema, *, is_request: bool, hidden: set[str]) -> Iterator[str]:
        fields = {name: field for name, field in shape.get("properties", {}).items() if name not in hidden}
        if not fields:
            return
        rows = ["| Field | What it is | Needed |" if is_request else "| Field | What it is | There |"]
        rows.append("|---|---|---|")
        for name, field in fields.items():
            is_always = name in shape.get("required", ())
            there = ("yes" if is_request else "always") if is_always else _default(field)
            words = self._words(field)
            rows.append(f"| `{name}` | {words.removesuffix(' or null') if is_request else words} | {there} |")
        yield "\n".join(rows) + "\n"

    def _words(self, shape: Schema) -> str:
        """Return what a value may be. Raises ValueError where a schema says more than frames have."""
        match shape:
            case {"$ref": str(name)}:
                return f"[{name}](#{_anchor(self._heading(name))})"
            case {"enum": [*_]}:
                return _values(shape)
            case {"anyOf": [{"$ref": _}, {"$ref": _}, *_] as kinds}:
                return ", ".join(f"`{kind['$ref']}`" for kind in kinds if "$ref" in kind)
            case {"anyOf": [*kinds]}:
                return " or ".join(dict.fromkeys(map(self._words, kinds)))
            case {"type": "array", "items": item}:
                most = f" of at most {shape['maxItems']}:" if "maxItems" in shape else " of"
                return f"list{most} {self._words(item)}"
        return _scalar(shape)


def _scalar(shape: Schema) -> str:
    match shape["type"]:
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
    kind = codec.CLIENT_FRAMES[frame]
    names = [f"`{_tag(answer)}`" for answer in kind.answers]
    return f"Answered by {' or '.join(names)}, or by `error`." if names else "It has no answer."


def _event_heading(frame: Struct) -> str:
    feature = next(kind.feature for kind in codec.SERVER_FRAMES.values() if kind.struct is frame)
    return f"Sent to clients that named the feature `{feature}` in `hello`." if feature else ""


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
    return f"no: `{json.dumps(default)}`" if has_default else "no"


def pretty(value: Example) -> str:
    """Return JSON that fits the page: an object in one line where it can be, else a line for each of its fields."""
    return _lines(value, indent=0, before=0)


def _lines(value: Any, *, indent: int, before: int) -> str:
    """`before`: columns that are taken on the first line already."""
    flat = json.dumps(value, ensure_ascii=False)
    if before + len(flat) + 1 <= COLUMNS or not isinstance(value, dict | list) or not value:
        return flat
    inner = " " * (indent + 2)
    if isinstance(value, dict):
        keys = {key: f"{json.dumps(key)}: " for key in value}
        items = [
            keys[key] + _lines(item, indent=indent + 2, before=indent + 2 + len(keys[key]))
            for key, item in value.items()
        ]
    else:
        items = [_lines(item, indent=indent + 2, before=indent + 2) for item in value]
    ends = "{}" if isinstance(value, dict) else "[]"
    return f"{ends[0]}\n{inner}" + f",\n{inner}".join(items) + f"\n{' ' * indent}{ends[1]}"
