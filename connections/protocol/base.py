"""The common fields of all frames, their types, and the extensions of the base protocol that both sides name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._:-]+\Z")]
Ref = Annotated[str, Meta(max_length=128)]
Id = Annotated[str, Meta(min_length=1, max_length=128)]

DEFAULT_CONVERSATION = "default"

MAX_FEATURES = 32
"""Names in a `hello`; more are a `bad_frame`."""

Feature = Annotated[str, Meta(min_length=1, max_length=32, pattern=r"^[a-z0-9_.-]+\Z")]
Features = Annotated[tuple[Feature, ...], Meta(max_length=MAX_FEATURES)]

REASONING = "reasoning"
TOOLS = "tools"
CONTINUE = "continue"
TITLES = "titles"
SHARE = "share"
INTERPRET = "interpret"
AUDIO = "audio"
SERVED: tuple[str, ...] = (REASONING, TOOLS, CONTINUE, TITLES, INTERPRET)
"""The features of every server, as in `ready`; `share` and `audio` follow if the operator allows them."""


class ClientFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The root of clients' frames."""

    ref: Ref | None = None


class ServerFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """The root of the server's frames besides events."""

    ref: str | None = None


def common_features(named: Iterable[str]) -> frozenset[str]:
    """Return the features that a client gets beyond the base. Unknown names have no effect."""
    return frozenset((*SERVED, AUDIO)).intersection(named)
