"""What a dialogue is made of: skills, the facts a user has told, turns, messages.

Knows no sentence of the generator.
"""

import enum
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from demo_model.holdout import Split

Role = Literal["system", "user", "assistant"]


class Skill(enum.StrEnum):
    """What a turn asks of the model; the evaluation reports one line for each."""

    SMALL_TALK = "small talk"
    FACT = "is told a fact"
    NAME = "recalls the name"
    CITY = "recalls the city"
    COLOUR = "recalls the colour"
    UNKNOWN_FACT = "was never told"
    SUM = "adds and subtracts"
    COUNT = "counts"
    GO_ON = "goes on counting"
    REPEAT = "repeats"
    LAST_REPLY = "says again what was seen"
    STORY = "tells a story"
    SERVICE = "about the service"
    PHRASE = "Chinese phrases"
    REFUSAL = "says so"
    CLOCK = "asks the clock"
    CALCULATOR = "calculates with a tool"
    DICE = "rolls dice"
    WEATHER = "asks for the weather"
    TWO_CALLS = "calls two at once"
    UNSEEN_TOOL = "calls tools of unseen names"
    FAILED = "says that a tool failed"
    NO_CALL = "needs no tool"
    THINKING = "thinks first"
    JSON = "writes JSON"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the user has told so far; None is what was never told."""

    name: str | None = None
    city: str | None = None
    colour: str | None = None


@dataclass(frozen=True, slots=True)
class ToolRound:
    """What the model writes to call tools, and the user message that holds their results: a turn's first half."""

    calls: str
    results: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One user message and every reply that counts as right; `facts` holds what is known after it.

    `called` comes between the two. `given`: how the prompt begins the reply, where it does; every reply begins so.
    """

    skill: Skill
    user: str
    replies: tuple[str, ...]
    facts: Facts
    called: ToolRound | None = None
    given: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a history, as the model reads or writes it; an interrupted reply holds only what was seen of it.

    `given`: the beginning of a reply that the prompt gave.
    """

    role: Role
    content: str
    interrupted: bool = False
    given: str = ""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Whole messages for training: they may end in any reply."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """A history that ends in a user message, the skill it asks for and the replies that are right.

    `given`: how the prompt begins the reply. `then`: the next probe of the same turn, after the first of the replies.
    """

    skill: Skill
    messages: tuple[Message, ...]
    replies: tuple[str, ...]
    given: str = ""
    then: "Probe | None" = None


Writer = Callable[[random.Random, Split, Facts], Turn]
"""Writes one turn, given what the user has told before."""
