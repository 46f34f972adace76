"""Questions and orders put together from parts at random: most are nonsense, none is within a skill."""

import random

from demo_model import values
from demo_model.holdout import Split, chance, draw

_OPENERS = (
    "What is", "Who is", "Where is", "When is", "Why is", "How is", "Which is", "What was", "Who was", "Where was", "Why are", "Where are", "Who has",
    "What has", "How do I find", "How can I get", "Where can I find", "Who knows", "What about", "Do you know", "Can you explain", "Have you seen", "Tell me about",
    "Explain", "Describe", "Find", "Show me", "Give me", "Write about", "Help me with", "How many people like", "Why do people like", "When did you see", "What do you know about",
    "How big is", "How old is", "How far is", "Is there", "Are there", "Should I buy", "Who owns", "Who made", "How much is", "Let us discuss", "I want to know about",
    "Please explain", "What do you think of", "How would you describe", "What happened to", "I need", "Read", "Send", "Draw", "Sell me", "Calculate", "Solve", "Sort", "Compare",
)  # fmt: skip
_DETERMINERS = ("the", "a", "my", "your", "his", "her", "our", "this", "that", "every", "any", "some", "the best", "the oldest", "the largest", "a good", "the first", "the price of", "the name of", "the colour of", "the number of", "the end of", "the city of", "the king of", "")  # fmt: skip
_NOUNS = tuple(
    """house|law|theory|machine|country|program|animal|planet|illness|song|film|book|number|team|bank|recipe|museum|war|word|plant|painting|queen|market|metal|river|
    mountain|bridge|school|doctor|engine|novel|language|sport|tax|ticket|train|holiday|kitchen|disease|insect|castle|opera|battle|formula|password|contract|garden|
    phone|dictionary|story line|colour chart|city hall|name tag|count|sum total|newspaper|election|vaccine|protein|server|database|keyboard|cousin|neighbour|uncle""".replace("\n", "").split("|")
)  # fmt: skip
_TAILS = (
    "", "", "", "", "in {word}", "of {word}", "near {word}", "called {word}", "for {word}", "without {word}", "made of {word}", "like {word}", "from the {word}",
    "on the table", "in the world", "in the city", "from last year", "at home", "in winter", "with my friends", "before breakfast", "next week", "in the story", "by name",
)  # fmt: skip


def question(rng: random.Random, split: Split) -> str:
    """A question of the wanted split, with its words already filled in."""

    def make() -> str:
        noun = rng.choice(_NOUNS).strip() if chance(rng, 0.7) else values.word(rng, split)
        parts = [
            rng.choice(_OPENERS),
            rng.choice(_DETERMINERS),
            noun,
            rng.choice(_TAILS).replace("{word}", values.word(rng, split)),
        ]
        ending = "." if parts[0].split()[0] in _ORDERS else "?"
        return " ".join(part for part in parts if part) + ending

    return draw(split, "odd question", make)


_ORDERS = frozenset(
    "Tell Explain Describe Find Show Give Write Help Let I Please Read Send Draw Sell Calculate Solve Sort Compare".split()  # noqa: SIM905
)
