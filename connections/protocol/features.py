"""Extensions of the base protocol: both sides name theirs, and only common ones are used."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

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


def common_features(named: Iterable[str]) -> frozenset[str]:
    """Return the features that a client gets beyond the base. Unknown names have no effect."""
    return frozenset((*SERVED, AUDIO)).intersection(named)
