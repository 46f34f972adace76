"""OpenAI's requests and answers for embeddings, as far as supported (API reference: Embeddings). Only types."""

from __future__ import annotations

from typing import Literal

import msgspec


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Texts to embed. `user` and unknown fields have no effect."""

    model: str | None = None
    input: str | list[str]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """Tokens that the model read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddedText(msgspec.Struct, frozen=True, kw_only=True):
    """The vector of a text: a list of numbers, or its 32-bit little-endian floats in base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: msgspec.Raw


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors of all texts, in order."""

    object: Literal["list"] = "list"
    data: tuple[EmbeddedText, ...]
    model: str
    usage: EmbeddingUsage
