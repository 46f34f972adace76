"""The interface of embedding models for the layers above."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Texts(msgspec.Struct, frozen=True):
    """The texts to embed, a vector for each. `client`: as in `Request`.

    `dimensions`: the length of the vectors; None: the model's own. `packed`: as base64 of little-endian 32-bit floats, instead
    of a list of numbers.
    """

    texts: tuple[str, ...]
    client: str = ""
    dimensions: int | None = None
    packed: bool = False


class Vectors(msgspec.Struct, frozen=True):
    """The vectors as JSON, in the order of their texts. `tokens`: those of the texts; 0 if they were not counted."""

    vectors: tuple[msgspec.Raw, ...]
    tokens: int


class Embedder(Protocol):
    """Embeds texts."""

    @property
    def name(self) -> str:
        """The model's name for clients."""
        ...

    @property
    def max_texts(self) -> int:
        """Most texts of one request."""
        ...

    @property
    def takes_dimensions(self) -> bool:
        """Whether a request can choose the length of the vectors."""
        ...

    async def embed(self, texts: Texts) -> Vectors:
        """Embed each text. Cancelling the wait cancels the request.

        Raises PromptRejected, EngineBusy, EngineUnavailable.
        """
        ...
