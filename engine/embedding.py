"""What the floors above may know of whoever turns texts into vectors."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Texts(msgspec.Struct, frozen=True):
    """What is to be embedded, a vector for each text. `client`: whose request it is, as in `Request`.

    `dimensions`: how long the vectors shall be; None: as the model makes them. `packed`: in base64, of little-endian floats
    of 32 bits, in place of a list of numbers.
    """

    texts: tuple[str, ...]
    client: str = ""
    dimensions: int | None = None
    packed: bool = False


class Vectors(msgspec.Struct, frozen=True):
    """The vectors as JSON, in the order of their texts. `tokens`: what the model read; 0 where nobody counted."""

    vectors: tuple[msgspec.Raw, ...]
    tokens: int


class Embedder(Protocol):
    """Makes vectors of texts."""

    @property
    def name(self) -> str:
        """What clients call the model."""
        ...

    @property
    def max_texts(self) -> int:
        """Of one request."""
        ...

    @property
    def takes_dimensions(self) -> bool:
        """Whether the model makes vectors as long as one asks."""
        ...

    async def embed(self, texts: Texts) -> Vectors:
        """Make a vector of each text. Who stops waiting has it given up.

        Raises PromptRejected, EngineBusy, EngineUnavailable.
        """
        ...
