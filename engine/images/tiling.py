"""How SmolVLM and Idefics3 cut images into tiles, and what stands for one in a prompt. Pure: knows sizes, decodes nothing.

The steps are those of transformers' image processors of both; tests compare them. So the tokens of an image are known by
its header alone, before anything is decoded.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence

import msgspec

from engine.images.image import Image

IMAGE, AROUND, WHOLE = "<image>", "<fake_token_around_image>", "<global-img>"
"""What stands for a piece of an image, around each tile, and before the tile that shows the whole."""

_LARGEST = 4096
_KEY_BYTES = 7
_KEYED = 1 << 8 * _KEY_BYTES
"""Beyond every vocabulary."""

Grid = tuple[int, int]
"""Rows and columns of tiles, beside one tile that shows the whole; (0, 0): that one alone."""


class Tiling(msgspec.Struct, frozen=True):
    """How a model cuts images. `side`: of a tile, in points; `longest`: to which an image's longer side is scaled.

    `tokens`: that stand for a tile. `splits`: an image is more than the tile that shows the whole.
    """

    side: int
    longest: int
    tokens: int
    splits: bool = True

    @property
    def most_tiles(self) -> int:
        """How many tiles an image has at most."""
        across = math.ceil(min(self.longest, _LARGEST) / self.side)
        return across**2 + 1 if self.splits else 1

    def grid(self, width: int, height: int) -> Grid:
        """Return how an image of so many points is cut."""
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
        """Return how many tiles a grid has, that of the whole included."""
        return grid[0] * grid[1] + 1

    def words(self, grid: Grid) -> str:
        """Return what stands for an image in a prompt, before it is tokenized."""
        rows, columns = grid
        seen = IMAGE * self.tokens
        lines = [
            "".join(f"{AROUND}<row_{row + 1}_col_{column + 1}>{seen}" for column in range(columns))
            for row in range(rows)
        ]
        split = "".join(f"{line}\n" for line in lines) + "\n" if lines else ""
        return f"{split}{AROUND}{WHOLE}{seen}{AROUND}"

    def _whole(self, length: int) -> int:
        """Return a length in whole tiles."""
        return max(1, math.ceil(length / self.side)) * self.side


def _scaled(width: int, height: int, longest: int) -> Grid:
    """Return the size in points to which an image is scaled before it is cut."""
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


class Shown(msgspec.Struct, frozen=True):
    """An image in a prompt. `starts`: where the tokens of its tiles begin, in order; `image`: with its bytes."""

    image: Image
    starts: tuple[int, ...]

    def stop(self, tokens: int) -> int:
        """Return the place behind its last token; `tokens`: of a tile."""
        return max(self.starts, default=0) + tokens


def keyed(prompt: Sequence[int], shown: Sequence[Shown], tokens: int) -> list[int]:
    """Return a prompt by which kept keys and values are found: what stands for an image is told by that one's digest.

    The same token stands for each piece of every image. In its place are numbers, beyond every vocabulary, that are drawn
    from the digest: prompts of the same text begin alike up to the first image that is another one.
    """
    made = list(prompt)
    for one in shown:
        drawn = _drawn(one.image.digest, len(one.starts) * tokens)
        for start in one.starts:
            made[start : start + tokens] = [next(drawn) for _ in range(tokens)]
    return made


def plain(tokens: Sequence[int], image: int) -> list[int]:
    """Return tokens as a model has them: `image` where `keyed` wrote numbers."""
    return [image if token >= _KEYED else token for token in tokens]


def _drawn(digest: str, count: int) -> Iterator[int]:
    drawn = hashlib.shake_256(digest.encode()).digest(_KEY_BYTES * count)
    for place in range(0, len(drawn), _KEY_BYTES):
        yield _KEYED + int.from_bytes(drawn[place : place + _KEY_BYTES], "big")
