"""What clients are told of an image that a message shows."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from engine.images.image import Image


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """An image that a message shows, by what its sender named it with. `width`, `height`: in points."""

    id: str
    media_type: str
    width: int
    height: int

    @classmethod
    def of(cls, image: Image) -> Attachment:
        """As clients are told of it."""
        return cls(id=image.digest, media_type=image.media_type, width=image.width, height=image.height)


def attachments_of(images: Iterable[Image]) -> tuple[Attachment, ...]:
    """Return those of a message."""
    return tuple(map(Attachment.of, images))
