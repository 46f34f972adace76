"""Binary frames of sound: a head of 8 bytes, then samples. Pure."""

from __future__ import annotations

import struct
from typing import Any

Frame = dict[str, Any]
_HEAD = struct.Struct(">BBHI")  # kind, flags, stream, seq
_SOUND = 1
_LAST = 1


def sound_message(stream: int, seq: int, samples: bytes) -> bytes:
    """Return the message that sends samples. `seq` begins anew behind its largest number."""
    return _HEAD.pack(_SOUND, 0, stream, seq % (1 << 32)) + samples


def sound_frame(message: bytes) -> Frame | None:
    """Return a binary message as a frame of the type `sound`; None: it is of a kind that this client does not know."""
    if len(message) < _HEAD.size:
        return None
    kind, flags, stream, seq = _HEAD.unpack_from(message)
    if kind != _SOUND:
        return None
    samples = message[_HEAD.size :]
    return {"type": "sound", "stream": stream, "seq": seq, "samples": samples, "last": bool(flags & _LAST)}
