"""The description of an image in a message, for clients."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from engine.vision.image import Image


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """An image that a message shows, by its id. `width`, `height`: in pixels."""

    id: str
    media_type: str
    width: int
    height: int

    @property
    def image(self) -> Image:
        """The image, before the message's text and without its bytes."""
        return Image(self.id, self.media_type, self.width, self.height)

    @classmethod
    def of(cls, image: Image) -> Attachment:
        """Make one for clients."""
        return cls(id=image.digest, media_type=image.media_type, width=image.width, height=image.height)


def attachments_of(images: Iterable[Image]) -> tuple[Attachment, ...]:
    """Return the attachments of a message."""
    return tuple(map(Attachment.of, images))
