"""What goes beyond the frames that every client understands: both sides name what they have, and only what both have is used."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

MAX_FEATURES = 32
"""Names in a `hello`; more are `bad_frame`."""

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
"""The features that every server has, as `ready` names them; one whose operator allows it has `share` and `audio` too."""


def understood(named: Iterable[str]) -> frozenset[str]:
    """What a client that named these gets beyond the base: names that this server does not know change nothing."""
    return frozenset((*SERVED, AUDIO)).intersection(named)
