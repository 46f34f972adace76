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

from engine.model.devices import is_out_of_memory
from engine.model.loaded_model import Sees
from engine.model.vision_tower import Pieces
from engine.prompts.fair_queue import FairQueue
from engine.prompts.jobs import Look, Looked, Rejected, Tiles
from engine.scheduling.active_request import ActiveRequest

LITTLE_MEMORY = "The device has too little memory for this image."
NOT_DECODED = "The image could not be decoded."


Asks = Callable[[Look], None]


class Blind(NamedTuple):
    """A request that ends because of an image, and why."""

    active: ActiveRequest
    why: str


@dataclass(slots=True, eq=False)
class _Current:
    """The image that is being encoded. `pieces`: None while its pixels have not come."""

    active: ActiveRequest
    number: int
    pieces: Pieces | None = None


class Looking:
    """Encodes the images of running requests, in turn if there are several."""

    def __init__(self, sees: Sees | None, ask: Asks | None, clock: Callable[[], float]) -> None:
        """Take the model's vision part, what asks for pixels, and a clock that gives seconds."""
        self._sees = sees
        self._ask = ask
        self._clock = clock
        self._line: FairQueue[str, ActiveRequest] = FairQueue()
        self._current: _Current | None = None
        self._states: WeakValueDictionary[str, torch.Tensor] = WeakValueDictionary()
        self.rests = False

    @property
    def computes(self) -> bool:
        """Whether there is something to compute now."""
        self._go_on()
        return self._current is not None and self._current.pieces is not None

    @property
    def waits(self) -> bool:
        """Whether it waits for pixels."""
        return self._current is not None and self._current.pieces is None

    def begin(self, active: ActiveRequest) -> None:
        """Begin with the images of a request that was just admitted."""
        self._line_up(active)

    def forget(self, active: ActiveRequest) -> None:
        """Drop the images of a request that has ended."""
        if self._current is not None and self._current.active is active:
            self._current = None
        self._line.remove(active.prepared.request_id)

    def show(self, looked: Looked) -> Blind | None:
        """Take the pixels that were asked for, or drop them if nobody waits any more. Returns whose image has none."""
        current, look = self._current, looked.look
        if current is None or current.pieces is not None or not self._is_of(current, look):
            return None
        if not isinstance(looked.answer, Tiles):
            self._current = None
            return Blind(
                current.active, looked.answer.why if isinstance(looked.answer, Rejected) else NOT_DECODED
            )
        assert self._sees is not None  # noqa: S101 - only a model that takes images asks
        side, answer = self._sees.tiling.side, looked.answer
        points = torch.frombuffer(bytearray(answer.points), dtype=torch.uint8)
        current.pieces = self._sees.tower.look(points.view(answer.count, 3, side, side))
        return None

    def work(self, seconds: float) -> Blind | None:
        """Compute for `seconds`, but at least one piece. Returns whose image can't be encoded, if one can't."""
        until = self._clock() + seconds
        while self.computes:
            current = self._current
            assert current is not None and current.pieces is not None  # noqa: S101, PT018 - as `computes` says
            try:
                with torch.inference_mode():
                    next(current.pieces)
            except StopIteration as done:
                self._saw(current, done.value)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self._current = None
                return Blind(current.active, LITTLE_MEMORY)
            if self._clock() >= until:
                break
        return None

    def _saw(self, current: _Current, states: torch.Tensor) -> None:
        self._current = None
        assert current.active.sight is not None  # noqa: S101 - only requests with images are here
        current.active.sight.saw(current.number, states)
        self._states[current.active.sight.image(current.number).digest] = states
        self._line_up(current.active)
        for one in [*self._line]:  # some of these may have waited for the same image
            self._line_up(one)

    def _line_up(self, active: ActiveRequest) -> None:
        """Let a request wait for its next image, or let it be computed if no image is missing."""
        number = self._missing(active)
        active.request.looks = number is not None
        if number is not None and active.sight is not None:
            prepared, tiles = active.prepared, active.sight.tiles(number)
            self._line.add(
                prepared.request_id, active, client=prepared.client, priority=prepared.priority, cost=tiles
            )
        else:
            self._line.remove(active.prepared.request_id)

    def _missing(self, active: ActiveRequest) -> int | None:
        """Return the number of the image that a request needs next; None if it needs none."""
        sight = active.sight
        while sight is not None and (number := sight.missing(active.request.computed)) is not None:
            states = self._states.get(sight.image(number).digest)
            if states is None:
                return number
            sight.saw(number, states)
        return None

    def _go_on(self) -> None:
        """Drop an image that nobody waits for any more, and ask for the next one."""
        if self._current is not None and self._current.active.request.slot is None:
            self._current = None
        while self._current is None and self._line:
            _, active = self._line.pop()
            if active.request.slot is not None and (number := self._missing(active)) is not None:
                self._current = _Current(active, number)
                self._ask_for(active, number)

    def _ask_for(self, active: ActiveRequest, number: int) -> None:
        prepared = active.prepared
        assert self._ask is not None and active.sight is not None  # noqa: S101, PT018 - a model that takes images comes with one
        image = active.sight.image(number)
        self._ask(Look(prepared.request_id, number, image, prepared.client, prepared.priority))

    def _is_of(self, current: _Current, look: Look) -> bool:
        return (current.active.prepared.request_id, current.number) == (look.request_id, look.number)
