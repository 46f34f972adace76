"""Turns that ask the model to repeat words, known or unknown."""

import random

from demo_model import values
from demo_model.holdout import Split
from demo_model.turns import Facts, Skill, Turn
from demo_model.wording import say

_REPEAT = (
    "Repeat after me: {words}", "Please repeat: {words}", "Repeat: {words}", "Say: {words}", "Say this: {words}", "Repeat this: {words}",
    "Repeat these words: {words}", "Can you repeat this: {words}", "Echo: {words}", "Write this: {words}", "Say after me: {words}",
    "Repeat the following: {words}", "Copy this: {words}", 'Repeat "{words}"', 'Say "{words}"', "Repeat exactly: {words}", "Echo this back: {words}",
    "Please say: {words}", "Repeat after me, please: {words}", "Can you say this: {words}",
)  # fmt: skip


def repeat(rng: random.Random, split: Split, known: Facts) -> Turn:
    """The user asks for words to be said again; the reply is those words alone."""
    words = [values.word(rng, split) for _ in range(rng.choice((1, 2, 2, 3, 3, 4, 4, 5, 6, 8)))]
    if rng.random() < 0.15:
        words.insert(rng.randrange(len(words) + 1), str(rng.randint(0, 999)))
    text = " ".join(words)
    match rng.random():
        case kind if kind < 0.15:
            text = text.capitalize() + rng.choice((".", "!", "?"))
        case kind if kind < 0.25:
            text = ", ".join(words)
        case kind if kind < 0.3:
            text = text.upper()
        case _:
            pass
    return Turn(Skill.REPEAT, rng.choice(_REPEAT).format(words=text), (text,), known)
