"""An image in a message: which one it is, where it is, and its bytes if they are at hand. Nothing here decodes it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Literal

import msgspec

Detail = Literal["", "auto", "low", "high"]
_SIDE = 28
"""Pixels of the side of a square that costs a token, which is about what today's models take."""
_FEWEST, _MOST = 64, 4096
_BETWEEN = "\n"
NOT_SEEN = "[An image that can't be seen here.]"
"""Replaces an image in a prompt if the model sees none, if it is too old to be shown again, or if it can't be decoded."""


class Image(msgspec.Struct, frozen=True, omit_defaults=True):
    """One image. `digest`: the SHA-256 of its bytes in hex. `width` and `height`: in pixels, by its header.

    `at`: how many code points of the message's content come before it. Text behind it begins with a line end, unless the
    image comes first. `detail`: how closely the model should look, if it can choose. `data`: empty if nobody needs it.
    """

    digest: str
    media_type: str
    width: int
    height: int
    at: int = 0
    detail: Detail = ""
    data: bytes = b""

    @property
    def url(self) -> str:
        """The image in a `data:` URL."""
        return f"data:{self.media_type};base64,{b64encode(self.data).decode()}"

    @property
    def tokens(self) -> int:
        """About how many tokens of a prompt it takes."""
        squares = -(-self.width // _SIDE) * -(-self.height // _SIDE)
        return min(max(squares, _FEWEST), _MOST)

    def moved(self, at: int) -> Image:
        """Return the same image at another place."""
        return msgspec.structs.replace(self, at=at)

    def with_data(self, data: Mapping[str, bytes]) -> Image:
        """Return the same image with its bytes, if `data`, by digest, has them."""
        found = data.get(self.digest)
        return self if found is None else msgspec.structs.replace(self, data=found)

    def named(self) -> Image:
        """Return the same image without its bytes."""
        return msgspec.structs.replace(self, data=b"") if self.data else self


Seen = tuple[str, tuple[Image, ...]]
"""A text and the images in it."""


def joined(parts: Iterable[Seen]) -> Seen:
    """Return texts as one, each on a line of its own, with their images in the same places. Empty texts are left out."""
    texts: list[str] = []
    images: list[Image] = []
    length = 0
    for text, seen in parts:
        if text:
            start = length + len(_BETWEEN) if texts else 0
            texts.append(text)
            images += [image.moved(start + image.at if image.at else length) for image in seen]
            length = start + len(text)
        else:
            images += [image.moved(length) for image in seen]
    return _BETWEEN.join(texts), tuple(images)


def together(messages: Iterable[Seen], between: str) -> Seen:
    """Return several messages as one, with `between` between their texts and their images where they stood."""
    texts, length, images = list[str](), 0, list[Image]()
    for text, seen in messages:
        start = length + len(between) if length and text else length
        images += [image.moved(start + image.at) for image in seen]
        if text:
            texts.append(text)
            length = start + len(text)
    return between.join(texts), tuple(images)


def without(content: str, images: Iterable[Image], unseen: Container[str]) -> Seen:
    """Return a text and its images, with a note in place of those whose digests are among `unseen`."""
    parts: list[Seen] = []
    for part in in_order(content, images):
        if isinstance(part, str):
            parts.append((part, ()))
        elif part.digest in unseen:
            parts.append((NOT_SEEN, ()))
        else:
            parts.append(("", (part,)))
    return joined(parts)


def in_order(content: str, images: Iterable[Image]) -> Iterator[str | Image]:
    """Yield the texts and images of a message in order."""
    begin = 0
    for image in images:
        if image.at > begin:
            yield content[begin : image.at].removeprefix(_BETWEEN if begin else "")
            begin = image.at
        yield image
    if rest := content[begin:].removeprefix(_BETWEEN if begin else ""):
        yield rest
