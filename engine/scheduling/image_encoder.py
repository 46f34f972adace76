"""Encodes the images of running requests: one image at a time, in pieces of milliseconds between the steps of others.

The next image is chosen by priority, then fairly between groups and clients, by the tiles that were encoded for each. An
image of several requests is encoded once, as long as one of them is served.
A request has its slot and its pages before its images are encoded, so images that are in the cache are not encoded again.
Pixels are asked for when an image's turn comes, so only one image's are in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakValueDictionary

import torch

from engine.fair_queue import FairQueue
from engine.model.devices import is_out_of_memory
from engine.prompts.jobs import DecodedTiles, DecodeImage, ImageResult, Rejected
from engine.scheduling.active_request import ActiveRequest
from engine.vision.tower import EncodingSteps, VisionConfig

LITTLE_MEMORY = "The device has too little memory for this image."
NOT_DECODED = "The image could not be decoded."


DecodeCallback = Callable[[DecodeImage], None]


class ImageFailure(NamedTuple):
    """A request that ends because of an image, and why."""

    active: ActiveRequest
    why: str


@dataclass(slots=True, eq=False)
class _CurrentImage:
    """The image that is being encoded. `pieces`: None while its pixels have not come."""

    active: ActiveRequest
    number: int
    pieces: EncodingSteps | None = None


class ImageEncoder:
    """Encodes the images of running requests, in turn if there are several."""

    def __init__(
        self,
        vision_config: VisionConfig | None,
        request_decode: DecodeCallback | None,
        clock: Callable[[], float],
    ) -> None:
        """Take the model's vision part, what asks for pixels, and a clock that gives seconds."""
        self._vision_config = vision_config
        self._request_decode = request_decode
        self._clock = clock
        self._queue: FairQueue[str, ActiveRequest] = FairQueue()
        self._current: _CurrentImage | None = None
        self._states: WeakValueDictionary[str, torch.Tensor] = WeakValueDictionary()
        self.paused = False

    @property
    def computes(self) -> bool:
        """Whether there is something to compute now."""
        self._start_next()
        return self._current is not None and self._current.pieces is not None

    @property
    def waits(self) -> bool:
        """Whether it waits for pixels."""
        return self._current is not None and self._current.pieces is None

    def begin(self, active: ActiveRequest) -> None:
        """Begin with the images of a request that was just admitted."""
        self._enqueue(active)

    def forget(self, active: ActiveRequest) -> None:
        """Drop the images of a request that has ended."""
        if self._current is not None and self._current.active is active:
            self._current = None
        self._queue.remove(active.prepared.request_id)

    def put_image(self, image_result: ImageResult) -> ImageFailure | None:
        """Take the pixels that were asked for, or drop them if nobody waits any more. Returns whose image has none."""
        current, look = self._current, image_result.look
        if current is None or current.pieces is not None or not self._is_of(current, look):
            return None
        if not isinstance(image_result.answer, DecodedTiles):
            self._current = None
            return ImageFailure(
                current.active,
                image_result.answer.why if isinstance(image_result.answer, Rejected) else NOT_DECODED,
            )
        assert self._vision_config is not None  # noqa: S101 - only a model that takes images asks
        side, answer = self._vision_config.tiling.side, image_result.answer
        points = torch.frombuffer(bytearray(answer.points), dtype=torch.uint8)
        current.pieces = self._vision_config.tower.look(points.view(answer.count, 3, side, side))
        return None

    def work(self, seconds: float) -> ImageFailure | None:
        """Compute for `seconds`, but at least one piece. Returns whose image can't be encoded, if one can't."""
        until = self._clock() + seconds
        while self.computes:
            current = self._current
            assert current is not None and current.pieces is not None  # noqa: S101, PT018 - as `computes` says
            try:
                with torch.inference_mode():
                    next(current.pieces)
            except StopIteration as done:
                self._image_encoded(current, done.value)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self._current = None
                return ImageFailure(current.active, LITTLE_MEMORY)
            if self._clock() >= until:
                break
        return None

    def _image_encoded(self, current: _CurrentImage, states: torch.Tensor) -> None:
        self._current = None
        assert current.active.image_inputs is not None  # noqa: S101 - only requests with images are here
        current.active.image_inputs.add_states(current.number, states)
        self._states[current.active.image_inputs.image(current.number).digest] = states
        self._enqueue(current.active)
        for one in [*self._queue]:  # some of these may have waited for the same image
            self._enqueue(one)

    def _enqueue(self, active: ActiveRequest) -> None:
        """Let a request wait for its next image, or let it be computed if no image is missing."""
        number = self._missing(active)
        active.request.waits_for_images = number is not None
        if number is not None and active.image_inputs is not None:
            prepared, tiles = active.prepared, active.image_inputs.tiles(number)
            self._queue.add(
                prepared.request_id, active, client=prepared.client, priority=prepared.priority, cost=tiles
            )
        else:
            self._queue.remove(active.prepared.request_id)

    def _missing(self, active: ActiveRequest) -> int | None:
        """Return the number of the image that a request needs next; None if it needs none."""
        image_inputs = active.image_inputs
        while (
            image_inputs is not None and (number := image_inputs.missing(active.request.computed)) is not None
        ):
            states = self._states.get(image_inputs.image(number).digest)
            if states is None:
                return number
            image_inputs.add_states(number, states)
        return None

    def _start_next(self) -> None:
        """Drop an image that nobody waits for any more, and ask for the next one."""
        if self._current is not None and self._current.active.request.slot is None:
            self._current = None
        while self._current is None and self._queue:
            _, active = self._queue.pop()
            if active.request.slot is not None and (number := self._missing(active)) is not None:
                self._current = _CurrentImage(active, number)
                self._request_pixels(active, number)

    def _request_pixels(self, active: ActiveRequest, number: int) -> None:
        prepared = active.prepared
        assert self._request_decode is not None and active.image_inputs is not None  # noqa: S101, PT018 - a model that takes images comes with one
        image = active.image_inputs.image(number)
        self._request_decode(
            DecodeImage(prepared.request_id, number, image, prepared.client, prepared.priority)
        )

    def _is_of(self, current: _CurrentImage, look: DecodeImage) -> bool:
        return (current.active.prepared.request_id, current.number) == (look.request_id, look.number)
