"""The server's facts in `ready`: its limits, its models, its tools."""

from __future__ import annotations

from typing import Literal

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits for clients; None: no limit. `max_images`: of one request, 0 if no model takes images."""

    max_frame_bytes: int
    max_content_chars: int
    max_new_tokens: int
    context_tokens: int
    max_active_turns: int
    max_queued_turns: int
    messages_per_minute: int | None
    max_tool_rounds: int
    max_images: int = 0
    max_image_bytes: int = 0


class Model(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model that may be named. `context_tokens`: its window; None until it is loaded.

    `unsupported`: params that it can't follow. `fallbacks`: models that answer if it can't, in order.
    `features`: what it offers besides text: `tools`, `reasoning`, `format`, `continue`, `images`; `translate`: it only
    translates.
    """

    name: str
    aliases: tuple[str, ...] = ()
    context_tokens: int | None = None
    unsupported: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    features: tuple[str, ...] = ()


class ServerTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the server runs."""

    name: str
    description: str
    approval: Literal["never", "always"]


class ServerFacts(msgspec.Struct, frozen=True):
    """The name and the version of the server."""

    name: str
    version: str
