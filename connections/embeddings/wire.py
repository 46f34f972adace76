"""OpenAI's words for embeddings, as far as they are served (API reference: Embeddings). Only types; fields are named as they are there."""

from __future__ import annotations

from typing import Literal

import msgspec


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be embedded. `user` and what is unknown change no vector."""

    model: str | None = None
    input: str | list[str]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """Tokens that the model read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddedText(msgspec.Struct, frozen=True, kw_only=True):
    """The vector of a text: a list of numbers, or in base64 its floats of 32 bits, little-endian."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: msgspec.Raw


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors of all texts, in their order."""

    object: Literal["list"] = "list"
    data: tuple[EmbeddedText, ...]
    model: str
    usage: EmbeddingUsage
