"""What the gateway and the listening process tell each other. It goes over their socket as the recognizer's messages do."""

from __future__ import annotations

import msgspec

from speech.contract import Heard, Listening


class Listen(msgspec.Struct, frozen=True, tag=True):
    """Sound of this number follows. `owner`: those of one owner take turns."""

    number: int
    owner: str
    listening: Listening


class Sound(msgspec.Struct, frozen=True, tag=True):
    """The next sound."""

    number: int
    sound: bytes


class Commit(msgspec.Struct, frozen=True, tag=True):
    """What came so far is all that is said."""

    number: int


class Clear(msgspec.Struct, frozen=True, tag=True):
    """Forget what was said since the last end."""

    number: int


class Leave(msgspec.Struct, frozen=True, tag=True):
    """Nobody speaks there any more."""

    number: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Sound is taken from now on."""


class Told(msgspec.Struct, frozen=True, tag=True):
    """What is heard."""

    number: int
    heard: Heard


class Taken(msgspec.Struct, frozen=True, tag=True):
    """So many bytes of the sound were listened to."""

    number: int
    size: int


ToListener = Listen | Sound | Commit | Clear | Leave
FromListener = Ready | Told | Taken
