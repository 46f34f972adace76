"""Converts text to client frames, and server frames to text. Pure; knows no sockets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, TypeVar, cast

import msgspec

from connections.protocol.audio import (
    Sound,
    sound_of,
)
from connections.protocol.errors import BadFrame, field_message, validation_problem
from connections.protocol.frames import (
    Frame,
    Request,
)

_decoder = msgspec.json.Decoder(Request)
_encode = msgspec.json.Encoder().encode
_NUL = re.compile("\0")
_SURROGATE = re.compile("[\ud800-\udfff]")
_REFS = {"ref": 128, "client_msg_id": 128, "event_id": 512}
"""Fields that an answer can repeat, and their maximum lengths; `event_id` is Realtime's."""

SEARCHED_CHARS = 64 * 1024
"""A longer text is not searched for the field with a bad character: that takes a tenth of a second per megabyte."""

_raw_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_Path = tuple["_Path", str] | None
_T = TypeVar("_T")


def decode(text: str | bytes) -> Request:
    """Return one client frame. Raises BadFrame, which names the wrong field; bytes are a binary frame."""
    return cast("Request", read(_decoder, text))


def decode_with_sound(message: str | bytes) -> Request | Sound:
    """Return one frame of a client that may send sound. Raises BadFrame."""
    return sound_of(message) if isinstance(message, bytes) else decode(message)


def read(decoder: msgspec.json.Decoder[_T], text: str | bytes) -> _T:
    """Return a JSON object of any protocol, read by its decoder. Raises BadFrame, which names the wrong field."""
    if isinstance(text, bytes):
        raise BadFrame("Frames must be text; this one is binary.")
    try:
        frame = decoder.decode(text)
    except msgspec.ValidationError as error:
        why = validation_problem(error).full_message(whole="The frame")
        raise BadFrame(why, ref=_ref(_reference_fields(text))) from None
    except RecursionError:
        raise BadFrame("The frame is nested too deeply.") from None
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise _decode_error(text) from None
    if _writes_nul(text):
        try:
            _refuse_nul(frame, text)
        except RecursionError:
            raise BadFrame("The frame is nested too deeply.") from None
    return frame


class FrameEncoder:
    """Encodes server frames. A frame for several readers in a row is encoded once. Frames are frozen."""

    __slots__ = ("_last", "_text")

    def __init__(self) -> None:
        self._last: Frame | None = None
        self._text = b""

    def encode(self, frame: Frame) -> bytes:
        """Return the text of a frame in UTF-8; for sound its binary frame."""
        if frame is not self._last:
            self._text = frame.message() if isinstance(frame, Sound) else _encode(frame)
            self._last = frame
        return self._text


encode = FrameEncoder().encode
"""Return the text of a server frame in UTF-8. One for the process: one event loop serves all its connections."""


def _writes_nul(text: str) -> bool:
    """Return whether a JSON text has a NUL; what looks like one may be an escaped backslash and `u0000`."""
    return "\\u0000" in text and "\\u0000" in text.replace("\\\\", "")


def _refuse_nul(frame: object, text: str) -> None:
    """Raise BadFrame for a NUL character in a known field."""
    known, why = (
        msgspec.to_builtins(frame, enc_hook=lambda _: None),
        "has a NUL character, which is not allowed.",
    )
    if len(text) > SEARCHED_CHARS:
        if _writes_nul(msgspec.json.encode(known).decode()):
            raise BadFrame(f"The frame {why}", ref=_ref(_reference_fields(text)))
    elif path := _first_path(known, _NUL):
        raise BadFrame(field_message(path, why), ref=_ref(_reference_fields(text)))


def _decode_error(text: str) -> BadFrame:
    """Return what is wrong with a text that is not JSON, or has strings that are not Unicode."""
    fields = _fields(text)
    if path := _first_path(fields, _SURROGATE):
        return BadFrame(field_message(path, "has a lone surrogate, which is not allowed."), ref=_ref(fields))
    return BadFrame("The frame is not a JSON object.")


def _reference_fields(text: str) -> dict[str, Any]:
    """Return the strings of a frame that an answer can repeat; the rest is skipped, however long it is."""
    try:
        fields = _raw_decoder.decode(text)
    except RecursionError:
        return {}
    except msgspec.DecodeError:  # it may have one: text with a lone surrogate is not JSON to msgspec
        return _fields(text)
    strings = ((name, bytes(fields[name])) for name in _REFS if name in fields)
    return {name: json.loads(string) for name, string in strings if string.startswith(b'"')}


def _fields(text: str) -> dict[str, Any]:
    """Return the fields of a bad frame, read leniently; empty if it is not an object, or too long to be read twice."""
    if len(text) > SEARCHED_CHARS:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _first_path(value: Any, bad: re.Pattern[str]) -> str | None:
    """Return the path of a string with a bad character."""
    for path, string in _strings(value):
        if bad.search(string):
            return _shown(path)
    return None


def _strings(value: Any) -> Iterator[tuple[_Path, str]]:
    """Yield every string in a frame, keys before their values. Uses its own stack: a frame may be nested deeply."""
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


def _ref(fields: dict[str, Any]) -> str | None:
    """Return the reference that the answer repeats: a string that the protocol allows, or None."""
    for name, longest in _REFS.items():
        ref = fields.get(name)
        if ref and isinstance(ref, str) and len(ref) <= longest and not _SURROGATE.search(ref):
            return ref
    return None
