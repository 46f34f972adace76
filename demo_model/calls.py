"""Turns that need a tool: the question, the calls, their results, and the reply that tells them.

Only a tool of the dialogue's list is called, under the name that it has there. What a result says is copied.
"""

import json
import random
from collections.abc import Callable, Sequence

from demo_model import tool_questions, toolbox, values
from demo_model.holdout import Split, chance, draw, held_out, pick
from demo_model.refusals import CANNOT
from demo_model.toolbox import CLOCK, DICE, LOOK_UP, WEATHER, Tool
from demo_model.turns import Facts, Skill, Turn
from demo_model.wording import worded

FAILED = "I can't tell: the tool failed."
_FAILED_SHARE = 0.08
_FAILURES = (
    "Error: {why}", "error: {why}", '{{"error": "{why}"}}', "The tool failed: {why}", "Failed: {why}", "Tool error: {why}", "Exception: {why}", "The call failed: {why}",
    "ERROR {why}", '{{"status": "error", "message": "{why}"}}', "Call failed. {why}", "Could not run the tool: {why}", "cancelled", "denied", "The call was cancelled.",
    "The user denied the call.", "lost", "expired", "timed out", "The tool took too long.", "There is no such tool.", "No result.", "failed", "error", "unavailable",
    "The call was lost.", "The call expired.", "The tool is not available.", "Denied by the user.", '{{"error": {{"message": "{why}"}}}}', "The tool did not answer in time.",
)  # fmt: skip
_REASONS = (
    "timeout", "not found", "no connection", "the service is down", "unknown city", "bad request", "connection refused", "access denied", "too many requests", "internal error",
    "out of memory", "invalid argument", "no such place", "the clock has stopped", "not allowed", "quota exceeded", "unreachable", "500", "network is unreachable",
)  # fmt: skip
_SKIES = (
    "rain", "sunny", "snow", "cloudy", "clear sky", "light rain", "fog", "storm", "windy", "overcast", "showers", "partly cloudy", "hail", "heavy snow", "drizzle", "thunder",
    "sunny with a breeze", "mist", "dry", "sun", "clouds", "hot", "freezing rain", "bright", "humid",
)  # fmt: skip
_NOT_OFFERED = {
    CLOCK: ("time wording", tool_questions.TIME),
    WEATHER: ("weather wording", tool_questions.WEATHER),
    DICE: ("die of wording", tool_questions.DIE_OF),
    LOOK_UP: ("look-up of wording", tool_questions.LOOK_UP_OF),
}

ToolExchange = tuple[Skill, str, Sequence[str], Sequence[tuple[str, str]]]
"""A skill, a question, the calls, and each call's result with what the reply says of it."""


def clock(rng: random.Random, split: Split, known: Facts, tools: Sequence[Tool]) -> Turn:
    """The user asks for the time."""
    user = worded(rng, Split.TRAIN, pick(rng, split, "time wording", tool_questions.TIME))
    results = [_time(rng)]
    return tool_turn(rng, known, (Skill.CLOCK, user, [toolbox.call(_of(tools, CLOCK))], results))


def weather(rng: random.Random, split: Split, known: Facts, tools: Sequence[Tool]) -> Turn:
    """The user asks for the weather in a city."""
    city = _city(rng, split)
    user = worded(rng, Split.TRAIN, pick(rng, split, "weather wording", tool_questions.WEATHER)).format(
        city=city
    )
    call = toolbox.call(_of(tools, WEATHER), city)
    return tool_turn(rng, known, (Skill.WEATHER, user, [call], [_weather(rng, city)]))


def dice(rng: random.Random, split: Split, known: Facts, tools: Sequence[Tool]) -> Turn:
    """The user asks for a roll: of six sides, unless another number is named."""
    if chance(rng, 0.35):
        sides, template = 6, pick(rng, split, "die wording", tool_questions.DIE)
    else:
        sides, template = _sides(rng, split), pick(rng, split, "die of wording", tool_questions.DIE_OF)
    user = worded(rng, Split.TRAIN, template).format(n=sides)
    return tool_turn(
        rng, known, (Skill.DICE, user, [toolbox.call(_of(tools, DICE), sides)], [_roll(rng, sides)])
    )


def two(rng: random.Random, split: Split, known: Facts, tools: Sequence[Tool]) -> Turn:
    """The user asks for two things at once, which two calls of one message tell."""
    purposes = {tool.purpose for tool in tools}
    kinds: list[tuple[Callable[..., ToolExchange], int]] = []
    if WEATHER in purposes:
        kinds.append((_two_cities, 6))
    if {WEATHER, CLOCK} <= purposes:
        kinds.append((_weather_and_time, 3))
    if DICE in purposes:
        kinds.append((_two_dice, 3))
    write = rng.choices([kind for kind, _ in kinds], [share for _, share in kinds])[0]
    return tool_turn(rng, known, write(rng, split, tools))


def look_up(rng: random.Random, split: Split, known: Facts, tools: Sequence[Tool]) -> Turn:
    """The user asks for an invented thing that a tool's name names."""
    offered = [tool for tool in tools if tool.purpose == LOOK_UP]
    tool = rng.choice(offered) if offered[1:] else offered[0]
    thing = tool.name.rsplit("_", 1)[-1]
    result = rng.choice((values.word(rng, split), str(rng.randint(0, 9999)), values.city(rng, split)))
    if not tool.parameters:
        user = worded(rng, Split.TRAIN, pick(rng, split, "look-up wording", tool_questions.LOOK_UP)).format(
            thing=thing
        )
        call, about = toolbox.call(tool), f"The {thing}"
    else:
        of = rng.choice((values.city, values.name, values.word))(rng, split)
        wording = worded(rng, Split.TRAIN, pick(rng, split, "look-up of wording", tool_questions.LOOK_UP_OF))
        user = wording.format(thing=thing, of=of)
        call, about = toolbox.call(tool, of), f"The {thing} of {of}"
    return tool_turn(rng, known, (Skill.UNSEEN_TOOL, user, [call], [(result, f"{about}: {result}.")]))


def not_offered(rng: random.Random, split: Split, known: Facts, tools: Sequence[Tool]) -> Turn:
    """The user asks for what a tool could do, and no such tool is offered."""
    purposes = {tool.purpose for tool in tools}
    missing = [purpose for purpose in (CLOCK, WEATHER, DICE, LOOK_UP) if purpose not in purposes]
    if split is Split.TRAIN and LOOK_UP in purposes and chance(rng, 0.3):
        missing.append(LOOK_UP)  # of another thing than those that are offered
    purpose = rng.choice(missing or [LOOK_UP])
    template = worded(rng, Split.TRAIN, pick(rng, split, *_NOT_OFFERED[purpose]))
    thing = _not_offered_thing(rng, split)
    user = template.format(city=_city(rng, split), n=_sides(rng, split), thing=thing, of=_city(rng, split))
    return Turn(Skill.NO_CALL, user, (CANNOT,), known)


def _not_offered_thing(rng: random.Random, split: Split) -> str:
    """An invented thing; of the probes, too, any: that no tool names it is all that counts."""
    if split is Split.HELD_OUT:
        return values.invented(rng, 1, 3)
    return draw(split, "looked up", lambda: values.invented(rng, 1, 3))


def tool_turn(
    rng: random.Random, known: Facts, exchange: ToolExchange, *, failed_share: float = _FAILED_SHARE
) -> Turn:
    """The turn of a question, its calls and their results; all of these have failed in some turns."""
    skill, user, calls, results = exchange
    if chance(rng, failed_share):
        return failing(rng, known, user, calls)
    reply = " ".join(text for _, text in results)
    return Turn(skill, user, (reply,), known, toolbox.called(calls, [result for result, _ in results]))


def failing(rng: random.Random, known: Facts, user: str, calls: Sequence[str]) -> Turn:
    """The turn of a question whose calls fail."""
    results = [rng.choice(_FAILURES).format(why=rng.choice(_REASONS)) for _ in calls]
    return Turn(Skill.FAILED, user, (FAILED,), known, toolbox.called(calls, results))


def _two_cities(rng: random.Random, split: Split, tools: Sequence[Tool]) -> ToolExchange:
    a, b = _city(rng, split), _city(rng, split)
    user = worded(rng, Split.TRAIN, pick(rng, split, "two cities", tool_questions.TWO_CITIES)).format(
        a=a, b=b
    )
    tool = _of(tools, WEATHER)
    calls = [toolbox.call(tool, city) for city in (a, b)]
    return Skill.TWO_CALLS, user, calls, [_weather(rng, city) for city in (a, b)]


def _weather_and_time(rng: random.Random, split: Split, tools: Sequence[Tool]) -> ToolExchange:
    city = _city(rng, split)
    template = worded(rng, Split.TRAIN, pick(rng, split, "weather and time", tool_questions.WEATHER_AND_TIME))
    calls = [toolbox.call(_of(tools, WEATHER), city), toolbox.call(_of(tools, CLOCK))]
    return Skill.TWO_CALLS, template.format(city=city), calls, [_weather(rng, city), _time(rng)]


def _two_dice(rng: random.Random, split: Split, tools: Sequence[Tool]) -> ToolExchange:
    a, b = _sides(rng, split), _sides(rng, split)
    user = worded(rng, Split.TRAIN, pick(rng, split, "two dice", tool_questions.TWO_DICE)).format(a=a, b=b)
    calls = [toolbox.call(_of(tools, DICE), sides) for sides in (a, b)]
    return Skill.TWO_CALLS, user, calls, [_roll(rng, sides) for sides in (a, b)]


def _of(tools: Sequence[Tool], purpose: str) -> Tool:
    return next(tool for tool in tools if tool.purpose == purpose)


def _city(rng: random.Random, split: Split) -> str:
    city = values.city(rng, split)
    return city.lower() if chance(rng, 0.1) else city


def _sides(rng: random.Random, split: Split) -> int:
    while True:
        sides = rng.choice((4, 6, 8, 10, 12, 20, 100)) if chance(rng, 0.4) else rng.randint(2, 999)
        if held_out(f"sides:{sides}") == (split is Split.HELD_OUT):
            return sides


def _time(rng: random.Random) -> tuple[str, str]:
    time = f"{rng.randrange(24):02}:{rng.randrange(60):02}"
    day = f"20{rng.randint(24, 39)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    seconds = f"{rng.randrange(60):02}"
    shapes = (
        time, time, time, f"{time}:{seconds}", f"{day}T{time}:{seconds}+00:00", f"{day}T{time}:{seconds}Z", f"{day} {time}", f"{day} {time}:{seconds}", f"{day}T{time}",
        json.dumps({"time": time}), json.dumps({"time": f"{time}:{seconds}"}), json.dumps({"date": day, "time": time}), f"It is {time}.", f"{time} UTC",
    )  # fmt: skip
    return rng.choice(shapes), f"It is {time}."


def _weather(rng: random.Random, city: str) -> tuple[str, str]:
    sky, degrees = rng.choice(_SKIES), rng.randint(-20, 42)
    plain = f"{sky}, {degrees} °C"
    names = rng.choice(("temperature", "temp", "celsius", "degrees", "temperature_c", "temp_c"))
    skies = rng.choice(("sky", "weather", "condition", "conditions", "summary", "description"))
    pairs: list[tuple[str, str | int]] = [(names, degrees), (skies, sky)]
    rng.shuffle(pairs)
    if chance(rng, 0.4):
        pairs.insert(0, (rng.choice(("city", "location", "place")), city))
    if chance(rng, 0.3):
        pairs.append((rng.choice(("humidity", "wind", "pressure")), rng.randint(1, 99)))
    shapes = (plain, plain, json.dumps(dict(pairs), ensure_ascii=False), f"{city}: {plain}")
    return rng.choice(shapes), f"The weather in {city}: {plain}."


def _roll(rng: random.Random, sides: int) -> tuple[str, str]:
    rolled = rng.randint(1, sides)
    keys = ("result", "rolled", "value", "roll", "number")
    shapes = (str(rolled), str(rolled), json.dumps({rng.choice(keys): rolled}), json.dumps({"sides": sides, "result": rolled}))  # fmt: skip
    return rng.choice(shapes), f"You rolled {rolled}."
