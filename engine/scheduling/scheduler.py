"""Decides what each step runs: iteration-level scheduling over slots and over memory for keys and values.

Pure bookkeeping in tokens and slots: knows no tensors, no text and no clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.cache.pool import EVERYONE, KVPool
from engine.cache.prefix_index import Match
from engine.scheduling.waiting_queue import Running, WaitingQueue

HEADROOM = 16
"""Tokens that each running reply must be able to grow by before another one is let in."""

COPIED_AT_ONCE = 8192
"""Tokens of kept states that are copied into slots in one step, about."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One request as the scheduler sees it: `tokens` are the prompt's and those of the reply so far.

    `computed` counts the tokens whose keys and values are in the slot, `taken` those of them that came from a kept
    state, `cached` those that did when it began for the first time, `reserved` those that memory is held for. `shared_tokens`: how many of the first ones everyone may share.
    """

    request_id: str
    tokens: list[int]
    salt: str = ""
    client: str = ""
    priority: int = 0
    shared_tokens: int = 0
    prompt_tokens: int = field(init=False)
    arrival: int = 0
    slot: int | None = None
    computed: int = 0
    taken: int = 0
    cached: int = 0
    reserved: int = 0
    steps: int = 0
    started: bool = False

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tokens)

    @property
    def generated(self) -> int:
        """How many tokens the reply has."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def remaining(self) -> int:
        """How many tokens are to be computed before the next one can be drawn."""
        return len(self.tokens) - self.computed


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring tokens of one sequence that run in one step: positions `start` to `start + count`.

    `samples`: whether the next token can be drawn after these.
    """

    sequence: Sequence
    slot: int
    start: int
    count: int
    samples: bool


@dataclass(frozen=True, slots=True)
class Admission:
    """A sequence that was given a slot, and the kept state, if any, that its first `cached` tokens come from."""

    sequence: Sequence
    slot: int
    state: int | None = None


@dataclass(frozen=True, slots=True)
class Parking:
    """The first `tokens` tokens of a slot are to be kept as a state."""

    slot: int
    state: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: `decodes` by rising slot, then `prefills`. `admitted` left the queue with this step."""

    decodes: tuple[Segment, ...] = ()
    prefills: tuple[Segment, ...] = ()
    admitted: tuple[Admission, ...] = ()

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All that runs, in the order in which it runs."""
        return self.decodes + self.prefills

    @property
    def prefill_tokens(self) -> int:
        """How many prompt tokens the step computes."""
        return sum(segment.count for segment in self.prefills)


class Scheduler:
    """At most `slots` sequences at once, within the memory of a pool.

    Running replies go first in every step; prompts take what the step's token budget leaves. Where replies outgrow
    the memory, the one that came last is put back into the queue and computed again when there is room.
    """

    def __init__(self, slots: int, pool: KVPool) -> None:
        self.pool = pool
        self.preemptions = 0
        self._queue: WaitingQueue[Sequence] = WaitingQueue()
        self._prefilling: dict[int, Sequence] = {}
        self._decoding: dict[int, Sequence] = {}
        self._clients = Running()
        self._free = list(range(slots))
        self._arrivals = 0
        self._closed = False
        self._vacated: list[tuple[int, int]] = []

    @property
    def running(self) -> int:
        """How many sequences hold a slot."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def queued(self) -> int:
        """How many sequences wait for a slot."""
        return len(self._queue)

    @property
    def free(self) -> int:
        """How many slots are free. `free + running` is the number of slots, always."""
        return len(self._free)

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence into the queue."""
        self._arrivals += 1
        sequence.arrival = self._arrivals
        self._queue.add(sequence)

    def waiting(self) -> Iterator[Sequence]:
        """Yield those that wait and never ran, in the order in which they would start now."""
        return (sequence for sequence in self._queue.in_order(self._clients) if not sequence.started)

    def remove(self, sequence: Sequence, *, sound: int | None = None) -> Parking | None:
        """Forget a sequence, wherever it is. Returns what is to be kept of its slot: the first `sound` tokens, or all."""
        slot = sequence.slot
        if slot is None:
            self._queue.remove(sequence)
            return None
        self._vacate(sequence, slot)
        self._closed = False
        kept = sequence.computed if sound is None else min(sound, sequence.computed)
        state = self.pool.park(sequence.salt, sequence.tokens[:kept])
        return None if state is None else Parking(slot, state, kept)

    def schedule(self, prefill_budget: int) -> Plan:
        """Plan the next step: a token of every running reply, and up to `prefill_budget` prompt tokens.

        The plan counts as begun: each sequence in it has one more of its `steps`.
        """
        decodes = self._plan_decodes()
        admitted = tuple(self._admit_some())
        plan = Plan(decodes, self._plan_prefills(prefill_budget), admitted)
        for segment in plan.segments:
            segment.sequence.steps += 1
        return plan

    def complete(self, plan: Plan) -> None:
        """Note that a plan was run, whoever left meanwhile."""
        for segment in plan.segments:
            segment.sequence.computed += segment.count
        for segment in plan.prefills:
            if segment.samples and segment.sequence.slot is not None:
                del self._prefilling[segment.slot]
                self._decoding[segment.slot] = segment.sequence

    def share(self, sequence: Sequence) -> Parking | None:
        """Return what of a sequence is to be kept for everyone, now that its first token showed that it is sound."""
        slot, tokens = sequence.slot, sequence.shared_tokens
        state = self.pool.park(EVERYONE, sequence.tokens[:tokens]) if slot is not None and tokens else None
        return None if state is None or slot is None else Parking(slot, state, tokens)

    def put_back(self, sequence: Sequence) -> None:
        """Put a running sequence back into the queue: it begins anew when there is room."""
        if sequence.slot is not None:
            self._vacate(sequence, sequence.slot)
        sequence.computed = 0
        self._queue.add(sequence)

    def take_vacated(self) -> list[tuple[int, int]]:
        """Return the slots left since the last call, each with how many tokens it held. They may be in use again."""
        vacated, self._vacated = self._vacated, []
        return vacated

    def make_memory(self) -> bool:
        """Run one sequence less until one of the others ends: the device has less memory than was counted on."""
        self._closed = self._preempt_last()
        return self._closed

    def _preempt_last(self) -> bool:
        """Put the running sequence that came last back into the queue. False where no two run."""
        if self.running < 2:  # noqa: PLR2004
            return False
        running = (*self._prefilling.values(), *self._decoding.values())
        last = max(running, key=lambda sequence: (-sequence.priority, sequence.arrival))
        self.put_back(last)
        self.preemptions += 1
        return True

    def _plan_decodes(self) -> tuple[Segment, ...]:
        granted = self.pool.reserve(self._growth())
        while not granted and self._preempt_last():
            granted = self.pool.reserve(self._growth())
        for sequence in self._decoding.values() if granted else ():
            sequence.reserved = len(sequence.tokens)
        return tuple(
            Segment(s, slot, s.computed, 1, samples=True) for slot, s in sorted(self._decoding.items())
        )

    def _growth(self) -> int:
        """Return how many tokens the running replies need memory for; a step that was tried again holds some already."""
        return sum(len(sequence.tokens) - sequence.reserved for sequence in self._decoding.values())

    def _plan_prefills(self, budget: int) -> tuple[Segment, ...]:
        """Share the budget out: up to half of it to the oldest prompt, the rest to the shortest first."""
        if not self._prefilling:
            return ()
        shortest = sorted(
            self._prefilling.values(), key=lambda sequence: (sequence.remaining, sequence.arrival)
        )
        oldest = min(shortest, key=lambda sequence: sequence.arrival)
        kept = min(oldest.remaining, (budget + 1) // 2)
        counts: dict[int, int] = {}
        left = budget - kept
        for sequence in shortest:
            if sequence is not oldest:
                counts[sequence.arrival] = min(left, sequence.remaining)
                left -= counts[sequence.arrival]
        counts[oldest.arrival] = min(kept + left, oldest.remaining)
        return tuple(
            Segment(sequence, slot, sequence.computed, count, samples=count == sequence.remaining)
            for slot, sequence in self._prefilling.items()
            if (count := counts[sequence.arrival])
        )

    def _admit_some(self) -> Iterator[Admission]:
        """Let in as many as there is room for; what has to be copied for them must not stall the step."""
        copied = 0
        while self._queue and self._free and not self._closed and copied < COPIED_AT_ONCE:
            admission = self._admit(self._queue.first(self._clients))
            if admission is None:
                return
            copied += admission.sequence.computed
            yield admission

    def _admit(self, sequence: Sequence) -> Admission | None:
        """Give a sequence a slot, and memory for all its tokens; None where it has to wait for either."""
        match = self.pool.find(sequence.salt, sequence.tokens, shared=sequence.shared_tokens)
        if self._waits_for_others(sequence, match.tokens if match else 0):
            return None
        if not self._reserve(sequence, match):
            if self.running:
                return None
            # Nothing else runs: the state that was found gives way to the request.
            match = None
            self._reserve(sequence, match)
        self._queue.remove(sequence)
        # The lowest slot first keeps the running ones close together, so that attention reads few idle rows.
        slot = sequence.slot = heapq.heappop(self._free)
        sequence.computed = sequence.taken = match.tokens if match else 0
        if not sequence.started:
            sequence.started, sequence.cached = True, sequence.computed
        self._clients.add(sequence.client)
        self._prefilling[slot] = sequence
        return Admission(sequence, slot, match.key if match else None)

    def _reserve(self, sequence: Sequence, match: Match | None) -> bool:
        """Hold memory for all tokens of a sequence, and see that those that run can still grow."""
        tokens, growth = len(sequence.tokens), HEADROOM * self.running
        goes_along = match is not None and self.pool.goes_along(match)
        beside = match.key if match is not None and not goes_along else None
        if not self.pool.has_room(tokens + growth, beside):
            return False
        if match is not None and goes_along:
            # Its tensors are copied before any that were dropped are let go.
            self.pool.drop(match.key)
        self.pool.reserve(tokens, beside)
        sequence.reserved = tokens
        return True

    def _waits_for_others(self, sequence: Sequence, cached: int) -> bool:
        """Whether another sequence computes right now what this one could share: it is computed once for all."""
        shared = sequence.shared_tokens
        if cached >= shared:
            return False
        beginning = sequence.tokens[:shared]
        return any(
            other.shared_tokens == shared
            and (other.computed < shared or other.remaining <= shared)
            and other.tokens[:shared] == beginning
            for other in self._prefilling.values()
        )

    def _vacate(self, sequence: Sequence, slot: int) -> None:
        self._decoding.pop(slot, None)
        self._prefilling.pop(slot, None)
        heapq.heappush(self._free, slot)
        self._vacated.append((slot, sequence.computed))
        self.pool.give_back(sequence.reserved)
        self._clients.remove(sequence.client)
        sequence.slot, sequence.reserved = None, 0
