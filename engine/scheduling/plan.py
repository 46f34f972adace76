"""Requests as the scheduler sees them, and a step of theirs as it is planned. Pure bookkeeping in tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.cache.layout import Source
from engine.cache.pages import BlockTable
from engine.cache.prefix_cache import SHORTEST


@dataclass(slots=True, eq=False)
class ScheduledRequest:
    """One request as the scheduler sees it: `tokens` are the prompt's and those of the reply so far.

    `computed` counts the tokens whose keys and values are in its pages, `valid` those of them that are known to be
    numbers, `cached` those that were taken from the cache when it began for the first time. `shared_tokens`: how many
    of the first ones everyone may share. `slot`: its place among those that run, while it does. `most`: tokens that it
    may have, prompt and reply together; None: any number. `in_flight`: tokens
    behind those, of steps that were launched, which nobody knows yet. `source`: where the source of a translation lies;
    it is computed in one piece, or known as a whole. `images_end`: the place after its last image; `waits_for_images`: nothing of it is
    computed until what it shows was looked at.

    `draft`: how the reply may begin, computed with the end of the prompt; then `accepted` of these tokens were right, and
    are the reply's. `ahead`: tokens that it may have behind them; None: any number.
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
    draft: Sequence[int] = ()
    accepted: int = 0
    ahead: int | None = None

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tokens)
        if self.shared_tokens < SHORTEST:
            self.shared_tokens = 0
        if not self.draft:
            self._bound()

    @property
    def generated(self) -> int:
        """How many tokens the reply has."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def remaining(self) -> int:
        """How many tokens are to be computed before the next one can be drawn; a draft comes with the last of them."""
        return len(self.tokens) + self.in_flight - self.computed

    @property
    def extent(self) -> int:
        """The position behind all that is to be computed before the next token can be drawn."""
        return len(self.tokens) + len(self.draft)

    @property
    def first(self) -> int:
        """Where its own text begins: behind its source, if it has one."""
        return 0 if self.source is None else self.source.reserved

    @property
    def padding(self) -> int:
        """How many of its tokens fill up a source's last page. They are never computed."""
        return 0 if self.source is None else self.source.reserved - self.source.length

    @property
    def padding_ahead(self) -> int:
        """How many of these are among the `remaining` tokens."""
        return 0 if self.computed else self.padding

    @property
    def rows(self) -> int:
        """How many rows are to be computed before the next token can be drawn: the remaining tokens and the draft."""
        return self.rows_of(self.remaining)

    @property
    def least(self) -> int:
        """How many rows its next step computes at least: its source, or its last token with the draft."""
        if self.source is not None and not self.computed:
            return self.source.length
        return self.rows if self.remaining == 1 else 0

    def rows_of(self, count: int) -> int:
        """Return how many rows so many of the remaining tokens take."""
        return count - self.padding_ahead + self.drafted_behind(count) if count else 0

    def drafted_behind(self, count: int) -> int:
        """Return how many tokens of the draft are computed with so many of the remaining tokens: with the last one, all."""
        return len(self.draft) if count == self.remaining else 0

    def within(self, rows: int) -> int:
        """Return how many of the remaining tokens a step with so many rows left computes."""
        if rows >= self.rows:
            return self.remaining
        if rows < self.least:
            return 0
        return min(rows + self.padding_ahead, self.remaining - bool(self.draft))

    @property
    def is_full(self) -> bool:
        """Whether the token that is coming is its last one."""
        return self.most is not None and len(self.tokens) + self.in_flight >= self.most

    def accept(self, right: int) -> None:
        """Note that the draft was computed, and that so many of its tokens were right."""
        self.tokens += self.draft[:right]
        self.computed += right
        self.accepted, self.draft = right, ()
        self._bound()

    def take_back(self) -> None:
        """Forget that the draft was computed: what was right of it is one again."""
        self.draft, self.accepted = self.tokens[self.prompt_tokens :], 0
        del self.tokens[self.prompt_tokens :]

    def _bound(self) -> None:
        if self.ahead is not None:
            most = len(self.tokens) + self.ahead
            self.most = most if self.most is None else min(self.most, most)


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring tokens of one request that run in one step: positions `start` to `start + count`.

    `samples`: whether the next token can be drawn after these. `drafted`: tokens of a draft that run behind them.
    `padding`: how many of the positions are never computed.
    """

    request: ScheduledRequest
    slot: int
    start: int
    count: int
    samples: bool
    drafted: int = 0
    padding: int = 0

    @property
    def rows(self) -> int:
        """How many rows the step computes for it."""
        return self.count - self.padding + self.drafted


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
        """How many tokens of prompts and drafts the step computes."""
        return sum(segment.rows for segment in self.prefills)
