"""Which tools a dialogue offers, and the turns that they make possible.

Knows nothing of how a turn is worded.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from demo_model import calculator, calls, toolbox
from demo_model.holdout import Split, chance
from demo_model.refusals import CANNOT
from demo_model.toolbox import CALCULATOR, CLOCK, DICE, LOOK_UP, WEATHER, Tool
from demo_model.turns import Facts, Skill, Turn, Writer

_PURPOSES = (CLOCK, CALCULATOR, DICE, WEATHER, LOOK_UP)
_MANY = 36
_Caller = Callable[[random.Random, Split, Facts, Sequence[Tool]], Turn]
_CALLERS: Mapping[str, tuple[_Caller, float]] = {
    CLOCK: (calls.clock, 2),
    CALCULATOR: (calculator.calculate, 5),
    DICE: (calls.dice, 3),
    WEATHER: (calls.weather, 4),
    LOOK_UP: (calls.look_up, 7),
}
_NEEDED = {
    Skill.CLOCK: (CLOCK,),
    Skill.CALCULATOR: (CALCULATOR,),
    Skill.DICE: (DICE,),
    Skill.WEATHER: (WEATHER,),
    Skill.TWO_CALLS: (CLOCK, WEATHER, DICE),
    Skill.UNSEEN_TOOL: (LOOK_UP,),
}
CALLING = (*_NEEDED, Skill.FAILED)
_ABOUT = {
    CLOCK: ("time", "clock", "hour", "late", "date", "day", "old"),
    WEATHER: ("weather", "rain", "snow", "warm", "cold", "sun", "temperature", "degrees", "sky", "outside"),
    DICE: ("roll", "dice", "die"),
    CALCULATOR: (),
    LOOK_UP: (),
}


def toolset(rng: random.Random, split: Split, skill: Skill | None = None) -> tuple[Tool, ...]:
    """Some tools for a dialogue, those among them that a question of `skill` needs."""
    purposes = {purpose for purpose in _PURPOSES if chance(rng, 0.4)} | set(
        _NEEDED.get(skill, ()) if skill else ()
    )
    if skill is Skill.FAILED:
        purposes.add(rng.choice(_PURPOSES))
    needed = [_tool(rng, split, purpose) for purpose in _PURPOSES if purpose in purposes]
    if split is Split.TRAIN and LOOK_UP in purposes:
        # Several of a kind under different verbs: which name is called hangs on the list, not on the question's verb.
        needed += [toolbox.look_up(rng, split) for _ in range(rng.choice((0, 0, 0, 1, 2)))]
        needed += [toolbox.decoy(rng, split) for _ in range(rng.choice((0, 1, 2, 3)))]
    return toolbox.offered(rng, split, needed, others=_MANY if chance(rng, 0.015) else 3)


def caller(rng: random.Random, tools: Sequence[Tool], skill: Skill | None = None) -> Writer | None:
    """Writes a turn that calls some of `tools`, those of `skill` if it is named; None where none has a purpose."""
    purposes = {tool.purpose for tool in tools} - {""}
    if skill in _NEEDED and skill is not Skill.TWO_CALLS:
        purposes = set(_NEEDED[skill])
    shares = [_CALLERS[purpose] for purpose in _PURPOSES if purpose in purposes]
    if skill is Skill.TWO_CALLS or (skill in {None, Skill.FAILED} and purposes & {WEATHER, DICE}):
        shares = [*(shares if skill is not Skill.TWO_CALLS else ()), (calls.two, 5)]
    if not shares:
        return None
    write = rng.choices([write for write, _ in shares], [share for _, share in shares])[0]
    return partial(_with_tools, write, tools)


def can_look_up(tools: Sequence[Tool]) -> bool:
    """Whether one of `tools` looks up an invented thing."""
    return any(tool.purpose == LOOK_UP for tool in tools)


def not_offered(tools: Sequence[Tool]) -> Writer:
    """Writes a question for a tool that is not among `tools`."""
    return partial(_with_tools, calls.not_offered, tools)


def answerable(turn: Turn, tools: Sequence[Tool]) -> bool:
    """Whether a refusal is no refusal: one of `tools` may be good for it."""
    if turn.skill is not Skill.REFUSAL:
        return False
    purposes = {tool.purpose for tool in tools}
    if CALCULATOR in purposes and turn.replies != (CANNOT,):
        return True
    question = turn.user.lower()
    return any(word in question for purpose in purposes - {""} for word in _ABOUT[purpose])


def _with_tools(
    write: _Caller, tools: Sequence[Tool], rng: random.Random, split: Split, known: Facts
) -> Turn:
    return write(rng, split, known, tools)


def _tool(rng: random.Random, split: Split, purpose: str) -> Tool:
    if purpose != LOOK_UP:
        return toolbox.known(rng, purpose)
    return toolbox.look_up(rng, split)
