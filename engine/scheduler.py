"""Decides what each step runs: iteration-level scheduling over a fixed number of slots.

Pure bookkeeping in tokens and slots: knows no tensors, no text and no clock.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Sequence:
    """One request as the scheduler sees it. `computed` counts the tokens whose keys and values are in the slot."""

    request_id: str
    prompt_tokens: int
    slot: int | None = None
    computed: int = 0
    generated: int = 0
    steps: int = 0

    @property
    def prefilled(self) -> bool:
        """Whether the whole prompt is in the slot: from then on each step makes a token."""
        return self.computed >= self.prompt_tokens


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring tokens of one sequence that run in one step: positions `start` to `start + count`."""

    sequence: Sequence
    slot: int
    start: int
    count: int

    @property
    def samples(self) -> bool:
        """Whether the next token can be drawn after these."""
        return self.start + self.count >= self.sequence.prompt_tokens


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: `decodes` by rising slot, then `prefills` by age. `started` left the queue with this step."""

    decodes: tuple[Segment, ...] = ()
    prefills: tuple[Segment, ...] = ()
    started: tuple[Sequence, ...] = ()

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All that runs, in the order in which it runs."""
        return self.decodes + self.prefills

    @property
    def prefill_tokens(self) -> int:
        """How many prompt tokens the step computes."""
        return sum(segment.count for segment in self.prefills)


@dataclass(slots=True)
class Scheduler:
    """First come, first served, at most `slots` sequences at once.

    Running replies go first in every step; prompts take what the step's token budget leaves.
    """

    slots: int
    _queued: OrderedDict[str, Sequence] = field(default_factory=OrderedDict, init=False)
    _prefilling: OrderedDict[str, Sequence] = field(default_factory=OrderedDict, init=False)
    _decoding: dict[int, Sequence] = field(default_factory=dict, init=False)
    _free: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._free = list(range(self.slots))

    @property
    def running(self) -> int:
        """How many sequences hold a slot."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def queued(self) -> int:
        """How many sequences wait for a slot."""
        return len(self._queued)

    @property
    def free(self) -> int:
        """How many slots are free. `free + running == slots`, always."""
        return len(self._free)

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence at the end of the queue."""
        self._queued[sequence.request_id] = sequence

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is, and free its slot."""
        slot = sequence.slot
        if slot is None:
            del self._queued[sequence.request_id]
            return
        if self._decoding.get(slot) is sequence:
            del self._decoding[slot]
        else:
            del self._prefilling[sequence.request_id]
        heapq.heappush(self._free, slot)
        sequence.slot = None

    def schedule(self, prefill_budget: int) -> Plan:
        """Plan the next step: a token of every running reply, and up to `prefill_budget` prompt tokens.

        The plan counts as begun: each sequence in it has one more of its `steps`.
        """
        decodes = tuple(Segment(s, slot, s.computed, 1) for slot, s in sorted(self._decoding.items()))
        prefills, started = self._plan_prefills(prefill_budget)
        plan = Plan(decodes, tuple(prefills), tuple(started))
        for segment in plan.segments:
            segment.sequence.steps += 1
        return plan

    def complete(self, plan: Plan) -> None:
        """Note that a plan was run. Sequences that were removed meanwhile are passed over."""
        for segment in plan.segments:
            segment.sequence.computed += segment.count
        for segment in plan.prefills:
            sequence = segment.sequence
            if sequence.prefilled and sequence.slot is not None:
                del self._prefilling[sequence.request_id]
                self._decoding[sequence.slot] = sequence

    def _plan_prefills(self, budget: int) -> tuple[list[Segment], list[Sequence]]:
        prefills: list[Segment] = []
        for sequence in self._prefilling.values():
            budget = self._take(prefills, sequence, budget)
        started: list[Sequence] = []
        while budget > 0 and self._queued and self._free:
            started.append(self._admit())
            budget = self._take(prefills, started[-1], budget)
        return prefills, started

    def _take(self, prefills: list[Segment], sequence: Sequence, budget: int) -> int:
        count = min(budget, sequence.prompt_tokens - sequence.computed)
        if count > 0 and sequence.slot is not None:
            prefills.append(Segment(sequence, sequence.slot, sequence.computed, count))
        return budget - count

    def _admit(self) -> Sequence:
        _, sequence = self._queued.popitem(last=False)
        # The lowest slot first keeps the running ones close together, so that attention reads few idle rows.
        sequence.slot = heapq.heappop(self._free)
        self._prefilling[sequence.request_id] = sequence
        return sequence
