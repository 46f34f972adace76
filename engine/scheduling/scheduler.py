"""Decides what each step runs: iteration-level scheduling (Orca, Yu et al. 2022) over the pages of the KV cache.

Pure bookkeeping in tokens and pages: knows no tensors, no text and no clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from engine.fair_queue import Running, WaitingQueue
from engine.kv_cache import NOTHING, SHARED_SALT, SHORTEST, BlockTable, Match, PagePool, PrefixCache
from engine.step_layout import LARGEST_PREFILL, Source


class Scheduler:
    """Runs at most `slots` requests at once, within the pages of a pool.

    Each step has one token of every running reply, and prompts within the step's token budget. If replies outgrow the
    memory, the one that came last is preempted: it goes back into the queue, and later continues from its cached pages.
    """

    def __init__(self, slots: int, pool: PagePool) -> None:
        self.pool = pool
        self.preemptions = 0
        self._prefixes = PrefixCache(pool)
        self._queue: WaitingQueue[ScheduledRequest] = WaitingQueue()
        self._prefilling: dict[int, ScheduledRequest] = {}
        self._decoding: dict[int, ScheduledRequest] = {}
        self._clients = Running()
        self._free = list(range(slots))
        self._arrivals = 0
        self._closed = False
        self._no_room: tuple[ScheduledRequest, int] | None = None

    @property
    def running(self) -> int:
        """How many requests hold a slot."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def decoding(self) -> int:
        """How many running requests have computed all of their prompt."""
        return len(self._decoding)

    @property
    def queued(self) -> int:
        """How many requests wait for a slot."""
        return len(self._queue)

    @property
    def free(self) -> int:
        """How many slots are free. `free + running` is always the number of slots."""
        return len(self._free)

    @property
    def may_run_ahead(self) -> bool:
        """Whether the next step can be planned before the tokens of the last one are known, since it preempts nobody."""
        return not self._closed and 2 * len(self._decoding) <= self.pool.available

    def add(self, request: ScheduledRequest) -> None:
        """Put a new request into the queue."""
        self._arrivals += 1
        request.arrival = self._arrivals
        self._queue.add(request)

    def waiting(self) -> Iterator[ScheduledRequest]:
        """Yield the waiting requests that never ran, in the order in which they would start now."""
        return (request for request in self._queue.in_order(self._clients) if not request.started)

    def remove(self, request: ScheduledRequest, *, keep: bool = True) -> None:
        """Forget a request, wherever it is. `keep`: its keys and values are valid, and stay in the cache."""
        if request.slot is None:
            self._queue.remove(request)
            return
        self._closed = False
        try:
            if keep:
                self._cache(request)
        finally:
            self._vacate(request, request.slot)

    def schedule(self, prefill_budget: int) -> StepPlan:
        """Plan the next step: a token of every running reply, and about `prefill_budget` prompt tokens.

        Counts the step in the `steps` of each of its requests. Raises RuntimeError if one reply outgrows all pages.
        """
        decodes = self._plan_decodes()
        admitted = tuple(self._admit_some())
        plan = StepPlan(decodes, self._plan_prefills(prefill_budget), admitted)
        for segment in plan.segments:
            segment.request.steps += 1
        return plan

    def complete(self, plan: StepPlan, *, in_flight: bool = False) -> None:
        """Note that a plan ran, even if requests left. `in_flight`: the plan was launched; its tokens are not known yet."""
        for segment in plan.segments:
            segment.request.computed += segment.count
            segment.request.in_flight += in_flight and segment.samples
        for segment in plan.prefills:
            if segment.samples and segment.request.slot is not None:
                del self._prefilling[segment.slot]
                self._decoding[segment.slot] = segment.request

    def undo(self, plan: StepPlan) -> None:
        """Undo what `complete` noted of a plan whose tokens never come. The newest plan is undone first."""
        for segment in plan.segments:
            request = segment.request
            request.in_flight -= segment.samples
            if request.slot is not None:
                request.computed = min(request.computed, segment.start)
        for segment in plan.prefills:
            if segment.samples and segment.request.slot is not None:
                self._prefilling[segment.slot] = self._decoding.pop(segment.slot)

    def take(self, segment: Segment, token: int) -> None:
        """Note the token after a segment that was run. Its request may have been preempted since its launch."""
        request = segment.request
        request.tokens.append(token)
        request.in_flight = max(0, request.in_flight - 1)
        if request.slot is not None:
            request.valid = segment.start + segment.count

    def repeat(self, request: ScheduledRequest) -> None:
        """Have a request's last token computed once more, since the next one could not be drawn yet."""
        request.in_flight = max(0, request.in_flight - 1)
        if request.slot is not None:
            request.computed -= 1

    def share(self, request: ScheduledRequest) -> None:
        """Keep the shared tokens of a request for everyone, once its first token has shown that they are valid."""
        if request.slot is not None and request.shared_tokens:
            shared = request.shared_tokens
            self._keep(SHARED_SALT, request.tokens[:shared], request.table, shared)

    def preempt(self, request: ScheduledRequest) -> None:
        """Put a running request back into the queue. When there is room, it continues from its cached pages."""
        if request.slot is not None:
            self._cache(request)
            self._vacate(request, request.slot)
        self._queue.add(request)

    def make_memory(self) -> bool:
        """Preempt the newest request, and admit none until one ends. False if fewer than two run."""
        self._closed = self._preempt_last()
        return self._closed

    def _preempt_last(self) -> bool:
        """Preempt the newest of the running requests with the lowest priority. False if fewer than two run."""
        if self.running < 2:  # noqa: PLR2004
            return False
        running = (*self._prefilling.values(), *self._decoding.values())
        self.preempt(max(running, key=lambda request: (-request.priority, request.arrival)))
        self.preemptions += 1
        return True

    def _plan_decodes(self) -> tuple[Segment, ...]:
        for request in [one for one in self._decoding.values() if not one.is_full]:
            stop = len(request.tokens) + request.in_flight
            while request.slot is not None and not self.pool.extend(request.table, request.computed, stop):
                if not self._preempt_last():
                    raise RuntimeError(f"request {request.request_id} alone outgrows {self.pool.total} pages")
        return tuple(
            Segment(one, slot, one.computed, 1, samples=True)
            for slot, one in sorted(self._decoding.items())
            if not one.is_full
        )

    def _plan_prefills(self, budget: int) -> tuple[Segment, ...]:
        """Share the budget out: up to half of it goes to the oldest prompt, the rest to the shortest ones first.

        A source is computed in one piece. It waits if the rest of the budget is less, but the oldest may exceed the budget.
        """
        ready = [request for request in self._prefilling.values() if not request.waits_for_images]
        if not ready:
            return ()
        shortest = sorted(ready, key=lambda request: (request.remaining, request.arrival))
        oldest = min(shortest, key=lambda request: request.arrival)
        kept = max(oldest.least, min(oldest.remaining, (budget + 1) // 2))
        left = max(0, budget - kept)
        counts: dict[int, int] = {}
        for request in shortest:
            if request is not oldest:
                counts[request.arrival] = request.within(left)
                left -= counts[request.arrival]
        counts[oldest.arrival] = oldest.within(kept + left)
        return tuple(
            Segment(request, slot, request.computed, count, samples=count == request.remaining)
            for slot, request in self._prefilling.items()
            if (count := counts.get(request.arrival, 0))
        )

    def _admit_some(self) -> Iterator[ScheduledRequest]:
        """Admit as many waiting requests as there is room for."""
        while self._queue and self._free and not self._closed:
            request = self._first()
            # There is no new try before the pool has changed.
            if request is None or self._no_room == (request, self.pool.changes) or not self._admit(request):
                return
            yield request

    def _first(self) -> ScheduledRequest | None:
        """Return the request to start next. Those that wait for images hold up to half of the slots; texts pass the others."""
        request = self._queue.first(self._clients)
        looking = sum(one.waits_for_images for one in self._prefilling.values())
        if looking < max(1, (self.free + self.running) // 2) or not request.images_end:
            return request
        if self._known(request).tokens >= request.images_end:
            return request
        return self._queue.first_of(self._clients, lambda one: not one.images_end)

    def _admit(self, request: ScheduledRequest) -> bool:
        """Give a request a slot and pages for all its tokens. False if it has to wait for pages."""
        if request.in_flight:
            return False
        match = self._known(request)
        table = self.pool.join(match.pages)
        if not self._fits(request, table, match.tokens):
            self.pool.release(table)
            self._no_room = request, self.pool.changes
            return False
        self._queue.remove(request)
        # Taking the lowest slot keeps the running ones close together.
        slot = request.slot = heapq.heappop(self._free)
        request.table = table
        request.computed = request.valid = match.tokens
        request.waits_for_images = request.computed < request.images_end
        if not request.started:
            request.started, request.cached = True, request.computed
        self._clients.add(request.client)
        self._prefilling[slot] = request
        return True

    def _known(self, request: ScheduledRequest) -> Match:
        """Return what the cache has of a request. Of a source it is all or nothing."""
        match = self._prefixes.find(request.salt, request.tokens, shared=request.shared_tokens)
        return match if match.tokens >= request.first else NOTHING

    def _fits(self, request: ScheduledRequest, table: BlockTable, known: int) -> bool:
        """Take pages for all tokens of a request, if the running ones can still grow. False if they can't."""
        growth = self.running * self.pool.pages_for(HEADROOM)
        tokens = len(request.tokens)
        needed = self.pool.pages_for(tokens) - len(table.pages)
        return needed + growth <= self.pool.available and self.pool.extend(table, known, tokens)

    def _cache(self, request: ScheduledRequest) -> None:
        """Keep the valid tokens of a running request for requests that begin alike."""
        self._keep(request.salt, request.tokens[: request.valid], request.table, request.shared_tokens)

    def _keep(self, salt: str, tokens: Sequence[int], table: BlockTable, shared: int) -> None:
        self._prefixes.insert(salt, tokens, table.pages, shared=shared)
        table.writable = 0  # a page that is kept is copied before it is written to

    def _vacate(self, request: ScheduledRequest, slot: int) -> None:
        self._decoding.pop(slot, None)
        self._prefilling.pop(slot, None)
        heapq.heappush(self._free, slot)
        self.pool.release(request.table)
        self._clients.remove(request.client)
        request.slot, request.computed, request.valid = None, 0, 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: `decodes` by rising slot, then `prefills`. `admitted` left the queue with this step."""

    decodes: tuple[Segment, ...] = ()
    prefills: tuple[Segment, ...] = ()
    admitted: tuple[ScheduledRequest, ...] = ()

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All that runs, in the order in which it runs."""
        return self.decodes + self.prefills

    @property
    def prefill_tokens(self) -> int:
        """How many tokens of prompts the step computes."""
        return sum(segment.count for segment in self.prefills)


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring tokens of one request that run in one step: positions `start` to `start + count`.

    `samples`: whether the next token can be drawn after these.
    """

    request: ScheduledRequest
    slot: int
    start: int
    count: int
    samples: bool


@dataclass(slots=True, eq=False)
class ScheduledRequest:
    """One request as the scheduler sees it: `tokens` are the prompt's and those of the reply so far.

    `computed` counts the tokens whose keys and values are in its pages, `valid` those of them whose keys and values are
    known to be numbers, `cached` those that were taken from the cache when it began for the first time. `shared_tokens`:
    how many of the first ones everyone may share. `slot`: its place among the running requests, while it runs. `most`:
    tokens that it may have, prompt and reply together; None: any number. `in_flight`: further tokens, of launched steps,
    that only the device knows. `source`: where the source of a translation lies; it is computed in one piece, or known as a
    whole. `images_end`: the place after its last image; `waits_for_images`: nothing of it is computed until its next image
    is encoded.
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
    table: BlockTable = field(default_factory=BlockTable)
    computed: int = 0
    valid: int = 0
    cached: int = 0
    steps: int = 0
    started: bool = False
    most: int | None = None
    in_flight: int = 0
    source: Source | None = None
    images_end: int = 0
    waits_for_images: bool = False

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tokens)
        if self.shared_tokens < SHORTEST:
            self.shared_tokens = 0

    @property
    def generated(self) -> int:
        """How many tokens the reply has."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def remaining(self) -> int:
        """How many tokens are to be computed before the next one can be drawn."""
        return len(self.tokens) + self.in_flight - self.computed

    @property
    def first(self) -> int:
        """Where its own text begins: after its source, if it has one."""
        return 0 if self.source is None else self.source.reserved

    @property
    def padding(self) -> int:
        """How many of its tokens fill up a source's last page. They are never computed."""
        return 0 if self.source is None else self.source.reserved - self.source.length

    @property
    def least(self) -> int:
        """How many tokens its next step computes at least: those of its source."""
        return 0 if self.computed else self.first

    def within(self, budget: int) -> int:
        """Return how many of the remaining tokens a step with so much budget left computes."""
        return min(budget, self.remaining) if budget >= self.least else 0

    @property
    def is_full(self) -> bool:
        """Whether the token that is coming is its last one."""
        return self.most is not None and len(self.tokens) + self.in_flight >= self.most


FIRST_BUDGET = 128
SMALLEST_BUDGET = 16

LEAST_SHARE = 0.25
"""The least share of the target that is left to prompts, however long the running replies alone take."""

OF_THE_LAST_GOOD = 8
"""The smallest budget is the last one that a step computed in time, divided by this."""

ALONE = 3.0
"""A step without replies may take this many times the target: nobody's text waits for it, and each step has fixed costs.
Only its own cancel and new requests wait that long. Measured on two cores with a 768x12 Llama: the first token after a
prompt of 1,387 took 1.2 times as long with steps of the target's length.
"""

FULL_ROWS = 64
"""From this many rows on, a step's time grows with its rows. Matrix products of fewer rows take about as long."""

ROWS = 16
"""Rows are computed in groups of this size. The rows of a chunk beyond a multiple of it cost as much as a whole group."""

LONGEST = 2.0
"""A step of full rows may take this many times the target. Smaller steps would be hardly shorter, and twice as many."""

FORGETS = 0.98
"""The time of full rows is multiplied by this after each step of fewer rows, so that full rows are tried again."""

NOISE = 0.1
"""By how much steps of one kind differ, as a share of the expected time, and of the target."""

DRIFT = 0.2
"""By how much estimates may change from step to step, as a share, since replies come and go."""

ODDEST = 3.0
"""A step counts as at most this many times the expected time, since one odd step says little of the next ones."""

_SHRINKS = 0.5
"""The least share of an estimate that is left after one step."""

HEADROOM = 16
"""Tokens that each running reply must be able to grow by before another one is admitted."""


@dataclass(slots=True)
class PrefillBudget:
    """Sizes prefill chunks so that a step takes about `target_s`, which is how long running replies and cancels wait."""

    target_s: float
    _steps: _StepTimes = field(init=False)
    _largest_seen: int = FIRST_BUDGET // 2
    _last_good: int = SMALLEST_BUDGET
    _full_s: float = 0.0

    def __post_init__(self) -> None:
        self._steps = _StepTimes(NOISE * self.target_s)

    @property
    def budget(self) -> int:
        """The prompt tokens for the next step: never zero, and at most twice the most that was tried."""
        return self._budget(max(self.target_s - self._steps.decode_s, LEAST_SHARE * self.target_s))

    def _budget(self, left_s: float) -> int:
        if not self._steps.token_s:
            return FIRST_BUDGET
        affordable = int(min(left_s / self._steps.token_s, LARGEST_PREFILL))
        least = max(SMALLEST_BUDGET, self._last_good // OF_THE_LAST_GOOD)
        return max(least, min(affordable, 2 * self._largest_seen))

    def budget_beside(self, replies: int) -> int:
        """Return the prompt tokens for a step with `replies` running replies: enough to fill its rows, if time allows."""
        budget = self.budget if replies else self._budget(ALONE * self.target_s)
        if self._full_s <= LONGEST * self.target_s:
            budget = max(budget, FULL_ROWS - replies)
        over = (replies + budget) % ROWS
        return budget - over if replies + budget - over >= FULL_ROWS and budget > over else budget

    def observe(self, *, prefill_tokens: int, decoding: bool, seconds: float) -> None:
        """Learn from a step that took `seconds`. `decoding`: whether running replies took part."""
        if prefill_tokens >= self.budget // 2 and seconds <= self.target_s:
            self._last_good = min(prefill_tokens, LARGEST_PREFILL)
        self._steps.learn(seconds, decoding=decoding or not prefill_tokens, tokens=prefill_tokens)
        self._largest_seen = max(self._largest_seen, prefill_tokens)
        if prefill_tokens >= FULL_ROWS // 2:
            longest = OF_THE_LAST_GOOD * self.target_s
            self._full_s = min(seconds * min(1.0, FULL_ROWS / prefill_tokens), longest)
        elif prefill_tokens:
            self._full_s *= FORGETS


@dataclass(slots=True)
class _StepTimes:
    """Estimates the time of running replies in a step, and of each prompt token, by a Kalman filter (Kalman 1960).

    A step that had both changes mostly the estimate that is less certain. So steps of different sizes tell them apart,
    even if every step has a prompt. `_doubts`: the variances of both; their covariance is left out.
    """

    noise_s: float
    decode_s: float = 0.0
    token_s: float = 0.0
    _doubts: tuple[float, float] = (0.0, 0.0)

    def learn(self, seconds: float, *, decoding: bool, tokens: int) -> None:
        """Take the time of a step, and what was in it."""
        if decoding:
            # Replies alone take no longer than replies with a prompt.
            self.decode_s = min(self.decode_s, seconds) or (NOISE * seconds if tokens else seconds)
        if tokens and not self.token_s:
            self.token_s = max(seconds - decoding * self.decode_s, NOISE * seconds) / tokens
        else:
            self._correct(seconds, float(decoding), tokens)

    def _correct(self, seconds: float, decoding: float, tokens: int) -> None:
        of_decode, of_token = self._doubts
        # The times may have changed since they were learned.
        of_decode = min(of_decode + (DRIFT * self.decode_s) ** 2, self.decode_s**2)
        of_token = min(of_token + (DRIFT * self.token_s) ** 2, self.token_s**2)
        expected = decoding * self.decode_s + tokens * self.token_s
        noise = self.noise_s**2 + (NOISE * expected) ** 2
        doubt = decoding * of_decode + tokens**2 * of_token + noise
        off = (min(seconds, ODDEST * expected) - expected) / doubt
        self.decode_s = max(self.decode_s + off * decoding * of_decode, _SHRINKS * self.decode_s)
        self.token_s = max(self.token_s + off * tokens * of_token, _SHRINKS * self.token_s)
        self._doubts = (
            of_decode - decoding * of_decode**2 / doubt,
            of_token - (tokens * of_token) ** 2 / doubt,
        )
