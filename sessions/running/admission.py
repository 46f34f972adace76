"""Admission of turns of all kinds: limits of concurrent turns, and shares of owners.

Decided before the store or the engine is asked, so that a shed turn costs almost nothing.
"""

from __future__ import annotations

from sessions.errors import Draining, Overloaded
from sessions.fair_share import FairShare, Subject

MAX_ACCEPTING = 256
"""Concurrent messages that are being accepted: each calls the store several times, and its connections are few."""
SLOT_CHARS = 4096
"""A longer message takes more of these places: it is in memory several times until it is accepted."""
MAX_SLOTS = 16
"""That one message takes: long bodies are few at once, and all of them leave places for others."""
IMAGE_BYTES = 256 * 1024 * 1024
"""Bytes of images that turns hold in memory, from their request to their end."""
IMAGE_SLOT_BYTES = 1024 * 1024
"""So many bytes of a turn's images take one of those places."""
AGAIN_MS = 1000

_BUSY = "The server is busy; try again in a moment."
_CALLS = "You have too many open calls of tools; settle some, or try again in a moment."
_IMAGES = "The server holds too many images for you already; try again in a moment."
_SHARE = "You have too many replies running for the server's load; try again in a moment."


class Admitted:
    """One admitted turn: being accepted, then queued or running, and between that waiting for its calls."""

    __slots__ = (
        "_accepting",
        "_calling",
        "_held",
        "_image_slots",
        "_images",
        "_running",
        "_subject",
        "_weight",
    )

    def __init__(
        self,
        subject: Subject,
        *,
        accepting: FairShare | None,
        held: FairShare,
        running: FairShare,
        calling: FairShare,
        images: FairShare,
        weight: int = 1,
        image_slots: int = 0,
    ) -> None:
        self._subject = subject
        self._images = images
        self._image_slots = image_slots
        self._accepting = accepting
        self._held: FairShare | None = held
        self._running = running
        self._calling = calling
        self._weight = weight
        if accepting is not None:
            accepting.take(subject, weight)
        held.take(subject)
        images.take(subject, image_slots)

    def end_acceptance(self) -> None:
        """Note that it was accepted or refused: it needs the store no longer."""
        if self._accepting is not None:
            self._accepting.give_back(self._subject, self._weight)
            self._accepting = None

    def begin(self) -> None:
        """Start it. There is room: what was accepted is run."""
        self._move(self._running)

    def call(self) -> None:
        """Note that it has ended with open calls: it takes no place of running turns."""
        self._move(self._calling)

    def hold(self, image_bytes: int) -> None:
        """It is to hold so much of images, with those that were shown before. Raises Overloaded."""
        more = _slots(image_bytes) - self._image_slots
        if more > 0 and not self._images.has_capacity_for(self._subject, more):
            raise Overloaded(_IMAGES, retry_after_ms=AGAIN_MS)
        self.show(image_bytes)

    def show(self, image_bytes: int) -> None:
        """Change the bytes of images that it holds. It is always admitted: what was accepted is run."""
        if self._held is not None:
            self._images.give_back(self._subject, self._image_slots)
            self._image_slots = _slots(image_bytes)
            self._images.take(self._subject, self._image_slots)

    def _move(self, to: FairShare) -> None:
        if self._held is not None and self._held is not to:
            self._held.give_back(self._subject)
            self._held = to
            to.take(self._subject)

    def leave(self) -> None:
        """Stop counting it."""
        self.end_acceptance()
        if self._held is not None:
            self._held.give_back(self._subject)
            self._images.give_back(self._subject, self._image_slots)
            self._held = None


class Admission:
    """Counts turns: running ones, queued ones, and those with open calls.

    There are `at_most` of each.
    """

    def __init__(self, *, at_most: int) -> None:
        self._accepting = FairShare(MAX_ACCEPTING)
        self._running = FairShare(at_most)
        self._waiting = FairShare(at_most)
        self._calling = FairShare(at_most)
        self._images = FairShare(IMAGE_BYTES // IMAGE_SLOT_BYTES)
        self.draining = False

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting) + len(self._calling)

    @property
    def waiting(self) -> int:
        """The number of queued turns."""
        return len(self._waiting)

    def enter(
        self,
        subject: Subject,
        *,
        waits: bool = False,
        may_call: bool = False,
        chars: int = 0,
        image_bytes: int = 0,
    ) -> Admitted:
        """Admit a turn. `may_call`: its calls may be open for long; `chars`: the length of its message; `image_bytes`: the size of its images.

        Raises Draining, Overloaded.
        """
        if self.draining:
            raise Draining("The server is about to stop; send again after reconnecting.")
        held = self._waiting if waits else self._running
        weight, image_slots = min(1 + chars // SLOT_CHARS, MAX_SLOTS), _slots(image_bytes)
        if not self._accepting.has_capacity_for(subject, weight):
            raise Overloaded(_BUSY, retry_after_ms=AGAIN_MS)
        if not held.has_capacity_for(subject):
            raise Overloaded(_SHARE, retry_after_ms=AGAIN_MS)
        if may_call and not self._calling.has_capacity_for(subject):
            raise Overloaded(_CALLS, retry_after_ms=AGAIN_MS)
        if image_slots and not self._images.has_capacity_for(subject, image_slots):
            raise Overloaded(_IMAGES, retry_after_ms=AGAIN_MS)
        return self._admitted(
            subject, held, accepting=self._accepting, weight=weight, image_slots=image_slots
        )

    def take_over(self, subject: Subject) -> Admitted:
        """Count a turn that waits for calls and was admitted elsewhere: it continues, even without room."""
        return self._admitted(subject, self._calling, accepting=None)

    def _admitted(
        self,
        subject: Subject,
        held: FairShare,
        *,
        accepting: FairShare | None,
        weight: int = 1,
        image_slots: int = 0,
    ) -> Admitted:
        return Admitted(
            subject,
            accepting=accepting,
            held=held,
            running=self._running,
            calling=self._calling,
            images=self._images,
            weight=weight,
            image_slots=image_slots,
        )


def _slots(image_bytes: int) -> int:
    return -(-image_bytes // IMAGE_SLOT_BYTES)
