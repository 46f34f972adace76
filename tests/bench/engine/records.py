"""Jobs and answers of a contender's process: one JSON line each. Times are in seconds."""

from __future__ import annotations

import msgspec


class Load(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """A number of requests at once, each with a prompt of its own, read to the end.

    `cut_s`: all is cancelled after this time, and tokens until then count. `intruder_tokens`: once every stream
    has begun, one more prompt of this length comes, and all ends when its first token is there. `salt` varies prompts.
    `longest_tokens`: prompts are of mixed lengths, from `prompt_tokens` up to this. `arriving`: so many more requests
    come, each when another one ends.
    """

    at_once: int
    prompt_tokens: int
    new_tokens: int
    cut_s: float
    salt: int = 0
    intruder_tokens: int | None = None
    longest_tokens: int | None = None
    arriving: int = 0


class NextTurn(msgspec.Struct, frozen=True, kw_only=True, tag="next_turn"):
    """A conversation's first turn, then a second one whose prompt continues the first one's reply."""

    history_tokens: int
    reply_tokens: int
    added_tokens: int
    salt: int = 0


class Cancels(msgspec.Struct, frozen=True, kw_only=True, tag="cancels"):
    """Cancels of running replies, one after the other, then cancels within the prefill of a long prompt."""

    streams: int
    prompt_tokens: int
    long_tokens: int
    prefills: int


class Bound(msgspec.Struct, frozen=True, kw_only=True, tag="bound"):
    """The duration of a decode step, and of its unavoidable work."""

    at_once: int
    prompt_tokens: int
    new_tokens: int


class Memory(msgspec.Struct, frozen=True, kw_only=True, tag="memory"):
    """Many short turns with cancels at random moments; memory is read after `settled` of them and at the end."""

    turns: int
    settled: int
    at_once: int


Job = Load | NextTurn | Cancels | Bound | Memory


class Stream(msgspec.Struct, frozen=True):
    """One reply as it was read: the time of the request, and of each token."""

    sent: float
    arrivals: tuple[float, ...]


class Observed(msgspec.Struct, frozen=True, tag="observed"):
    """Answers `Load`. `cut`: time ran out before the replies had ended."""

    streams: tuple[Stream, ...]
    intruder: Stream | None = None
    cut: bool = False


class TurnTimes(msgspec.Struct, frozen=True, kw_only=True, tag="turn_times"):
    """Answers `NextTurn`: times to the first token, and the cached part of the second prompt."""

    first_s: float
    next_s: float
    prompt_tokens: int
    cached_tokens: int


class CancelFacts(msgspec.Struct, frozen=True, kw_only=True, tag="cancel_facts"):
    """Answers `Cancels`: the most steps after a cancel, and the longest step that held a part of the long prompt."""

    decode_steps: int
    prefill_steps: int
    longest_prefill_step_s: float


class BoundFacts(msgspec.Struct, frozen=True, kw_only=True, tag="bound_facts"):
    """Answers `Bound`, for a median step. `bandwidth` is in bytes a second, `kv_bytes` are read in one step."""

    step_s: float
    matrices_s: float
    kv_bytes: float
    bandwidth: float

    @property
    def share(self) -> float:
        """Time of the matrix products and of reading keys and values, as a share of the step."""
        return (self.matrices_s + self.kv_bytes / self.bandwidth) / self.step_s

    @property
    def matrices_share(self) -> float:
        """Time of the matrix products alone, as a share of the step."""
        return self.matrices_s / self.step_s


class MemoryFacts(msgspec.Struct, frozen=True, kw_only=True, tag="memory_facts"):
    """Answers `Memory`: resident bytes, and how many turns were cancelled."""

    settled_bytes: int
    end_bytes: int
    cancelled: int

    @property
    def growth(self) -> float:
        """Growth since it had settled, as a share."""
        return self.end_bytes / self.settled_bytes - 1


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The first line of a process: its model is loaded and warm."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Answers any job that failed, in words for people."""

    message: str


Answer = Observed | TurnTimes | CancelFacts | BoundFacts | MemoryFacts
Line = Ready | Failed | Answer
