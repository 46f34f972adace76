"""The common fields of all frames, and their types."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._:-]+\Z")]
Ref = Annotated[str, Meta(max_length=128)]
Id = Annotated[str, Meta(min_length=1, max_length=128)]

DEFAULT_CONVERSATION = "default"


class ClientFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The root of clients' frames."""

    ref: Ref | None = None


class ServerFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """The root of the server's frames besides events."""

    ref: str | None = None
