"""Varies how a sentence is put: case, punctuation, politeness.

Values in braces keep their spelling, since the reply must copy them.
"""

import random
import re

from demo_model.holdout import Split, chance, held_out

OPENERS = (
    "Hey, ", "OK, ", "Okay, ", "So, ", "Please, ", "Now, ", "Well, ", "Hi, ", "Hello, ", "Thanks, ", "Great. ", "Nice. ", "Cool! ",
    "One more thing: ", "Quick question: ", "Tell me, ", "And ", "Alright, ", "Thank you. ", "By the way, ", "Good. ", "Hmm, ", "Oh, ",
)  # fmt: skip
CLOSERS = (
    "",
    "",
    "",
    " please",
    ", please",
    " now",
    " thanks",
    ", thank you",
    " then",
    ", my friend",
    " today",
)


def vary(rng: random.Random, template: str) -> str:
    """Another way to write `template`; its `{slots}` stay as they are."""
    text = template
    if chance(rng, 0.3):
        text = rng.choice(OPENERS) + _lower_first(text)
    if chance(rng, 0.15) and text[-1] in ".?!":
        text = text[:-1] + rng.choice(CLOSERS) + text[-1]
    if chance(rng, 0.25):
        text = _lower(text)
    if chance(rng, 0.25):
        text = text.rstrip(".?!") + rng.choice(("", "", "", "!", ".", "?", "??"))
    return text


def worded(rng: random.Random, split: Split, template: str) -> str:
    """`template` varied; for the evaluation, varied in a way that training never shows.

    Training may use the plain template itself: only its variations are held out.
    """
    for _ in range(400):
        text = vary(rng, template)
        if split is Split.TRAIN and (text == template or not held_out(text)):
            return text
        if split is Split.HELD_OUT and text != template and held_out(text):
            return text
    return template


def _lower(text: str) -> str:
    return re.sub(r"[^{}]+(?![^{]*})", lambda part: part.group().lower(), text)


def _lower_first(text: str) -> str:
    keeps_capital = text.startswith(("I ", "I'", "{")) or text[1:2].isupper()
    return text if keeps_capital else text[0].lower() + text[1:]
