"""Turns about numbers: sums of 0 to 100, counting up to 500, and the sums and counts that are out of reach.

Held out are pairs of numbers and ranges, whatever the wording.
"""

import random
import re

from demo_model.holdout import Split, chance, held_out
from demo_model.turns import Facts, Message, Skill, Turn
from demo_model.wording import worded

LARGEST_OPERAND = 100
LARGEST_COUNT = 500
TOO_HARD = (
    "I can't work that out: I only add and subtract two whole numbers from 0 to 100, written in digits."
)
BELOW_ZERO = "I can't work that out: I only subtract when the result is not below zero."
TOO_FAR = "I can't count that: I only count upwards in ones, from 0 to 500 at most."
NOTHING_TO_GO_ON = "I can't go on: I only go on with a count that was interrupted."

_PLUS = (
    "What is {a} plus {b}?", "What's {a} plus {b}?", "{a}+{b}?", "{a} + {b}", "{a} plus {b}?", "{a}+{b}=", "{a} + {b} = ?", "Add {a} and {b}.",
    "How much is {a} plus {b}?", "What is {a} + {b}?", "What is the sum of {a} and {b}?", "Can you add {a} and {b}?", "{a} and {b} make?",
    "What do {a} and {b} make?", "Compute {a} + {b}.", "Calculate {a} plus {b}.", "What does {a}+{b} equal?", "Add {b} to {a}.", "What is {a}+{b}?",
    "I have {a} apples and get {b} more. How many do I have?", "Sum {a} and {b}.", "How much is {a}+{b}?", "Do you know what {a} plus {b} is?",
)  # fmt: skip
_MINUS = (
    "What is {a} minus {b}?", "What's {a} minus {b}?", "{a}-{b}?", "{a} - {b}", "{a} minus {b}?", "{a}-{b}=", "{a} - {b} = ?", "{a} minus {b}",
    "Subtract {b} from {a}.", "How much is {a} minus {b}?", "What is {a} - {b}?", "Take {b} away from {a}.", "What is {a}-{b}?", "Compute {a} - {b}.",
    "What is the difference between {a} and {b}?", "Can you subtract {b} from {a}?", "Calculate {a} minus {b}.", "What does {a}-{b} equal?",
    "I have {a} apples and eat {b}. How many are left?", "How much is {a}-{b}?", "{a} less {b}?", "Do you know what {a} minus {b} is?",
)  # fmt: skip
_ORDERED_MINUS = tuple(wording for wording in _MINUS if "difference" not in wording)
_OTHER_SUMS = (
    "What is {a} times {b}?", "{a}*{b}?", "{a} x {b}?", "What is {a} divided by {b}?", "{a}/{b}?", "Multiply {a} by {b}.", "Divide {a} by {b}.",
    "What is {a} percent of {b}?", "What is {a} squared?", "What is the square root of {a}?", "What is {a} to the power of {b}?",
    "What is {a} plus {b} plus {c}?", "{a}+{b}+{c}?", "{a}+{b}-{c}?", "What is {a} minus {b} minus {c}?", "Is {a} prime?", "Double {a}.",
    "What is half of {a}?", "What is {a} modulo {b}?", "What is {a} cubed?", "How much is {a} times {b}?", "What is {a}.5 plus {b}?",
    "What is {word} plus {word}?", "{word} plus {word}?", "{word} minus {word}?", "Is {a} larger than {b}?", "{a}^{b}?", "{a} * {b} = ?",
    "Solve x + {a} = {b}.", "What is the average of {a} and {b}?", "Is {a} even or odd?", "Compute {a} times {b}.", "{a} % {b}?",
)  # fmt: skip
_NUMBER_WORDS = "one two three four five six seven eight nine ten eleven twelve twenty thirty fifty".split()  # noqa: SIM905
_COUNT = (
    "Count from {a} to {b}.", "Please count from {a} to {b}.", "Can you count from {a} to {b}?", "Count {a} to {b}.", "Count from {a} up to {b}.",
    "Could you count from {a} to {b}?", "List the numbers from {a} to {b}.", "Write the numbers from {a} to {b}.", "Say the numbers from {a} to {b}.",
    "Start at {a} and count to {b}.", "Count for me from {a} to {b}.", "Count up from {a} to {b}.", "I want you to count from {a} to {b}.",
    "Give me all numbers from {a} to {b}.", "Count slowly from {a} to {b}.", "Name every number from {a} to {b}.",
)  # fmt: skip
_COUNT_FROM_ONE = (
    "Count to {b}.", "Can you count to {b}?", "Count up to {b}.", "Please count to {b}.", "Could you count up to {b}?", "Count until {b}.",
    "Can you count to {b} for me?", "I want you to count to {b}.", "Count all the way to {b}.",
)  # fmt: skip
_OTHER_COUNTS = (
    "Count down from {b} to {a}.", "Count from {b} to {a}.", "Count backwards from {b}.", "Count from {a} to {far}.", "Count to {far}.",
    "Count up to {far}.", "Count from {a} to {b} in steps of {step}.", "Count to {b} by {step}s.", "Count the stars.", "Count the sheep.",
    "Can you count from {a} to {far}?", "Count down from {b}.", "Count backwards from {b} to {a}.", "Count every second number from {a} to {b}.",
    "Can you count to {far}?", "Count to infinity.", "Count to a million.", "Count my fingers.", "Please count from {b} down to {a}.",
)  # fmt: skip
_GO_ON = (
    "Go on.", "Continue.", "Please continue.", "Keep going.", "Carry on.", "Go on, please.", "Please go on.", "Keep counting.", "Continue counting.",
    "Go on counting.", "Carry on counting.", "Can you continue?", "And then?", "Could you go on?", "Finish it.",
)  # fmt: skip
_HEARD = 0.35
"""The share of these that training puts as a recognizer of speech does: in small letters alone."""

_CUT_COUNT = re.compile(r"(?:\d+, )*(\d+),(?: \d*)?")


def add_or_subtract(rng: random.Random, split: Split, known: Facts) -> Turn:
    """A sum within reach; the reply repeats the operands before the result."""
    low, high = sorted((_operand(rng), _operand(rng)))
    while held_out(f"sum:{low}:{high}") != (split is Split.HELD_OUT):
        low, high = sorted((_operand(rng), _operand(rng)))
    if chance(rng, 0.5):
        a, b = (low, high) if chance(rng, 0.5) else (high, low)
        user, reply = worded(rng, Split.TRAIN, rng.choice(_PLUS)), f"{a} + {b} = {a + b}."
    else:
        a, b = high, low
        user, reply = worded(rng, Split.TRAIN, rng.choice(_MINUS)), f"{a} - {b} = {a - b}."
    return Turn(Skill.SUM, user.format(a=a, b=b), (reply,), known)


def count(rng: random.Random, split: Split, known: Facts, longest: int) -> Turn:
    """A count of at most `longest` numbers; counts of 1 to 300 and 1 to 500 are always allowed in training."""
    first, last = _range(rng, longest)
    while held_out(f"count:{first}:{last}") != (split is Split.HELD_OUT):
        first, last = _range(rng, longest)
    template = rng.choice(_COUNT_FROM_ONE if first == 1 and chance(rng, 0.5) else _COUNT)
    user = worded(rng, Split.TRAIN, template).format(a=first, b=last)
    return Turn(Skill.COUNT, user, (counted(first, last),), known)


def counted(first: int, last: int) -> str:
    """The reply to a request to count: "1, 2, 3."."""
    return ", ".join(str(number) for number in range(first, last + 1)) + "."


def go_on(rng: random.Random, split: Split, known: Facts, history: list[Message]) -> Turn:
    """The user asks to go on; right is the rest of the count that was cut off just before, else a refusal."""
    user = rng.choice(_GO_ON)
    heard = user.lower().rstrip(".?").replace(",", "")
    is_heard = split is Split.TRAIN and chance(rng, _HEARD) and not held_out(heard)
    user = heard if is_heard else worded(rng, split, user)
    if len(history) > 1 and history[-1].interrupted and (seen := _CUT_COUNT.fullmatch(history[-1].content)):
        requests = " ".join(message.content for message in history if message.role == "user")
        last = int(re.findall(r"\d+", requests)[-1])
        if int(seen[1]) < last:
            return Turn(Skill.GO_ON, user, (counted(int(seen[1]) + 1, last),), known)
    return Turn(Skill.REFUSAL, user, (NOTHING_TO_GO_ON,), known)


def sum_out_of_reach(rng: random.Random, split: Split, known: Facts) -> Turn:
    """A sum the model must decline: too large, below zero, or another operation."""
    below_zero, too_large, _ = rng.choices(((1, 0, 0), (0, 1, 0), (0, 0, 1)), (3, 3, 4))[0]
    if below_zero:
        a, b = sorted(rng.sample(range(LARGEST_OPERAND + 1), 2))
        return Turn(
            Skill.REFUSAL,
            worded(rng, split, rng.choice(_ORDERED_MINUS)).format(a=a, b=b),
            (BELOW_ZERO,),
            known,
        )
    if too_large:
        numbers = [rng.randint(LARGEST_OPERAND + 1, 9999 if chance(rng, 0.4) else 999), rng.randint(0, 300)]
        rng.shuffle(numbers)
        user = worded(rng, split, rng.choice(_PLUS if numbers[0] < numbers[1] else _PLUS + _MINUS))
        return Turn(Skill.REFUSAL, user.format(a=numbers[0], b=numbers[1]), (TOO_HARD,), known)
    user = (
        worded(rng, split, rng.choice(_OTHER_SUMS))
        .replace("{word}", "{words[0]}", 1)
        .replace("{word}", "{words[1]}", 1)
    )
    a, b, c = (rng.randint(0, 120) for _ in range(3))
    return Turn(
        Skill.REFUSAL, user.format(a=a, b=b, c=c, words=rng.choices(_NUMBER_WORDS, k=2)), (TOO_HARD,), known
    )


def count_out_of_reach(rng: random.Random, split: Split, known: Facts) -> Turn:
    """A count the model must decline: downwards, in steps, too far."""
    a, b = sorted(rng.sample(range(LARGEST_COUNT + 1), 2))
    far = rng.randint(LARGEST_COUNT + 1, 999 if chance(rng, 0.7) else 20_000)
    user = worded(rng, split, rng.choice(_OTHER_COUNTS)).format(a=a, b=b, far=far, step=rng.randint(2, 25))
    return Turn(Skill.REFUSAL, user, (TOO_FAR,), known)


def _operand(rng: random.Random) -> int:
    return rng.randint(0, 20 if chance(rng, 0.25) else LARGEST_OPERAND)


def _range(rng: random.Random, longest: int) -> tuple[int, int]:
    length = rng.randint(2, longest)
    if longest >= LARGEST_COUNT and chance(rng, 0.15):
        return 1, rng.choice((300, LARGEST_COUNT))
    first = rng.choice((0, 1, 1, 1)) if chance(rng, 0.4) else rng.randint(0, LARGEST_COUNT - length)
    return first, min(first + length, LARGEST_COUNT)
