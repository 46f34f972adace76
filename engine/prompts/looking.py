"""Images in prompts: what stands for one, where that is, and the points of its tiles. For one thread at a time."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from engine.errors import PromptRejected
from engine.images.image import Image
from engine.images.tiling import IMAGE, Grid, Tiling
from engine.loading.seeing import DAMAGED, TURNING, Eyes, NotSeen
from engine.messages import Message
from engine.prompts.control_tokens import ControlTokens
from engine.prompts.jobs import Look, Rejected, Tiles, without_images

BROKEN_KNOWN = 1024
"""Images that can't be decoded, the newest: later turns of their conversations go on without them."""

FIELD = "attachments"
"""What is at fault where an image is."""

NO_PLACE = "The model's chat template has no place for one of the images."

log = logging.getLogger(__name__)


def images_of(messages: Iterable[Message]) -> list[Image]:
    """Return the images of a prompt, in order."""
    return [image for message in messages for image in message.images]


class Looker:
    """Knows how one model is shown images."""

    def __init__(self, eyes: Eyes) -> None:
        """Take what decodes them."""
        self._eyes = eyes
        self._broken: OrderedDict[str, None] = OrderedDict()

    @property
    def tiling(self) -> Tiling:
        """How images are cut."""
        return self._eyes.tiling

    def known(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return messages with a note in the place of each image that is known to be broken.

        Also in the last one: it may hold what was sent before, where the reply to that failed.
        """
        return without_images(messages, self._broken) if self._broken else messages

    def expanded(self, text: str, images: Sequence[Image], tokens: ControlTokens) -> str:
        """Return a rendered prompt with all that stands for its images. Raises PromptRejected."""
        words = [self.tiling.words(self._grid(image)) for image in images]
        made = tokens.replaced(text, IMAGE, words)
        if made is None:
            raise PromptRejected(NO_PLACE)
        return made

    def starts(
        self, token_ids: Sequence[int], images: Sequence[Image], token: int
    ) -> tuple[tuple[int, ...], ...]:
        """Return where the tokens of each image's tiles begin. `token`: stands for a piece. Raises PromptRejected."""
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

    def tiles(self, look: Look) -> Tiles | Rejected:
        """Decode an image."""
        try:
            points = self._eyes.tiles(look.image)
        except NotSeen as why:
            return Rejected(self._broke(look.image, str(why)))
        except Exception:
            # The one broad catch for an image: a decoder may raise anything, and the process serves others.
            log.exception("an image of %d bytes could not be decoded", len(look.image.data))
            return Rejected(DAMAGED)
        return Tiles(points.tobytes(), len(points))

    def _broke(self, image: Image, why: str) -> str:
        """Remember an image of which the bytes were there: one that is missing may be whole elsewhere."""
        if image.data:
            self._broken[image.digest] = None
        while len(self._broken) > BROKEN_KNOWN:
            self._broken.popitem(last=False)
        return why

    def _grid(self, image: Image) -> Grid:
        """Return how an image is cut. Raises PromptRejected.

        Where its bytes are not at hand, it may be meant to be looked at from another side: the grid of more rows is told.
        """
        try:
            width, height = self._eyes.size(image)
        except NotSeen as why:
            raise PromptRejected(self._broke(image, str(why)), field=FIELD) from why
        upright = self.tiling.grid(width, height)
        if image.data or image.media_type not in TURNING:
            return upright
        return max(upright, self.tiling.grid(height, width))
