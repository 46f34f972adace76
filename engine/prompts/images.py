"""Images in prompts: the words that stand for one, where its tokens are, and the pixels of its tiles."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from engine.errors import PromptRejected
from engine.messages import Message
from engine.prompts.jobs import DecodedTiles, DecodeImage, Rejected, without_images
from engine.vision.image import Image
from engine.vision.processor import DAMAGED, TURNING, ImageNotDecodable, ImageProcessor
from engine.vision.tiling import Grid, Tiling

MAX_BROKEN_IMAGES = 1024
"""How many images that can't be decoded are remembered. Later turns of their conversations go on without them."""

FIELD = "attachments"
"""The field of errors about images."""

NO_PLACE = "The model's chat template has no place for one of the images."

log = logging.getLogger(__name__)


def images_of(messages: Iterable[Message]) -> list[Image]:
    """Return the images of a prompt, in order."""
    return [image for message in messages for image in message.images]


class PromptImages:
    """Puts images into the prompts of one model. For one thread at a time."""

    def __init__(self, image_processor: ImageProcessor) -> None:
        """Take the decoder of images."""
        self._image_processor = image_processor
        self._broken: OrderedDict[str, None] = OrderedDict()

    @property
    def tiling(self) -> Tiling:
        """How images are cut into tiles."""
        return self._image_processor.tiling

    def known(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return messages with a note in place of each image that is known to be broken.

        This includes the last message, which may repeat an image whose reply has failed.
        """
        return without_images(messages, self._broken) if self._broken else messages

    def words(self, images: Iterable[Image]) -> list[str]:
        """Return the words for each image in a rendered prompt. Raises PromptRejected."""
        return [self.tiling.words(self._grid(image)) for image in images]

    def starts(
        self, token_ids: Sequence[int], images: Sequence[Image], token: int
    ) -> tuple[tuple[int, ...], ...]:
        """Return where the tokens of each image's tiles begin. `token`: the id for a piece. Raises PromptRejected."""
        places = [place for place, one in enumerate(token_ids) if one == token]
        counts, of_tile = [self.tiling.tiles(self._grid(image)) for image in images], self.tiling.tokens
        starts = places[::of_tile]
        if len(places) != sum(counts) * of_tile or places[of_tile - 1 :: of_tile] != [
            start + of_tile - 1 for start in starts
        ]:
            raise PromptRejected(NO_PLACE)
        made, done = [], 0
        for count in counts:
            made.append(tuple(starts[done : done + count]))
            done += count
        return tuple(made)

    def tiles(self, look: DecodeImage) -> DecodedTiles | Rejected:
        """Return the pixels of an image's tiles, or why it can't be decoded."""
        try:
            points = self._image_processor.tiles(look.image)
        except ImageNotDecodable as why:
            return Rejected(self._broke(look.image, str(why)))
        except Exception:
            # The one broad catch for an image: a decoder may raise anything, and this process serves others, too.
            log.exception("an image of %d bytes could not be decoded", len(look.image.data))
            return Rejected(DAMAGED)
        return DecodedTiles(points.tobytes(), len(points))

    def _broke(self, image: Image, why: str) -> str:
        """Remember a broken image, if its bytes were there: one without them may be sound elsewhere. Returns `why`."""
        if image.data:
            self._broken[image.digest] = None
        while len(self._broken) > MAX_BROKEN_IMAGES:
            self._broken.popitem(last=False)
        return why

    def _grid(self, image: Image) -> Grid:
        """Return how an image is cut into tiles. Raises PromptRejected.

        Without its bytes its orientation is unknown. Then the larger of both grids counts, by rows.
        """
        try:
            width, height = self._image_processor.size(image)
        except ImageNotDecodable as why:
            raise PromptRejected(self._broke(image, str(why)), field=FIELD) from why
        upright = self.tiling.grid(width, height)
        if image.data or image.media_type not in TURNING:
            return upright
        return max(upright, self.tiling.grid(height, width))
