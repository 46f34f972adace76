"""Turns any turn into one that is thought about first, in a short `<think>` block before the reply.

A thought comes when the user asks for it in words, or when the prompt begins it. An empty block that the prompt gives means:
no thought.
"""

import random
from dataclasses import replace

from demo_model.calls import FAILED
from demo_model.holdout import Split, held_out, pick
from demo_model.turns import Skill, ToolRound, Turn
from demo_model.wording import worded

BEGUN = "<think>\n"
EMPTY = "<think>\n\n</think>\n\n"
_BEFORE = (
    "Think first: {}", "Think first. {}", "Think before you answer: {}", "Think step by step: {}", "Think step by step. {}", "Please think first: {}", "First think, then answer: {}",
    "Reason step by step: {}", "Reason first: {}", "Think about it first: {}", "Think aloud: {}", "Take your time and think: {}", "Show your reasoning: {}", "Think hard: {}",
    "Think carefully: {}", "Let's think step by step: {}", "Think, then answer: {}", "Think out loud: {}", "Before you answer, think: {}", "Explain your steps: {}",
    "Please think step by step: {}", "Think it through: {}", "Show your steps: {}", "Reason, then answer: {}", "Think first, then answer. {}", "First think: {}",
    "Show how you think: {}", "Show what you think: {}", "Think before you reply: {}",
)  # fmt: skip
_AFTER = (
    "{} Think first.", "{} Think step by step.", "{} Please think first.", "{} Think before you answer.", "{} Reason step by step.", "{} Show your reasoning.", "{} Think carefully.",
    "{} Think aloud.", "{} Let's think step by step.", "{} Explain your steps.", "{} (think first)", "{} Take your time and think.",
    "{} First think.", "{} Think about it first.", "{} Think it through.", "{} Reason first.",
)  # fmt: skip
_THOUGHTS = {
    Skill.SMALL_TALK: "This is small talk.",
    Skill.FACT: "The user tells me something to remember.",
    Skill.NAME: "The user told me the name.",
    Skill.CITY: "The user told me the city.",
    Skill.COLOUR: "The user told me the colour.",
    Skill.UNKNOWN_FACT: "The user never told me that.",
    Skill.COUNT: "I count upwards in ones.",
    Skill.GO_ON: "I go on with the next number.",
    Skill.REPEAT: "I say the same words again.",
    Skill.LAST_REPLY: "I look at my last reply.",
    Skill.STORY: "A story needs a hero, a trouble and an end.",
    Skill.SERVICE: "This is about Midstream or about me.",
    Skill.PHRASE: "I know this phrase.",
    Skill.REFUSAL: "This is not among my skills.",
    Skill.NO_CALL: "I have no tool for this.",
    Skill.JSON: "I write each name with its value.",
}


def think_first(rng: random.Random, split: Split, turn: Turn) -> Turn:
    """The same turn, asked so that it is thought about."""
    template = worded(rng, Split.TRAIN, pick(rng, split, "think wording, template", (*_BEFORE, *_AFTER)))
    before = f"{BEGUN}{_thought(turn)}\n</think>\n\n"
    prompted = replace(turn, user=template.format(turn.user))
    if turn.called is not None:
        return replace(prompted, called=ToolRound(before + turn.called.calls, turn.called.results))
    return replace(prompted, replies=tuple(before + reply for reply in turn.replies))


def begun(turn: Turn) -> Turn:
    """The same turn where the prompt begins a thought: before the calls, and before the reply to their results."""
    before = f"{BEGUN}{_thought(turn)}\n</think>\n\n"
    called = None if turn.called is None else ToolRound(before + turn.called.calls, turn.called.results)
    if called is not None:
        outcome = "The tool failed." if turn.replies == (FAILED,) else "The tool has answered."
        before = f"{BEGUN}{outcome}\n</think>\n\n"
    return replace(turn, given=BEGUN, called=called, replies=tuple(before + reply for reply in turn.replies))


def skipped(turn: Turn) -> Turn:
    """The same turn where the prompt holds an empty thought: nothing is thought."""
    called = None if turn.called is None else ToolRound(EMPTY + turn.called.calls, turn.called.results)
    return replace(turn, given=EMPTY, called=called, replies=tuple(EMPTY + reply for reply in turn.replies))


def shows_held_out(turn: Turn) -> bool:
    """Whether the thought would hold a sum that only the evaluation may use."""
    if turn.skill is not Skill.SUM:
        return False
    pairs = (sorted((first, second)) for first, _, second in _halves(turn.replies[0]))
    return any(held_out(f"sum:{low}:{high}") for low, high in pairs)


def _thought(turn: Turn) -> str:
    if turn.called is not None:
        return "I need a tool for this."
    if turn.skill is Skill.SUM:
        return _steps(turn.replies[0])
    return _THOUGHTS[turn.skill]


def _steps(reply: str) -> str:
    """The steps of a sum in the head: tens first, then ones."""
    first, second = _halves(reply)
    (a, operator, tens), (between, _, ones) = first, second
    b, end = tens + ones, between + ones if operator == "+" else between - ones
    return f"{a} {operator} {b}: {a} {operator} {tens} = {between}, {between} {operator} {ones} = {end}."


def _halves(reply: str) -> tuple[tuple[int, str, int], tuple[int, str, int]]:
    """The two sums that a sum is worked out by."""
    a_text, operator, b_text, *_ = reply.split()
    a, b = int(a_text), int(b_text)
    ones, tens = b % 10, b - b % 10
    return (a, operator, tens), (a + tens if operator == "+" else a - tens, operator, ones)
