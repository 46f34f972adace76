"""Turns that need a calculator: sums that the model can't do in its head, written as an expression.

The numbers, and the result, are copied. Held out are expressions and wordings.
"""

import random
from collections.abc import Sequence

from demo_model import toolbox
from demo_model.calls import tool_turn
from demo_model.holdout import Split, chance, draw, pick
from demo_model.numbers import LARGEST_OPERAND
from demo_model.toolbox import CALCULATOR, Tool
from demo_model.turns import Facts, Skill, Turn
from demo_model.wording import worded

_TOP = {
    "*": (
        "What is {a} times {b}?", "What's {a} times {b}?", "{a} * {b}", "{a}*{b}?", "{a} × {b}", "What is {a} × {b}?", "{a} x {b}?", "Multiply {a} by {b}.", "How much is {a} times {b}?",  # noqa: RUF001
        "{a}*{b}=", "{a} times {b}?", "Calculate {a} * {b}.", "What is {a} multiplied by {b}?", "Compute {a} times {b}.", "What is the product of {a} and {b}?", "How much is {a} × {b}?",  # noqa: RUF001
        "I have {a} bags of {b} nuts. How many nuts?", "There are {a} rows of {b} chairs. How many chairs?", "A box holds {b} eggs. How many eggs are in {a} boxes?", "{a} x {b} = ?", "{a}x{b}",
        "Can you multiply {a} by {b}?", "What does {a}*{b} equal?", "{a} × {b} = ?", "I have {a} boxes of {b} apples. How many apples?", "What is {a}*{b}?", "What is {a} x {b}?",  # noqa: RUF001
    ),
    "/": (
        "What is {a} divided by {b}?", "What's {a} divided by {b}?", "{a} / {b}", "{a}/{b}?", "Divide {a} by {b}.", "How much is {a} divided by {b}?", "{a} ÷ {b}", "What is {a} / {b}?",
        "Calculate {a} / {b}.", "{a}/{b}=", "Compute {a} divided by {b}.", "What is {a} over {b}?", "{a} over {b}?", "How much is {a} over {b}?", "Can you divide {a} by {b}?", "What is {a}/{b}?", "{a} divided by {b}?", "What is {a} ÷ {b}?",
        "I share {a} apples among {b} people. How many does each get?", "{a} / {b} = ?", "Compute {a}/{b}.", "What does {a}/{b} equal?",
    ),
    "+": (
        "What is {a} plus {b}?", "What's {a} plus {b}?", "{a}+{b}?", "{a} + {b}", "{a} plus {b}?", "{a}+{b}=", "{a} + {b} = ?", "Add {a} and {b}.", "How much is {a} plus {b}?",
        "What is {a} + {b}?", "What is the sum of {a} and {b}?", "Can you add {a} and {b}?", "Compute {a} + {b}.", "Calculate {a} plus {b}.", "What does {a}+{b} equal?", "What is {a}+{b}?",
        "Sum {a} and {b}.", "How much is {a}+{b}?", "Calculate {a} + {b}.", "I have {a} apples and get {b} more. How many do I have?",
        "I have {a} pears and buy {b} more. How many do I have?", "There are {a} birds and {b} more come. How many are there?", "I had {a} coins and found {b}. How many do I have now?",
        "We have {a} cakes and bake {b} more. How many cakes?", "{a} apples and {b} pears: how many are they together?",
    ),
    "-": (
        "What is {a} minus {b}?", "What's {a} minus {b}?", "{a}-{b}?", "{a} - {b}", "{a} minus {b}?", "{a}-{b}=", "{a} - {b} = ?", "Subtract {b} from {a}.", "How much is {a} minus {b}?",
        "What is {a} - {b}?", "Take {b} away from {a}.", "What is {a}-{b}?", "Compute {a} - {b}.", "Can you subtract {b} from {a}?", "Calculate {a} minus {b}.", "What does {a}-{b} equal?",
        "How much is {a}-{b}?", "I have {a} apples and eat {b}. How many are left?",
        "I have {a} apples and give away {b}. How many do I have?", "There are {a} birds and {b} fly away. How many are left?", "I had {a} coins and lost {b}. How many do I have now?",
        "We have {a} cakes and eat {b} of them. How many are left?", "A train has {a} seats and {b} are taken. How many are free?", "From {a} pears I eat {b}. How many remain?",
    ),
}  # fmt: skip
_THREE = (
    "What is {a} {p} {b} {q} {c}?", "{a} {p} {b} {q} {c}", "{a}{p}{b}{q}{c}?", "Calculate {a} {p} {b} {q} {c}.", "Compute {a} {p} {b} {q} {c}.", "How much is {a} {p} {b} {q} {c}?",
    "{a} {p} {b} {q} {c} = ?", "What's {a}{p}{b}{q}{c}?", "What does {a} {p} {b} {q} {c} make?", "Work out {a} {p} {b} {q} {c}.", "Please calculate {a} {p} {b} {q} {c}.",
    "{a}{p}{b}{q}{c}=", "{a}{p}{b}{q}{c} = ?", "Calculate {a}{p}{b}{q}{c}.", "How much is {a}{p}{b}{q}{c}?", "Compute {a}{p}{b}{q}{c}.", "What does {a}{p}{b}{q}{c} make?", "Tell me {a}{p}{b}{q}{c}.",
    "Work out {a}{p}{b}{q}{c}.", "Please calculate {a}{p}{b}{q}{c}.", "What is the result of {a} {p} {b} {q} {c}?",
)  # fmt: skip
_OTHER = (
    ("What is {a} squared?", "{a} * {a}"), ("Square {a}.", "{a} * {a}"), ("What's the square of {a}?", "{a} * {a}"),
    ("Double {a}.", "{a} * 2"), ("What is twice {a}?", "{a} * 2"), ("What is half of {a}?", "{a} / 2"), ("Halve {a}.", "{a} / 2"),
    ("What is {a} percent of {b}?", "{a} * {b} / 100"), ("What is {a}% of {b}?", "{a} * {b} / 100"), ("How much is {a} percent of {b}?", "{a} * {b} / 100"),
)  # fmt: skip


def calculate(rng: random.Random, split: Split, known: Facts, tools: Sequence[Tool]) -> Turn:
    """The user asks for a sum out of the model's reach; the reply is the expression and what the tool made of it."""
    template, expression = _question(rng, split)
    tool = next(tool for tool in tools if tool.purpose == CALCULATOR)
    value = _value(expression)
    result = rng.choice((value, value, value, f'{{"result": {value}}}', f"{expression} = {value}"))
    results = [(result, f"{expression} = {value}.")]
    return tool_turn(rng, known, (Skill.CALCULATOR, template, [toolbox.call(tool, expression)], results))


def _question(rng: random.Random, split: Split) -> tuple[str, str]:
    """A question and its expression."""
    kind = rng.choices(("two", "three", "other"), (8, 2, 1))[0]
    numbers: dict[str, int | str] = {}

    def two() -> str:
        numbers["p"] = rng.choices("*/+-", (5, 2, 3, 3))[0]
        numbers["a"], numbers["b"] = _operands(rng, str(numbers["p"]))
        return "{a} {p} {b}".format(**numbers)

    def three() -> str:
        numbers["p"], numbers["q"] = rng.choices("*+-", k=2)
        numbers["a"], numbers["b"], numbers["c"] = (_number(rng, 999) for _ in range(3))
        return "{a} {p} {b} {q} {c}".format(**numbers)

    if kind == "other":
        numbers["a"], numbers["b"] = _number(rng, 999), _number(rng, 999)
        template, expression = rng.choice(_OTHER)
        return worded(rng, Split.TRAIN, template).format(**numbers), expression.format(**numbers)
    expression = draw(split, "expression", two if kind == "two" else three)
    which, wordings = (str(numbers["p"]), _TOP[str(numbers["p"])]) if kind == "two" else ("three", _THREE)
    template = pick(rng, split, f"{which} wording", wordings)
    return worded(rng, Split.TRAIN, template).format(**numbers), expression


def _operands(rng: random.Random, operator: str) -> tuple[int, int]:
    """Two numbers whose sum or difference the model can't do in its head."""
    if operator in "*/":
        return _number(rng, 9999), _number(rng, 999 if operator == "*" else 99, least=1)
    a, b = _number(rng, 9999, least=LARGEST_OPERAND + 1), _number(rng, 9999)
    if operator == "-" and chance(rng, 0.2):
        a, b = sorted(rng.sample(range(LARGEST_OPERAND + 1), 2))
    return (a, b) if operator == "-" or chance(rng, 0.5) else (b, a)


def _number(rng: random.Random, most: int, *, least: int = 2) -> int:
    """A number of any length up to that of `most`."""
    digits = rng.randint(1, len(str(most)))
    return min(most, max(least, rng.randint(10 ** (digits - 1), 10**digits - 1)))


def _value(expression: str) -> str:
    """What Python's own arithmetic gives, to four places."""
    # The expression was just written here: three numbers and two operators at most.
    value = round(float(eval(expression, {"__builtins__": {}})), 4)  # noqa: S307
    return str(int(value)) if value == int(value) else str(value)
