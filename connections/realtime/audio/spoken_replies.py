"""Reports spoken replies: guesses once they are right, and how much was heard of a reply that was cut. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from connections.protocol.audio import AudioReply, Sound
from connections.protocol.frames import Frame, ServerFrame
from connections.realtime.audio.playback_clock import PlaybackClock
from sessions.events import Accepted, Done


class Speculation(ServerFrame, frozen=True, kw_only=True, tag="realtime.guess"):
    """A turn that began at a pause, by its `request_id`. `void`: its message was refused."""

    request_id: str
    status: Literal["up", "true", "false", "void"]


class PlaybackResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a spoken reply ended. `stop_ms`: where its client said that it stopped; the end if that was too late."""

    ms: int
    interrupted_by_speech: bool
    stop_ms: int | None


class SpokenReplies:
    """The spoken replies of one session."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: in seconds."""
        self.clock = PlaybackClock(clock)
        self._guesses: dict[str, list[Frame] | None] = {}  # None: it was wrong, and is never sent
        self._turns: dict[str, str] = {}  # the turns of guesses
        self._bytes_per_ms: dict[str, float] = {}
        self._stops: dict[str, int] = {}
        self._interrupted: set[str] = set()

    def holds_back(self, frame: Frame) -> bool:
        """Return whether a frame is kept: it belongs to a guess, and is sent if that is right. A pause has few."""
        turn_id = getattr(frame, "turn_id", None)
        if not self._guesses or turn_id is None:
            return False
        if isinstance(frame, Accepted) and frame.client_msg_id in self._guesses:
            self._turns[turn_id] = frame.client_msg_id
        if (request_id := self._turns.get(turn_id)) is None:
            return False
        if (kept := self._guesses[request_id]) is not None:
            kept.append(frame)
        elif isinstance(frame, Done):
            self._forget(request_id)
        return True

    def resolve(self, guess: Speculation) -> Sequence[Frame]:
        """Note the outcome of a guess; return the frames to send now."""
        if guess.status == "up":
            self._guesses[guess.request_id] = []
            return ()
        kept = self._guesses.get(guess.request_id) or ()
        if guess.status == "false" and not any(isinstance(frame, Done) for frame in kept):
            self._guesses[guess.request_id] = None  # its turn's end is on its way
            return ()
        self._forget(guess.request_id)
        return kept if guess.status == "true" else ()

    def begin(self, reply: AudioReply) -> None:
        """Note the form of a turn's sound."""
        self._bytes_per_ms[reply.turn_id] = reply.rate * (2 if reply.format == "pcm16" else 1) / 1000

    def sent(self, sound: Sound) -> None:
        """Note sound that was sent to the client."""
        self.clock.sent(sound.turn_id, len(sound.samples) / self._bytes_per_ms[sound.turn_id])

    def stop(self, turn_id: str, ms: int) -> None:
        """Note where the client says that it stopped; no more than was sent can have been heard."""
        self._stops[turn_id] = min(ms, self.clock.sent_ms(turn_id))

    def interrupt(self, turn_id: str) -> None:
        """Note that a reply was interrupted by speech."""
        self._interrupted.add(turn_id)

    def end(self, done: Done) -> PlaybackResult:
        """Note that a spoken turn has ended."""
        turn_id = done.turn_id
        stop_ms = self._stops.pop(turn_id, None)
        whole_ms = self.clock.sent_ms(turn_id)
        by_now_ms = whole_ms if done.cancel is None else self.clock.heard_ms(turn_id)
        if stop_ms is not None and done.cancel is None:  # it had ended before, and is kept whole
            stop_ms = whole_ms
        interrupted_by_speech = turn_id in self._interrupted
        self._interrupted.discard(turn_id)
        self._bytes_per_ms.pop(turn_id, None)
        self.clock.forget(turn_id)
        return PlaybackResult(
            ms=by_now_ms if stop_ms is None else stop_ms,
            interrupted_by_speech=interrupted_by_speech,
            stop_ms=stop_ms,
        )

    def _forget(self, request_id: str) -> None:
        self._guesses.pop(request_id, None)
        self._turns = {turn: name for turn, name in self._turns.items() if name != request_id}
