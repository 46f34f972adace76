"""The images of one request: which are encoded, and where they are in its prompt. Knows no decoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from engine.cache.layout import Span
from engine.images.image import Image
from engine.images.tiling import PlacedImage, plain
from engine.model.loaded_model import VisionConfig

Rows = tuple[tuple[int, Tensor], ...]


class ImageInputs:
    """The images that a request shows. Their states are kept until it ends, since it may be computed once more."""

    def __init__(self, shown: Sequence[PlacedImage], vision_config: VisionConfig) -> None:
        """Take the images of a prompt, and the facts about the model."""
        self._shown = shown
        self._tokens = vision_config.tiling.tokens
        self._token = vision_config.token
        self._states: dict[int, Tensor] = {}

    @property
    def end(self) -> int:
        """The place behind the last token of an image."""
        return max(one.stop(self._tokens) for one in self._shown)

    def image(self, number: int) -> Image:
        """Return an image."""
        return self._shown[number].image

    def tiles(self, number: int) -> int:
        """Return how many tiles an image has."""
        return len(self._shown[number].starts)

    def add_states(self, number: int, states: Tensor) -> None:
        """Take the states of an image, (tiles * tokens, hidden)."""
        self._states[number] = states

    def missing(self, computed: int) -> int | None:
        """Return the number of the next image to encode, if the first `computed` tokens of the prompt are computed."""
        for number, one in enumerate(self._shown):
            if number not in self._states and one.stop(self._tokens) > computed:
                return number
        return None

    def plain(self, tokens: Sequence[int]) -> list[int]:
        """Return tokens as the model reads them, without the keys of images."""
        return plain(tokens, self._token)

    def span(self, span: Span) -> Span:
        """Return a span with the states of the images in it."""
        rows = tuple(self._rows(span.start, span.stop))
        return Span(
            span.slot, span.start, self.plain(span.tokens), span.samples, span.pages, span.source, rows
        )

    def _rows(self, start: int, stop: int) -> Iterator[tuple[int, Tensor]]:
        for number, one in enumerate(self._shown):
            for tile, begin in enumerate(one.starts):
                first, last = max(begin, start), min(begin + self._tokens, stop)
                if first < last:
                    before = tile * self._tokens - begin
                    yield first - start, self._states[number][before + first : before + last]


def image_error(
    shown: Sequence[PlacedImage], prompt: Sequence[int], vision_config: VisionConfig | None
) -> str | None:
    """Return what is wrong with the images of a prompt; None if nothing is."""
    if not shown:
        return None
    if vision_config is None:
        return "This model does not take images."
    tokens = vision_config.tiling.tokens
    for one in shown:
        if not one.starts or any(
            start < 0
            or set(prompt[start : start + tokens]) != {vision_config.token}
            or start + tokens > len(prompt)
            for start in one.starts
        ):
            return "An image does not stand where the prompt says."
    return None
