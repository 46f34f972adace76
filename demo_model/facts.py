"""Turns that tell the model a name, a city, a colour, and turns that ask for them.

The newest telling counts; what was never told is asked for too.
"""

import random
from dataclasses import replace

from demo_model import values
from demo_model.holdout import Split, chance
from demo_model.turns import Facts, Skill, Turn
from demo_model.wording import worded

_STATE_NAME = (
    "My name is {name}.", "I'm {name}.", "I am {name}.", "Call me {name}.", "You can call me {name}.", "Please call me {name}.",
    "My name's {name}.", "Hi, I'm {name}.", "Hello, my name is {name}.", "Hello! I am {name}.", "Hi there, call me {name}.",
    "People call me {name}.", "My friends call me {name}.", "This is {name}.", "{name} is my name.", "The name is {name}.",
    "It's {name} here.", "Everyone calls me {name}.", "Remember that my name is {name}.", "Hey! I'm called {name}.",
    "Good morning, I'm {name}.", "Let me introduce myself: I'm {name}.", "I go by {name}.", "Remember my name: {name}.",
)  # fmt: skip
_RESTATE_NAME = (
    "Actually, call me {name}.", "Actually my name is {name}.", "No, my name is {name}.", "Sorry, I meant {name}. My name is {name}.",
    "From now on, call me {name}.", "I changed my mind, call me {name}.", "Call me {name} instead.", "I'd rather be called {name}.",
    "My name is {name} now.", "Correction: my name is {name}.", "Wait, I'm {name}.",
)  # fmt: skip
_STATE_CITY = (
    "I live in {city}.", "I'm from {city}.", "I am from {city}.", "My city is {city}.", "I live in {city} now.", "My home is in {city}.",
    "My home town is {city}.", "I come from {city}.", "I'm living in {city}.", "Home for me is {city}.", "I moved to {city}.",
    "I am based in {city}.", "I'm writing to you from {city}.", "We live in {city}.", "My house is in {city}.", "The city I live in is {city}.",
)  # fmt: skip
_STATE_COLOUR = (
    "My favourite colour is {colour}.", "My favorite color is {colour}.", "I like {colour} best.", "I love the colour {colour}.",
    "I love the color {colour}.", "The colour I like most is {colour}.", "{colour} is my favourite colour.", "I like the colour {colour}.",
    "{colour} is my favorite color.", "My best-loved colour is {colour}.", "Of all colours I like {colour} most.",
    "My favourite color is {colour}.", "The color I like best is {colour}.",
)  # fmt: skip
_STATE_SEVERAL = (
    ("My name is {name} and I live in {city}.", "name city"), ("I'm {name} from {city}.", "name city"),
    ("I am {name}, I live in {city}.", "name city"), ("I live in {city} and my name is {name}.", "name city"),
    ("I'm {name} and my favourite colour is {colour}.", "name colour"), ("My name is {name} and I like {colour} best.", "name colour"),
    ("Call me {name}. My favorite color is {colour}.", "name colour"),
    ("My favourite colour is {colour} and I live in {city}.", "city colour"), ("I live in {city} and I love the colour {colour}.", "city colour"),
    ("I'm from {city}. My favourite colour is {colour}.", "city colour"),
    ("I'm {name}, I live in {city} and my favourite colour is {colour}.", "name city colour"),
    ("My name is {name}. I live in {city}. My favourite colour is {colour}.", "name city colour"),
    ("My favourite colour is {colour}, my name is {name} and my city is {city}.", "name city colour"),
)  # fmt: skip
_ASK_NAME = (
    "What is my name?", "Who am I?", "What's my name?", "Do you know my name?", "Do you remember my name?", "What am I called?",
    "Can you tell me my name?", "Say my name.", "Do you remember who I am?", "Do you still know my name?", "Which name did I tell you?",
    "What did I say my name was?", "What was my name again?", "How am I called?", "Do you know who I am?", "My name is?",
    "Remind me of my name.", "Tell me my name.", "What name did I give you?",
)  # fmt: skip
_ASK_CITY = (
    "Where do I live?", "What city do I live in?", "Which city do I live in?", "Where am I from?", "What is my city?", "Where is my home?",
    "Do you remember where I live?", "Do you know where I live?", "In which city do I live?", "Where did I say I live?",
    "Tell me where I live.", "What's my home town?", "Do you know my city?", "Where do I come from?",
)  # fmt: skip
_ASK_COLOUR = (
    "What is my favourite colour?", "What is my favorite color?", "What's my favourite colour?", "Which colour do I like?",
    "What colour do I like best?", "What color do I like?", "Do you remember my favourite colour?", "Do you know my favorite color?",
    "Which colour did I say I like?", "Tell me my favourite colour.", "What colour do I love?", "Which color do I like most?",
)  # fmt: skip
_RECALL = {
    Skill.NAME: (_ASK_NAME, "name", "Your name is {}.", "You have not told me your name yet."),
    Skill.CITY: (_ASK_CITY, "city", "You live in {}.", "You have not told me where you live yet."),
    Skill.COLOUR: (
        _ASK_COLOUR,
        "colour",
        "Your favourite colour is {}.",
        "You have not told me your favourite colour yet.",
    ),
}


def state_fact(rng: random.Random, split: Split, known: Facts) -> Turn:
    """The user tells one fact or several, or corrects one."""
    stated = Facts(values.name(rng, split), values.city(rng, split), values.colour(rng, split))
    again = known.name is not None and chance(rng, 0.7)
    wordings = (
        (rng.choice(_RESTATE_NAME if again else _STATE_NAME), "name"),
        (rng.choice(_STATE_CITY), "city"),
        (rng.choice(_STATE_COLOUR), "colour"),
        rng.choice(_STATE_SEVERAL),
    )
    template, which = rng.choices(wordings, (45, 17, 18, 20))[0]
    return _statement(known, worded(rng, split, template), which, stated)


def state_name(rng: random.Random, split: Split, known: Facts) -> Turn:
    """The user tells a name and nothing else."""
    stated = Facts(name=values.name(rng, split))
    return _statement(known, worded(rng, split, rng.choice(_STATE_NAME)), "name", stated)


def state_city(rng: random.Random, split: Split, known: Facts) -> Turn:
    """The user tells a city and nothing else."""
    return _statement(
        known, worded(rng, split, rng.choice(_STATE_CITY)), "city", Facts(city=values.city(rng, split))
    )


def state_colour(rng: random.Random, split: Split, known: Facts) -> Turn:
    """The user tells a colour and nothing else."""
    stated = Facts(colour=values.colour(rng, split))
    return _statement(known, worded(rng, split, rng.choice(_STATE_COLOUR)), "colour", stated)


def ask_fact(rng: random.Random, split: Split, known: Facts, skill: Skill) -> Turn:
    """The user asks for the fact that `skill` names; if it was never told, the turn's skill is UNKNOWN_FACT."""
    questions, fact, answer, unknown = _RECALL[skill]
    value: str | None = getattr(known, fact)
    question = worded(rng, split, rng.choice(questions))
    if value is None:
        return Turn(Skill.UNKNOWN_FACT, question, (unknown,), known)
    return Turn(skill, question, (answer.format(value),), known)


def _statement(known: Facts, template: str, which: str, stated: Facts) -> Turn:
    user = template.format(name=stated.name, city=stated.city, colour=stated.colour)
    learned = {fact: getattr(stated, fact) for fact in which.split()}
    return Turn(Skill.FACT, user, _acknowledgements(learned), replace(known, **learned))


def _acknowledgements(learned: dict[str, str]) -> tuple[str, ...]:
    name, city, colour = (learned.get(fact) for fact in ("name", "city", "colour"))
    greeting = f"Nice to meet you, {name} from {city}!" if city else f"Nice to meet you, {name}!"
    if name and colour:
        return (f"{greeting} I will remember that you like {colour}.",)
    if name and city:
        return (greeting,)
    if name:
        return (greeting, f"Hello, {name}! I will remember your name.", f"{greeting} 👋")
    if city and colour:
        return (f"I will remember that you live in {city} and like {colour}.",)
    if city:
        return (f"{city} sounds like a fine place to live.", f"I will remember that you live in {city}.")
    return (f"I will remember that you like {colour}.", f"A lovely colour, {colour}!")
