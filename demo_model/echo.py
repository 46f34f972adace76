"""Turns that ask the model to repeat words, known or unknown, or what it said last."""

import random
from collections.abc import Sequence

from demo_model import values
from demo_model.holdout import Split, chance, pick
from demo_model.numbers import LARGEST_COUNT
from demo_model.stories import HEROES
from demo_model.turns import Facts, Message, Skill, Turn
from demo_model.wording import worded

NOTHING_TO_REPEAT = "I have not said anything yet."
_LONGEST_AGAIN = 320

_REPEAT = (
    "Repeat after me: {words}", "Please repeat: {words}", "Repeat: {words}", "Say: {words}", "Say this: {words}", "Repeat this: {words}",
    "Repeat these words: {words}", "Can you repeat this: {words}", "Echo: {words}", "Write this: {words}", "Say after me: {words}",
    "Repeat the following: {words}", "Copy this: {words}", 'Repeat "{words}"', 'Say "{words}"', "Repeat exactly: {words}", "Echo this back: {words}",
    "Please say: {words}", "Repeat after me, please: {words}", "Can you say this: {words}",
)  # fmt: skip

_AGAIN = (
    "What did you say last?", "What did you say?", "What did you just say?", "What was the last thing you said?", "What did you say before?", "What have you said last?",
    "Say that again.", "Can you say that again?", "Repeat what you said.", "Repeat your last reply.", "Tell me what you said last.", "What was your last answer?",
    "What did you tell me last?", "What did I hear last?", "Do you remember what you said last?", "Which words did you say last?",
)  # fmt: skip


def repeat(rng: random.Random, split: Split, known: Facts) -> Turn:
    """The user asks for words to be said again; the reply is those words alone."""
    drawn = (_word(rng, split) for _ in range(rng.choice((1, 2, 2, 3, 3, 4, 4, 5, 6, 8))))
    words = list(dict.fromkeys(drawn))
    text = " ".join(words)
    shapes = (text, text.capitalize() + rng.choice(".!?"), ", ".join(words), text.upper())
    text = rng.choices(shapes, (14, 3, 2, 1))[0]
    return Turn(Skill.REPEAT, rng.choice(_REPEAT).format(words=text), (text,), known)


def repeat_last(rng: random.Random, split: Split, known: Facts, history: Sequence[Message]) -> Turn | None:
    """The user asks what was said last: the reply names it as far as it was seen. None after what is not easily said again."""
    user = worded(rng, split, rng.choice(_AGAIN))
    if not any(message.role == "assistant" for message in history):
        return Turn(Skill.LAST_REPLY, user, (NOTHING_TO_REPEAT,), known)
    seen = history[-1].content
    if history[-1].role != "assistant" or seen.startswith("<") or len(seen) > _LONGEST_AGAIN:
        return None
    return Turn(Skill.LAST_REPLY, user, (f"I said: {seen}",), known)


def _word(rng: random.Random, split: Split) -> str:
    """A word, a name, a city, a colour, a hero or a number that counting knows too."""
    if chance(rng, 0.12):
        return str(rng.randint(0, LARGEST_COUNT))
    if chance(rng, 0.25):
        proper = rng.choice((values.name, values.city, values.colour))(rng, split)
        return proper if chance(rng, 0.4) else proper.lower()
    if chance(rng, 0.08):
        return pick(rng, split, "hero", HEROES)
    return values.word(rng, split)
