"""The plan of a run: arrivals, messages, and which replies are stopped. Pure, except for reading a file of prompts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

PROMPTS = (
    "Hello! What can you do?",
    "Count from 1 to 100.",
    "Tell me a story about a lighthouse.",
    "What is 17 plus 25?",
    "Explain in a few sentences how rain forms.",
    "Write a list of five things to pack for a walk in the mountains.",
    "Please repeat: the quick brown fox jumps over the lazy dog.",
    "And what would you do differently?",
)
"""Messages for short and long replies, which need no special knowledge."""
MOST_PROMPT_BYTES = 8 << 20
"""Most bytes of a file of prompts."""
MOST_TEXTS_BEFORE_STOP = 24
"""Most pieces of text after which a reply is stopped; the number is random."""


class PlanError(Exception):
    """The plan is not possible. The message is for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan. It has either `rate` (new conversations a second, a Poisson process) or `concurrency`.

    `at_most`: concurrent conversations; with a rate, further arrivals are counted and left out. `turns`: messages of a
    conversation. `think_s`: the mean pause before the next message, exponentially distributed. `cancels`: the share of stopped
    replies. `max_new_tokens`, `model`: of each reply; None: the server's default. `drain_s`: how long running replies may take
    at the end.
    """

    rate: float | None = None
    concurrency: int | None = None
    at_most: int = 1000
    turns: int = 4
    think_s: float = 1.0
    cancels: float = 0.0
    prompts: tuple[str, ...] = PROMPTS
    duration_s: float = 30.0
    drain_s: float = 30.0
    seed: int = 1
    max_new_tokens: int | None = None
    model: str | None = None
    keeps: bool = False
    """Whether the conversations stay on the server."""

    @property
    def in_words(self) -> str:
        """Return the plan in one line."""
        if self.rate is not None:
            whence = f"{self.rate:g} conversations a second, {self.at_most} at most at once"
        else:
            whence = f"{self.concurrency} conversations at once"
        return (
            f"{whence}; {self.turns} messages each, {self.think_s:g} s between them; "
            f"{self.cancels:.0%} of the replies stopped; {self.duration_s:g} s, seed {self.seed}"
        )


@dataclass(frozen=True, slots=True)
class PlannedMessage:
    """One message. `pause_s`: the pause before it. `stop_after`: the pieces of text after which its reply is stopped; None: it is not."""

    content: str
    pause_s: float
    stop_after: int | None


def script(plan: Plan, number: int) -> tuple[PlannedMessage, ...]:
    """Return the messages of a numbered conversation. They depend on the plan alone, not on the order."""
    random = Random(f"{plan.seed}/{number}")
    return tuple(_planned_message(plan, random, is_first=turn == 0) for turn in range(plan.turns))


def _planned_message(plan: Plan, random: Random, *, is_first: bool) -> PlannedMessage:
    content = random.choice(plan.prompts)
    pause_s = random.expovariate(1 / plan.think_s) if plan.think_s else 0.0
    stops, after = random.random() < plan.cancels, random.randint(1, MOST_TEXTS_BEFORE_STOP)
    return PlannedMessage(content, 0.0 if is_first else pause_s, after if stops else None)


def arrivals(plan: Plan) -> Random:
    """Return the random generator of arrivals, separate from the conversations'."""
    return Random(f"{plan.seed}/arrivals")


def prompts_of(path: Path) -> tuple[str, ...]:
    """Return the lines of a file that are not empty. Raises PlanError."""
    try:
        size = path.stat().st_size
        if size > MOST_PROMPT_BYTES:
            raise PlanError(f"{path} has {size:,} bytes; prompts may have {MOST_PROMPT_BYTES:,}.")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path} can't be read: {error}.") from error
    prompts = tuple(text for line in lines if (text := line.strip()))
    if not prompts:
        raise PlanError(f"{path} has no prompts: write one a line.")
    return prompts
