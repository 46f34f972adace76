"""Text to client frames and server frames to text. Pure; knows no socket."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, TypeVar, cast

import msgspec

from connections.wire.audio import Sound, sound_of
from connections.wire.errors import BadFrame
from connections.wire.frames import Frame, Request
from connections.wire.sentences import complaint, worded

_decoder = msgspec.json.Decoder(Request)
_encode = msgspec.json.Encoder().encode
_NUL = re.compile("\0")
_SURROGATE = re.compile("[\ud800-\udfff]")
_REFS = {"ref": 128, "client_msg_id": 128, "event_id": 512, "requestId": 128}
"""The fields that an answer can carry back, and how long each may be; `event_id` is the Realtime protocol's, `requestId` the AI SDK's."""

_raw_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_Path = tuple["_Path", str] | None
_T = TypeVar("_T")


def decode(text: str | bytes) -> Request:
    """One client frame. Raises BadFrame, which names the field that is wrong; bytes are a binary frame."""
    return cast("Request", read(_decoder, text))


def decode_with_sound(message: str | bytes) -> Request | Sound:
    """One client frame of a client that may send sound. Raises BadFrame."""
    return sound_of(message) if isinstance(message, bytes) else decode(message)


def read(decoder: msgspec.json.Decoder[_T], text: str | bytes) -> _T:
    """A JSON object of any protocol, as its decoder says. Raises BadFrame, which names the field that is wrong."""
    if isinstance(text, bytes):
        raise BadFrame("Frames are text; this one is binary.")
    try:
        frame = decoder.decode(text)
    except msgspec.ValidationError as error:
        raise _unfit(text, error) from None
    except RecursionError:
        raise BadFrame("The frame is nested too deeply.") from None
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise _unreadable(text) from None
    if "\\u0000" in text and (path := _first_path(msgspec.to_builtins(frame, enc_hook=_unread), _NUL)):
        raise BadFrame(worded(path, "has a NUL character, which is not allowed."), ref=_ref(_named(text)))
    return frame


class FrameEncoder:
    """Codes server frames; one that goes to many readers in a row is coded once. Frames are frozen."""

    __slots__ = ("_last", "_text")

    def __init__(self) -> None:
        self._last: Frame | None = None
        self._text = b""

    def encode(self, frame: Frame) -> bytes:
        """The text of a frame, UTF-8; of sound its binary frame."""
        if frame is not self._last:
            self._text = frame.message() if isinstance(frame, Sound) else _encode(frame)
            self._last = frame
        return self._text


encode = FrameEncoder().encode
"""The text of a server frame, UTF-8. One for the process, because one event loop serves all its connections."""


def _unread(_: msgspec.Raw) -> None:
    """What a decoder left as it came."""


def _unfit(text: str, error: msgspec.ValidationError) -> BadFrame:
    """Says what is wrong with a JSON value that is no frame of the protocol."""
    return BadFrame(complaint(error).told(whole="The frame"), ref=_ref(_named(text)))


def _unreadable(text: str) -> BadFrame:
    """Says what is wrong with text that is no JSON, or JSON whose strings are no Unicode text."""
    fields = _fields(text)
    if path := _first_path(fields, _SURROGATE):
        return BadFrame(worded(path, "has a lone surrogate, which is not allowed."), ref=_ref(fields))
    return BadFrame("The frame is not a JSON object.")


def _named(text: str) -> dict[str, Any]:
    """The strings of a frame that an answer can carry back; all else is skipped, however much it is."""
    try:
        fields = _raw_decoder.decode(text)
    except RecursionError:
        return {}
    except (
        msgspec.DecodeError
    ):  # it may still have a name: JSON with a lone surrogate somewhere is no JSON here
        return _fields(text)
    strings = ((name, bytes(fields[name])) for name in _REFS if name in fields)
    return {name: json.loads(string) for name, string in strings if string.startswith(b'"')}


def _fields(text: str) -> dict[str, Any]:
    """What a bad frame has, read leniently; empty where it is no object at all."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _first_path(value: Any, bad: re.Pattern[str]) -> str | None:
    """Where a string that has a bad character stands in a frame."""
    for path, string in _strings(value):
        if bad.search(string):
            return _shown(path)
    return None


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


def _ref(fields: dict[str, Any]) -> str | None:
    """What the answer carries back: a string that the protocol allows, or nothing."""
    for name, longest in _REFS.items():
        ref = fields.get(name)
        if ref and isinstance(ref, str) and len(ref) <= longest and not _SURROGATE.search(ref):
            return ref
    return None
