"""Text to client frames and server frames to text. Pure; knows no socket."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, cast

import msgspec

from connections.errors import BadFrame
from connections.frames import NOT_SERVED_YET, Frame, Request

_decode = msgspec.json.Decoder(Request).decode
_encode = msgspec.json.Encoder().encode
_PLACE = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_NUL = re.compile("\0")
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_REF = 128

_Path = tuple["_Path", str] | None


class _Outline(msgspec.Struct):
    ref: Any = None
    client_msg_id: Any = None
    type: Any = None


_outline = msgspec.json.Decoder(_Outline).decode


def decode(text: str | bytes) -> Request:
    """One client frame. Raises BadFrame, which names the field that is wrong; bytes are a binary frame."""
    if isinstance(text, bytes):
        raise BadFrame("Frames are text; this one is binary.")
    try:
        frame = _decode(text)
    except msgspec.ValidationError as error:
        raise _unfit(text, str(error)) from None
    except RecursionError:
        raise BadFrame("The frame is nested too deeply.") from None
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise _unreadable(text) from None
    if "\\u0000" in text and (path := _first_path(msgspec.to_builtins(frame), _NUL)):
        raise BadFrame(f"{path}: a NUL character is not allowed.", ref=_ref(text))
    return cast("Request", frame)


def encode(frame: Frame) -> str:
    """The text of a server frame."""
    return _encode(frame).decode()


def _unfit(text: str, complaint: str) -> BadFrame:
    ref = _ref(text)
    kind = _field(text, "type")
    if isinstance(kind, str) and kind in NOT_SERVED_YET:
        return BadFrame(f"type: {kind!r} is not served by this version of the server.", ref=ref)
    if place := _PLACE.search(complaint):
        return BadFrame(f"{place[1]}: {complaint[: place.start()]}", ref=ref)
    return BadFrame(complaint.replace("Object missing", "The frame is missing the"), ref=ref)


def _unreadable(text: str) -> BadFrame:
    """Says what is wrong with text that is no JSON, or JSON whose strings are no Unicode text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return BadFrame("The frame is no JSON object.")
    if isinstance(value, dict) and (path := _first_path(value, _SURROGATE)):
        ref = value.get("ref", value.get("client_msg_id"))
        return BadFrame(f"{path}: a lone surrogate is not allowed.", ref=_printable(ref))
    return BadFrame("The frame is no JSON object.")


def _first_path(value: Any, bad: re.Pattern[str]) -> str | None:
    """Where a string that has a bad character stands in a frame."""
    return next((_shown(path) for path, string in _strings(value) if bad.search(string)), None)


def _strings(value: Any) -> Iterator[tuple[_Path, str]]:
    """Every string in a frame, keys before what they name. Keeps its own stack: a frame may be as deep as it is long."""
    waiting: list[tuple[_Path, Any]] = [(None, value)]
    while waiting:
        path, item = waiting.pop()
        if isinstance(item, str):
            yield path, item
        elif isinstance(item, dict):
            yield from (((path, "key"), key) for key in item)
            waiting.extend(((path, key), inner) for key, inner in item.items())
        elif isinstance(item, list | tuple):
            waiting.extend(((path, f"[{place}]"), inner) for place, inner in enumerate(item))


def _shown(path: _Path) -> str:
    steps: list[str] = []
    while path is not None:
        path, step = path
        steps.append(step)
    return ".".join(reversed(steps)).replace(".[", "[")


def _ref(text: str) -> str | None:
    return _printable(_field(text, "ref")) or _printable(_field(text, "client_msg_id"))


def _field(text: str, name: str) -> Any:
    try:
        return getattr(_outline(text), name)
    except (msgspec.DecodeError, RecursionError):
        return None


def _printable(ref: Any) -> str | None:
    if not isinstance(ref, str) or len(ref) > _MAX_REF or _SURROGATE.search(ref):
        return None
    return ref
