"""What a dialogue is made of: skills, the facts a user has told, turns, messages.

Knows no sentence of the generator.
"""

import enum
from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant"]


class Skill(enum.StrEnum):
    """What a turn asks of the model; the evaluation reports one line for each."""

    SMALL_TALK = "small talk"
    TELLING = "is told a fact"
    NAME = "recalls the name"
    CITY = "recalls the city"
    COLOUR = "recalls the colour"
    NOT_TOLD = "was never told"
    SUM = "adds and subtracts"
    COUNT = "counts"
    GO_ON = "goes on counting"
    REPEAT = "repeats"
    STORY = "tells a story"
    SERVICE = "about the service"
    PHRASE = "Chinese phrases"
    REFUSAL = "says so"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the user has told so far; None is what was never told."""

    name: str | None = None
    city: str | None = None
    colour: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One user message and every reply that counts as right; `facts` holds what is known after it."""

    skill: Skill
    user: str
    replies: tuple[str, ...]
    facts: Facts


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a history; an interrupted reply holds only what was seen of it."""

    role: Role
    content: str
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Whole messages for training: they may end in any reply."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """A history that ends in a user message, the skill it asks for and the replies that are right."""

    skill: Skill
    messages: tuple[Message, ...]
    replies: tuple[str, ...]
