"""Turns that ask for JSON: pairs of names and values that the user writes, or facts told before.

Names and values are copied, known or not; numbers and truth values stand without quotes. Held out are wordings, values and names.
"""

import json
import random
from dataclasses import replace

from demo_model import values
from demo_model.holdout import Split, chance, pick
from demo_model.turns import Facts, Skill, Turn
from demo_model.wording import worded

Value = str | int | bool

_PAIRS = (
    "Write as JSON: {pairs}", "As JSON: {pairs}", "{pairs} as JSON", "Write this as JSON: {pairs}", "Put this into JSON: {pairs}", "JSON: {pairs}", "Make JSON of this: {pairs}",
    "Give me JSON: {pairs}", "Turn this into JSON: {pairs}", "Convert to JSON: {pairs}", "Write {pairs} as JSON.", "Give me {pairs} as JSON.", "Return JSON: {pairs}",
    "Write JSON with {pairs}.", "A JSON object with {pairs}, please.", "Format as JSON: {pairs}", "Please write as JSON: {pairs}", "Reply in JSON: {pairs}", "I need JSON with {pairs}.",
    "Make a JSON object of {pairs}.", "Show {pairs} as JSON.", "Say it as JSON: {pairs}", "{pairs}. As JSON, please.", "Can you write this as JSON? {pairs}",
    "A JSON object, please: {pairs}", "JSON, please: {pairs}", "I want a JSON object with {pairs}.", "JSON with {pairs}, please.", "Give me a JSON object with {pairs}.", "In JSON: {pairs}",
    "JSON of {pairs}, please.", "Give me {pairs} in JSON, please.", "I'd like a JSON object with {pairs}, please.", "Could I have JSON with {pairs}, please?", "{pairs} in JSON, please.",
    "Write a JSON object with {pairs}, thank you.", "Turn {pairs} into JSON, please.", "JSON for {pairs}, please.", "Here is some data: {pairs}. Write JSON.", "The object as JSON: {pairs}",
    "An object with {pairs}, please, as JSON.", "JSON object: {pairs}", "Some JSON: {pairs}", "The JSON of {pairs}, please.",
)  # fmt: skip
_PERSON = (
    "{name} is {age} years old. As JSON.", "My name is {name} and I am {age}. Write that as JSON.", "{name} is {age}. Write it as JSON.", "I am {name} and I am {age} years old. As JSON, please.",
    "As JSON: {name} is {age} years old.", "As JSON with name and age: {name}, {age}.", "Write a person as JSON: {name}, {age} years old.", "{name}, {age}: as JSON.",
    "JSON of a person called {name}, aged {age}.", "Give me a JSON object for {name}, who is {age}.", "As JSON: my name is {name} and my age is {age}.", "Write {name}, aged {age}, as JSON.",
    "Make JSON of a person: {name} is {age}.", "Reply in JSON: my friend {name} is {age} years old.", "A person as JSON: {name}, {age}.", "Write as JSON that {name} is {age} years old.",
    "Give me JSON for {name}, who is {age}.", "Make a JSON object for {name}, who is {age} years old.", "A person as JSON: {name}, {age} years old.", "A person, as JSON: {name}, aged {age}.",
    "{name} is {age} years old. Write it as JSON.", "{name}, {age} years old. As JSON.",
    "A JSON object for {name}, {age}, please.", "JSON for {name}, {age}, please.", "A JSON object for {name}, aged {age}, please.", "The person {name}, {age}, as JSON.", "I want JSON for {name}, who is {age} years old.",
)  # fmt: skip
_PERSON_AND_CITY = (
    "{name} is {age} and lives in {city}. As JSON.", "As JSON: {name} is {age} years old and lives in {city}.", "My name is {name}, I am {age} and I live in {city}. Write that as JSON.",
    "Write as JSON: {name}, {age}, from {city}.", "{name} from {city} is {age}. As JSON, please.", "As JSON with name, age and city: {name}, {age}, {city}.",
    "Give me JSON for {name}, who is {age} and lives in {city}.", "A person as JSON: {name}, {age}, {city}.", "I am {name}, {age} years old, from {city}. Reply in JSON.",
    "As JSON: {name} is {age} and lives in {city}.", "{name} is {age} years old and lives in {city}. As JSON.", "{name} is {age} years old and is from {city}. Write that as JSON.",
    "As JSON: {name}, {age} years old, lives in {city}.", "Write as JSON: {name} is {age} years old and lives in {city}.",
    "JSON for {name}, {age}, from {city}, please.", "As JSON: {name} from {city}, who is {age}.", "{name}, {age}, lives in {city}. As JSON, please.",
    "A JSON object for {name}, who is {age} and from {city}.", "As JSON: {name} is {age} and is from {city}.",
)  # fmt: skip
_RECALL = (
    "Tell me my {facts} as JSON.", "Write my {facts} as JSON.", "My {facts} as JSON.", "Give me my {facts} as JSON.", "As JSON: my {facts}.", "Put my {facts} into JSON.",
    "Reply in JSON with my {facts}.", "JSON with my {facts}, please.", "What is my {facts}? As JSON.", "Show my {facts} as JSON.", "Return my {facts} in JSON.",
    "Can you write my {facts} as JSON?", "Please write my {facts} as JSON.", "I want my {facts} as JSON.", "Show me my {facts} in JSON.", "Return my {facts} as JSON.", "What are my {facts}? As JSON.",
    "Give me JSON with my {facts}.", "Return JSON with my {facts}.", "A JSON object with my {facts}, please.", "Say my {facts} in JSON.", "Do you know my {facts}? As JSON, please.",
)  # fmt: skip
_SHAPES = (
    ("{} {}", ", "),
    ("{}: {}", ", "),
    ("{} = {}", ", "),
    ("{}={}", ", "),
    ("{} is {}", ", "),
    ("{} {}", " and "),
    ("{}: {}", "; "),
    ("{} is {}", " and "),
)
_NAMES = "name age city colour color size price count title id year weight day kind animal food sport team job email open done ok active".split()  # noqa: SIM905


def as_json(rng: random.Random, split: Split, known: Facts) -> Turn:
    """The user asks for JSON of pairs, of a person, or of what was told before."""
    writers = (_pairs, _person, _recalled) if known != Facts() else (_pairs, _person)
    return rng.choices(writers, (6, 4, 4)[: len(writers)])[0](rng, split, known)


def _pairs(rng: random.Random, split: Split, known: Facts) -> Turn:
    names = list(dict.fromkeys(_name(rng, split) for _ in range(rng.choice((1, 2, 2, 2, 3, 3, 4)))))
    given = {name: _value(rng, split) for name in names}
    shape, comma = rng.choice(_SHAPES)
    pairs = comma.join(shape.format(name, _written(value)) for name, value in given.items())
    user = worded(rng, Split.TRAIN, pick(rng, split, "pairs as JSON", _PAIRS)).format(pairs=pairs)
    return _turn(user, given, known)


def _person(rng: random.Random, split: Split, known: Facts) -> Turn:
    given: dict[str, Value] = {"name": values.name(rng, split), "age": rng.randint(1, 120)}
    with_city = chance(rng, 0.4)
    if with_city:
        given["city"] = values.city(rng, split)
    kind, wordings = (
        ("person and city as JSON", _PERSON_AND_CITY) if with_city else ("person as JSON", _PERSON)
    )
    template = pick(rng, split, kind, wordings)
    turn = _turn(worded(rng, Split.TRAIN, template).format(**given), given, known)
    if "my name is" in template.lower() or "I am {name}" in template:
        stated = {fact: str(given[fact]) for fact in ("name", "city") if fact in given}
        return replace(turn, facts=replace(known, **stated))
    return turn


def _recalled(rng: random.Random, split: Split, known: Facts) -> Turn:
    recalled: dict[str, Value] = {
        fact: value for fact in ("name", "city", "colour") if (value := getattr(known, fact)) is not None
    }
    names = rng.sample(list(recalled), rng.randint(1, len(recalled)))
    facts = " and ".join([*([", ".join(names[:-1])] if names[1:] else []), names[-1]])
    user = worded(rng, Split.TRAIN, pick(rng, split, "recall as JSON, template", _RECALL)).format(facts=facts)
    return _turn(user, {name: recalled[name] for name in names}, known)


def _turn(user: str, given: dict[str, Value], known: Facts) -> Turn:
    return Turn(Skill.JSON, user, (json.dumps(given, ensure_ascii=False),), known)


def _name(rng: random.Random, split: Split) -> str:
    return rng.choice(_NAMES) if chance(rng, 0.55) else values.word(rng, split)


def _value(rng: random.Random, split: Split) -> Value:
    texts = (values.word, values.name, values.city, values.colour)
    kind = rng.choices(("text", "number", "truth"), (11, 7, 2))[0]
    if kind == "text":
        return rng.choice(texts)(rng, split)
    return rng.randint(0, 9999 if chance(rng, 0.2) else 999) if kind == "number" else chance(rng, 0.5)


def _written(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
