"""Reports spoken replies: guesses once they are right, and how much of a reply was heard. Pure; the caller passes the clock.

Clients of this protocol play sound as it comes, and report only when they stop. So a reply is assumed to be played from
its first sound on, without a gap if sound came in time, `LAG_MS` after it was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from connections.protocol.audio import AudioReply, Sound
from connections.protocol.base import ServerFrame
from connections.protocol.frames import Frame
from sessions.events import Accepted, Done

LAG_MS = 200
"""The delay from sending sound to hearing it: the network, and the player's buffer."""


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


class PlaybackClock:
    """The replies of one session."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: in seconds."""
        self._clock = clock
        self._playbacks: dict[str, _Playback] = {}

    def sent(self, turn_id: str, ms: float) -> None:
        """Note that more of a turn's sound was sent to its client."""
        now = self._clock()
        play = self._playbacks.setdefault(turn_id, _Playback(now))
        if play.heard_ms(now) >= play.sent_ms:  # it had run dry: new sound begins now
            play.begun = now + (LAG_MS - play.sent_ms) / 1000
        play.sent_ms += ms

    def sent_ms(self, turn_id: str) -> int:
        """Return how much of it was sent."""
        return int(self._playbacks[turn_id].sent_ms) if turn_id in self._playbacks else 0

    def heard_ms(self, turn_id: str) -> int:
        """Return how much of it was heard by now."""
        return int(self._playbacks[turn_id].heard_ms(self._clock())) if turn_id in self._playbacks else 0

    def stop(self, turn_id: str, ms: int) -> None:
        """Note where playing stopped."""
        if turn_id in self._playbacks:
            self._playbacks[turn_id].stopped_ms = ms

    def forget(self, turn_id: str) -> None:
        """Forget an ended one."""
        self._playbacks.pop(turn_id, None)


class _Playback:
    """One reply. `begun`: when its first sample would have been heard without pauses."""

    __slots__ = ("begun", "sent_ms", "stopped_ms")

    def __init__(self, now: float) -> None:
        self.begun = now + LAG_MS / 1000
        self.sent_ms = 0.0
        self.stopped_ms: int | None = None

    def heard_ms(self, now: float) -> float:
        if self.stopped_ms is not None:
            return self.stopped_ms
        return min(self.sent_ms, max(0.0, (now - self.begun) * 1000))
