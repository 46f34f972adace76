"""Images in messages, and how SmolVLM and Idefics3 cut them into tiles. Pure: decodes nothing.

The steps are those of transformers' image processors, and tests compare both. So an image's tokens are known from its
header, before anything is decoded.
"""

from __future__ import annotations

import hashlib
import math
from base64 import b64encode
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

Detail = Literal["", "auto", "low", "high"]

_SIDE = 28
"""Pixels of the side of a square that costs a token, which is about what today's models take."""

_FEWEST, _MOST = 64, 4096
_BETWEEN = "\n"

NOT_SEEN = "[An image that can't be seen here.]"
"""Replaces an image in a prompt if the model sees none, if it is too old to be shown again, or if it can't be decoded."""

IMAGE, AROUND, WHOLE = "<image>", "<fake_token_around_image>", "<global-img>"
"""The words for a piece of an image, around each tile, and before the tile that shows the whole image."""

_LARGEST = 4096
_KEY_BYTES = 7

_KEYED = 1 << 8 * _KEY_BYTES
"""Larger than any token id."""

Grid = tuple[int, int]
"""Rows and columns of tiles, besides one tile that shows the whole image; (0, 0) means that one alone."""


class Image(msgspec.Struct, frozen=True, omit_defaults=True):
    """One image. `digest`: the SHA-256 of its bytes in hex. `width` and `height`: in pixels, by its header.

    `at`: how many code points of the message's content come before it. Text after it begins with a line end, unless the
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
        """About how many tokens of a prompt the image takes."""
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


class Tiling(msgspec.Struct, frozen=True):
    """How a model cuts images. `side`: the side of a tile, in pixels. `tokens`: how many tokens a tile takes.

    `longest`: the length that an image's longer side is scaled to. `splits`: images are cut, not just shown whole.
    """

    side: int
    longest: int
    tokens: int
    splits: bool = True

    def grid(self, width: int, height: int) -> Grid:
        """Return how an image of this size in pixels is cut."""
        if not self.splits:
            return 0, 0
        wide, high = _scaled(width, height, self.longest)
        ratio = wide / high
        if wide >= high:
            wide = self._whole(wide)
            high = self._whole(int(wide / ratio))
        else:
            high = self._whole(high)
            wide = self._whole(int(high * ratio))
        rows, columns = high // self.side, wide // self.side
        return (rows, columns) if rows > 1 or columns > 1 else (0, 0)

    def tiles(self, grid: Grid) -> int:
        """Return how many tiles a grid has, including the one of the whole image."""
        return grid[0] * grid[1] + 1

    def words(self, grid: Grid) -> str:
        """Return the words for an image in a prompt, before it is tokenized."""
        rows, columns = grid
        seen = IMAGE * self.tokens
        lines = [
            "".join(f"{AROUND}<row_{row + 1}_col_{column + 1}>{seen}" for column in range(columns))
            for row in range(rows)
        ]
        split = "".join(f"{line}\n" for line in lines) + "\n" if lines else ""
        return f"{split}{AROUND}{WHOLE}{seen}{AROUND}"

    def _whole(self, length: int) -> int:
        """Return a length rounded up to whole tiles."""
        return max(1, math.ceil(length / self.side)) * self.side


def _scaled(width: int, height: int, longest: int) -> Grid:
    """Return the width and height in pixels that an image is scaled to before it is cut."""
    ratio = width / height
    if width >= height:
        width, height = longest, int(longest / ratio)
        height += height % 2
    else:
        width, height = int(longest * ratio), longest
        width += width % 2
    width, height = max(width, 1), max(height, 1)
    ratio = width / height
    if width >= height and width > _LARGEST:
        width, height = _LARGEST, int(_LARGEST / ratio)
    elif height > width and height > _LARGEST:
        width, height = int(_LARGEST * ratio), _LARGEST
    return max(width, 1), max(height, 1)


class PlacedImage(msgspec.Struct, frozen=True):
    """An image in a prompt, with its bytes. `starts`: where the tokens of its tiles begin, in order."""

    image: Image
    starts: tuple[int, ...]

    def stop(self, tokens: int) -> int:
        """Return the place after its last token. `tokens`: how many a tile has."""
        return max(self.starts, default=0) + tokens


def keyed(prompt: Sequence[int], shown: Sequence[PlacedImage], tokens: int) -> list[int]:
    """Return a prompt for the lookup of cached keys and values, in which each image's tokens depend on its digest.

    All pieces of all images have the same token. It is replaced by numbers larger than any token id, drawn from the
    digest. So prompts with the same text are alike only up to the first image that differs.
    """
    made = list(prompt)
    for one in shown:
        drawn = _drawn(one.image.digest, len(one.starts) * tokens)
        for start in one.starts:
            made[start : start + tokens] = [next(drawn) for _ in range(tokens)]
    return made


def plain(tokens: Sequence[int], image: int) -> list[int]:
    """Return tokens as a model reads them, with `image` in place of the numbers of `keyed`."""
    return [image if token >= _KEYED else token for token in tokens]


def _drawn(digest: str, count: int) -> Iterator[int]:
    drawn = hashlib.shake_256(digest.encode()).digest(_KEY_BYTES * count)
    for place in range(0, len(drawn), _KEY_BYTES):
        yield _KEYED + int.from_bytes(drawn[place : place + _KEY_BYTES], "big")
