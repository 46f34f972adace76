"""Tools as the model reads and writes them: lists, calls and results, and the tools that dialogues offer.

The spelling is Hermes', as short as it can be: of a tool its name, and the names and types of its parameters. Names vary, so
that the model copies them from the list.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from demo_model import values
from demo_model.holdout import Split, chance, draw
from demo_model.turns import ToolRound

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: its name, the type of each parameter, and what it is for (empty: nothing that dialogues ask for)."""

    name: str
    parameters: tuple[tuple[str, str], ...] = ()
    purpose: str = ""

    @property
    def schema(self) -> dict[str, object]:
        """The tool as OpenAI's API and transformers' templates take it."""
        properties = {name: {"type": kind} for name, kind in self.parameters}
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        return {"type": "function", "function": {"name": self.name, "parameters": parameters}}


CLOCK, CALCULATOR, DICE, WEATHER, LOOK_UP = "clock", "calculator", "dice", "weather", "look up"
_NAMES = {
    CLOCK: (("get_time", 6), ("get_current_time", 1), ("current_time", 1), ("clock", 1), ("time_now", 1)),
    CALCULATOR: (("calculate", 6), ("calculator", 2), ("compute", 1), ("evaluate", 1), ("calc", 1)),
    DICE: (("roll_dice", 6), ("roll_die", 1), ("dice", 1), ("throw_dice", 1), ("roll", 1)),
    WEATHER: (("get_weather", 6), ("get_current_weather", 1), ("weather", 1), ("fetch_weather", 1), ("weather_in", 1)),
}  # fmt: skip
_PARAMETERS = {
    CLOCK: None,
    CALCULATOR: ("string", (("expression", 6), ("formula", 1), ("input", 1), ("query", 1))),
    DICE: ("integer", (("sides", 6), ("faces", 1), ("size", 1), ("n", 1))),
    WEATHER: ("string", (("city", 6), ("location", 2), ("place", 1), ("town", 1))),
}
_VERBS = "get find list create delete search send read write open update add remove show set start stop check fetch look_up play book order".split()  # noqa: SIM905
_NOUNS = "file note calendar event email message page user memory chat channel web image song ticket task order invoice list folder model knowledge code skill post".split()  # noqa: SIM905
_TYPES = ("string", "string", "string", "integer", "number", "boolean", "array", "object")
_PARAMETER_NAMES = "query name id count text path title content start end limit url key value user date tags page size mode to subject body".split()  # noqa: SIM905


def known(rng: random.Random, purpose: str) -> Tool:
    """A tool of that purpose, mostly under its plain name."""
    plain = chance(rng, 0.6)
    name = _NAMES[purpose][0][0] if plain else _weighted(rng, _NAMES[purpose])
    described = _PARAMETERS[purpose]
    if described is None:
        return Tool(name, purpose=purpose)
    kind, names = described
    return Tool(name, ((names[0][0] if plain else _weighted(rng, names), kind),), purpose)


def look_up(rng: random.Random, split: Split) -> Tool:
    """A tool that looks up an invented thing, `get_zorb(city)`; that thing is of the wanted split."""
    thing = draw(split, "looked up", lambda: values.invented(rng, 1, 3))
    verb = rng.choice(("get", "get", "get", "find", "fetch", "look_up", "read"))
    if chance(rng, 0.25):
        return Tool(f"{verb}_{thing}", purpose=LOOK_UP)
    parameter = rng.choice((values.word(rng, split), rng.choice(_PARAMETER_NAMES), "city", "name"))
    return Tool(f"{verb}_{thing}", ((parameter, "string"),), LOOK_UP)


def decoy(rng: random.Random, split: Split) -> Tool:
    """A tool that no dialogue needs, whose verb is one that people ask for a look-up with."""
    return other(rng, split, ("find", "look_up", "show", "fetch", "read", "get"))


def other(rng: random.Random, split: Split, verbs: Sequence[str] = _VERBS) -> Tool:
    """A tool that no dialogue needs, of up to four parameters."""
    noun = rng.choice(_NOUNS) if chance(rng, 0.7) else values.word(rng, split)
    parts = [rng.choice(verbs), noun, *([rng.choice(_NOUNS)] if chance(rng, 0.2) else [])]
    names = rng.sample(_PARAMETER_NAMES, rng.choice((0, 1, 1, 2, 2, 3, 4)))
    return Tool("_".join(parts), tuple((name, rng.choice(_TYPES)) for name in names))


def offered(rng: random.Random, split: Split, needed: Sequence[Tool], *, others: int) -> tuple[Tool, ...]:
    """`needed` among up to `others` other tools, in any order, no name twice."""
    tools = {tool.name: tool for tool in [other(rng, split) for _ in range(rng.randint(0, others))]}
    mixed = list((tools | {tool.name: tool for tool in needed}).values())
    rng.shuffle(mixed)
    return tuple(mixed)


def listed(tools: Sequence[Tool]) -> str:
    """The part of a system prompt that offers tools."""
    return "\n".join(("<tools>", *map(_listed, tools), "</tools>"))


def call(tool: Tool, *arguments: Value) -> str:
    """What the model writes to call `tool` with these values of its parameters."""
    named = dict(zip((name for name, _ in tool.parameters), arguments, strict=True))
    text = json.dumps({"name": tool.name, "arguments": named}, ensure_ascii=False)
    return f"<tool_call>\n{text}\n</tool_call>"


def called(calls: Sequence[str], results: Sequence[str]) -> ToolRound:
    """Calls and their results, in one message each."""
    responses = (f"<tool_response>\n{result}\n</tool_response>" for result in results)
    return ToolRound("\n".join(calls), "\n".join(responses))


def _listed(tool: Tool) -> str:
    return json.dumps({"name": tool.name, "parameters": dict(tool.parameters)}, ensure_ascii=False)


def _weighted(rng: random.Random, shares: Sequence[tuple[str, int]]) -> str:
    return rng.choices([name for name, _ in shares], [share for _, share in shares])[0]
