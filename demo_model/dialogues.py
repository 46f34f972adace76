"""Writes the dialogues: turns of every skill mixed freely, interrupted anywhere, with or without a system prompt.

`write` makes training dialogues, `probe` makes questions for the evaluation; both depend on nothing but the random
generator they are given.
"""

import random
from collections.abc import Callable, Mapping

from demo_model import echo, facts, numbers, phrases, refusals, smalltalk, stories
from demo_model.holdout import Split, chance
from demo_model.turns import Dialogue, Facts, Message, Probe, Skill, Turn

Writer = Callable[[random.Random, Split, Facts], Turn]

SYSTEM_PROMPTS = (
    "You are a helpful assistant.", "You are a helpful assistant.", "You are Midstream's demo model.", "Answer briefly.", "Be kind and concise.",
    "You are a friendly chat partner.", "You are a small demo model. Say so when you cannot answer.", "Please be polite.", "You are an assistant in a demo.",
    "Keep your answers short.", "You chat with visitors of a web page.", "You are a helpful, honest assistant. Today is a good day.",
)  # fmt: skip
_SHORT_COUNTS = 100
_NEAR_THE_END = 24
_RECALLED = (Skill.NAME, Skill.CITY, Skill.COLOUR)


def write(rng: random.Random, *, most_characters: int, longest_count: int) -> Dialogue:
    """A training dialogue of about `most_characters`; no count in it exceeds `longest_count` numbers unless resumed."""
    writer = _Dialogue(rng, Split.TRAIN, longest_count=longest_count)
    goal = rng.randint(most_characters // 3, most_characters)
    while writer.characters < goal:
        if not writer.take(_choose(rng, writer), most_characters) and writer.characters > goal // 2:
            break
    return Dialogue(tuple(writer.messages))


def probe(
    rng: random.Random, skill: Skill, *, split: Split = Split.HELD_OUT, longest_count: int = 60
) -> Probe:
    """A history of up to six turns, then a question of `skill`, with the replies that are right.

    The question, and the values in the history, are of `split`.
    """
    while True:
        writer = _Dialogue(rng, split, longest_count=longest_count)
        if skill in _RECALLED:
            for tell in rng.sample((facts.tell_name, facts.tell_city, facts.tell_colour), 3):
                writer.take(tell)
        for _ in range(rng.randint(0, 3)):
            writer.take(_choose(rng, writer))
        if skill is Skill.GO_ON:
            writer.take(_counting(rng.randint(5, longest_count)), cut_chance=1.0)
        turn = _of(skill, rng, writer)
        if turn.skill is skill:
            return Probe(skill, tuple(writer.asked(turn)), turn.replies)


def plain_count(first: int, last: int) -> Probe:
    """The bare request to count from `first` to `last`, with no history."""
    asked = Message("user", f"Count from {first} to {last}.")
    return Probe(Skill.COUNT, (asked,), (numbers.counted(first, last),))


def _of(skill: Skill, rng: random.Random, writer: "_Dialogue") -> Turn:
    if skill in _RECALLED:
        return facts.ask(rng, writer.split, writer.known, skill)
    if skill is Skill.GO_ON:
        return numbers.go_on(rng, writer.split, writer.known, writer.messages)
    if skill is Skill.COUNT:
        return numbers.count(rng, writer.split, writer.known, writer.longest_count)
    return _WRITERS[skill](rng, writer.split, writer.known)


def _counting(longest: int) -> Writer:
    return lambda rng, split, known: numbers.count(rng, split, known, longest)


def _ask_any(rng: random.Random, split: Split, known: Facts) -> Turn:
    told = [skill for skill in _RECALLED if getattr(known, skill.name.lower()) is not None]
    wanted = rng.choice(told) if told and chance(rng, 0.8) else rng.choice(_RECALLED)
    return facts.ask(rng, split, known, wanted)


_WRITERS: Mapping[Skill, Writer] = {
    Skill.SMALL_TALK: smalltalk.small_talk,
    Skill.TELLING: facts.tell,
    Skill.NOT_TOLD: _ask_any,
    Skill.SUM: numbers.add_or_subtract,
    Skill.COUNT: _counting(60),
    Skill.REPEAT: echo.repeat,
    Skill.STORY: stories.story,
    Skill.SERVICE: smalltalk.about_service,
    Skill.PHRASE: phrases.phrase,
    Skill.REFUSAL: refusals.refuse,
}


def _choose(rng: random.Random, writer: "_Dialogue") -> Writer:
    """The next turn's writer: what was told is asked for often, and a count that was cut may go on."""
    if writer.messages and writer.messages[-1].interrupted and chance(rng, 0.6):
        return lambda rng, split, known: numbers.go_on(rng, split, known, writer.messages)
    long_count = writer.longest_count > _SHORT_COUNTS
    shares: list[tuple[Writer, float]] = [
        (facts.tell, 14), (_ask_any, 28 if writer.known != Facts() else 3), (numbers.add_or_subtract, 26), (refusals.refuse, 20),
        (_counting(writer.longest_count), 14 if long_count else 12), (_counting(12), 6), (echo.repeat, 34), (stories.story, 5 if writer.longest_count >= _SHORT_COUNTS else 1),
        (smalltalk.small_talk, 9), (smalltalk.about_service, 8), (phrases.phrase, 12),
        (lambda rng, split, known: numbers.go_on(rng, split, known, writer.messages), 1),
    ]  # fmt: skip
    return rng.choices(shares, [weight for _, weight in shares])[0][0]


class _Dialogue:
    """A dialogue being written: its messages, what is known, and how many characters it has."""

    def __init__(self, rng: random.Random, split: Split, *, longest_count: int) -> None:
        self.rng = rng
        self.split = split
        self.longest_count = longest_count
        self.known = Facts()
        self.messages: list[Message] = []
        if chance(rng, 0.25):
            self.messages.append(Message("system", rng.choice(SYSTEM_PROMPTS)))

    @property
    def characters(self) -> int:
        return sum(len(message.content) for message in self.messages)

    def take(self, writer: Writer, most_characters: int = 1 << 30, cut_chance: float | None = None) -> bool:
        """Add a turn, unless it would make the dialogue longer than `most_characters`: then False."""
        turn = writer(self.rng, self.split, self.known)
        reply = self.rng.choice(turn.replies)
        if self.characters + len(turn.user) + len(reply) > most_characters:
            return False
        self.messages = self.asked(turn)
        self.known = turn.facts
        if cut_chance is None:
            cut_chance = 0.35 if turn.skill in {Skill.COUNT, Skill.STORY, Skill.GO_ON} else 0.06
        cut = chance(self.rng, cut_chance)
        earliest = max(0, len(reply) - _NEAR_THE_END) if chance(self.rng, 0.25) else 0
        seen = reply[: self.rng.randrange(earliest, len(reply))] if cut else reply
        if seen:
            self.messages.append(Message("assistant", seen, interrupted=cut))
        return True

    def asked(self, turn: Turn) -> list[Message]:
        """The messages with the turn's question; where nothing was seen of the last reply, two questions become one message."""
        *earlier, last = self.messages or [Message("system", "")]
        if self.messages and last.role == "user":
            return [*earlier, Message("user", f"{last.content}\n{turn.user}")]
        return [*self.messages, Message("user", turn.user)]
