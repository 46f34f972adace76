"""Writes the dialogues: turns of every skill mixed freely, interrupted anywhere, with or without tools and a system prompt.

`write` makes training dialogues, `probe` makes questions for the evaluation; both depend on nothing but the random
generator they are given.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from demo_model import (
    echo,
    facts,
    json_replies,
    numbers,
    phrases,
    refusals,
    smalltalk,
    stories,
    thinking,
    tool_turns,
    toolbox,
)
from demo_model.holdout import Split, chance
from demo_model.toolbox import Tool
from demo_model.turns import Dialogue, Facts, Message, Probe, Skill, Turn, Writer

SYSTEM_PROMPTS = (
    "You are a helpful assistant.", "You are a helpful assistant.", "You are Midstream's demo model.", "Answer briefly.", "Be kind and concise.",
    "You are a friendly chat partner.", "You are a small demo model. Say so when you cannot answer.", "Please be polite.", "You are an assistant in a demo.",
    "Keep your answers short.", "You chat with visitors of a web page.", "You are a helpful, honest assistant. Today is a good day.",
)  # fmt: skip
_SHORT_COUNTS = 100
_NEAR_THE_END = 24
_RECALLED = (Skill.NAME, Skill.CITY, Skill.COLOUR)
# The share of dialogues with tools; the shares of turns thought about by nobody's wish, because the
# user says so, because the prompt begins a thought, and of those where the prompt holds an empty one.
_WITH_TOOLS, _ROOM_FOR_CALLS = 0.65, 250
_LEFT = 0.03  # the share of turns that are stopped between a tool's result and the reply
_THOUGHT_SHARES = (74, 14, 6, 6)


@dataclass(frozen=True, slots=True)
class _Mix:
    """How often turns are of some kinds: shares of 1, and weights beside the others' in `_choose`.

    `looking_up`: of calls where a tool looks up an invented thing, which is the hardest to choose. `again`: what was said last is asked for, four times as often if it was interrupted. `calling`: of turns where tools are offered. `going_on`: after a reply that was interrupted. `cut`: of counts and stories. `cut_at_words`: of interrupted counts, those cut behind a word, as where it was heard or shown.
    """

    calling: float
    going_on: float
    cut: float
    counts: int
    short_counts: int
    not_offered: int
    not_offered_beside_tools: int
    again: float
    looking_up: float
    stories: int
    cut_at_words: float


# Whether a tool is called must hang on what is offered: so training asks for what is not offered nearly as often as for what is.
# The mix of the evaluation's histories stays as it is, so that its questions, and figures of different trainings, compare.
_MIXES = {
    Split.TRAIN: _Mix(0.55, 0.8, 0.5, 22, 14, 14, 66, 0.12, 0.8, 10, 0.6),
    Split.HELD_OUT: _Mix(0.7, 0.6, 0.35, 12, 6, 10, 32, 0.0, 0.0, 6, 0.0),
}
_TOOLS_PROBED = dict.fromkeys((*tool_turns.CALLING, Skill.NO_CALL), 1.0) | {
    Skill.THINKING: 0.5,
    Skill.JSON: 0.3,
}


def write(rng: random.Random, *, most_characters: int, longest_count: int) -> Dialogue:
    """A training dialogue of about `most_characters`; no count in it exceeds `longest_count` numbers unless resumed."""
    tools = tool_turns.toolset(rng, Split.TRAIN) if chance(rng, _WITH_TOOLS) else ()
    most_characters += _ROOM_FOR_CALLS if tools else 0
    writer = _Dialogue(rng, Split.TRAIN, longest_count=longest_count, tools=tools)
    goal = rng.randint(most_characters // 3, most_characters)
    while writer.characters < goal:
        write_turn = _thoughtful(rng, _choose(rng, writer))
        if not writer.take(write_turn, most_characters) and writer.characters > goal // 2:
            break
    return Dialogue(tuple(writer.messages))


def probe(
    rng: random.Random, skill: Skill, *, split: Split = Split.HELD_OUT, longest_count: int = 60
) -> Probe:
    """A history of up to six turns, then a question of `skill`, with the replies that are right.

    The question, and the values in the history, are of `split`.
    """
    while True:
        tools = tool_turns.toolset(rng, split, skill) if chance(rng, _TOOLS_PROBED.get(skill, 0.0)) else ()
        writer = _Dialogue(rng, split, longest_count=longest_count, tools=tools)
        if skill in _RECALLED:
            for statement in rng.sample((facts.state_name, facts.state_city, facts.state_colour), 3):
                writer.take(statement)
        for _ in range(rng.randint(0, 3)):
            writer.take(_choose(rng, writer))
        if skill is Skill.GO_ON:
            writer.take(_counting(rng.randint(5, longest_count)), cut_chance=1.0)
        if skill is Skill.LAST_REPLY and chance(rng, 0.9):
            writer.take(
                _counting(rng.randint(5, longest_count)) if chance(rng, 0.5) else _choose(rng, writer),
                cut_chance=0.5,
            )
        turn = _of(skill, rng, writer)
        if turn is not None and turn.skill is skill:
            return _probe(writer.messages_with(turn), turn)


def plain_count(first: int, last: int) -> Probe:
    """The bare request to count from `first` to `last`, with no history."""
    question = Message("user", f"Count from {first} to {last}.")
    return Probe(Skill.COUNT, (question,), (numbers.counted(first, last),))


def _probe(messages: list[Message], turn: Turn) -> Probe:
    if turn.called is None:
        return Probe(turn.skill, tuple(messages), turn.replies, turn.given)
    then = [*messages, Message("assistant", turn.called.calls), Message("user", turn.called.results)]
    reply = Probe(turn.skill, tuple(then), turn.replies, turn.given)
    return Probe(turn.skill, tuple(messages), (turn.called.calls,), turn.given, reply)


def _of(skill: Skill, rng: random.Random, writer: "_Dialogue") -> Turn | None:
    """A turn of that skill; None, or one of another skill, where this dialogue gives no occasion for it."""
    if skill in _RECALLED:
        return facts.ask_fact(rng, writer.split, writer.known, skill)
    if skill in tool_turns.CALLING:
        call = tool_turns.caller(rng, writer.tools, skill)
        return None if call is None else call(rng, writer.split, writer.known)
    if skill in _IN_DIALOGUES:
        return _IN_DIALOGUES[skill](rng, writer)
    return _WRITERS[skill](rng, writer.split, writer.known)


def _going_on(rng: random.Random, writer: "_Dialogue") -> Turn:
    return numbers.go_on(rng, writer.split, writer.known, writer.messages)


def _last_reply(rng: random.Random, writer: "_Dialogue") -> Turn | None:
    return echo.repeat_last(rng, writer.split, writer.known, writer.messages)


def _counted(rng: random.Random, writer: "_Dialogue") -> Turn:
    return numbers.count(rng, writer.split, writer.known, writer.longest_count)


def _needing_no_tool(rng: random.Random, writer: "_Dialogue") -> Turn:
    if chance(rng, 0.3):
        return tool_turns.not_offered(writer.tools)(rng, writer.split, writer.known)
    write_turn = rng.choice([_WRITERS[skill] for skill in _EXACT])
    return replace(write_turn(rng, writer.split, writer.known), skill=Skill.NO_CALL)


def _thought_about(rng: random.Random, writer: "_Dialogue") -> Turn:
    """A turn that is thought about because the user says so, or the prompt; or is not, since the prompt forbids it."""
    write_turn = tool_turns.caller(rng, writer.tools) if chance(rng, 0.5) else None
    turn = (write_turn or rng.choice([_WRITERS[skill] for skill in _EXACT]))(rng, writer.split, writer.known)
    ways = (
        thinking.think_first,
        lambda _rng, _split, turn: thinking.begun(turn),
        lambda _rng, _split, turn: thinking.skipped(turn),
    )
    return replace(rng.choices(ways, (6, 2, 2))[0](rng, writer.split, turn), skill=Skill.THINKING)


_IN_DIALOGUES: Mapping[Skill, Callable[[random.Random, "_Dialogue"], Turn | None]] = {
    Skill.GO_ON: _going_on,
    Skill.LAST_REPLY: _last_reply,
    Skill.COUNT: _counted,
    Skill.NO_CALL: _needing_no_tool,
    Skill.THINKING: _thought_about,
}


def _thoughtful(rng: random.Random, write_turn: Writer) -> Writer:
    """The same turn, now and then thought about."""

    def written(rng: random.Random, split: Split, known: Facts) -> Turn:
        turn = write_turn(rng, split, known)
        if thinking.shows_held_out(turn):
            return turn
        if way == "words":
            return thinking.think_first(rng, split, turn)
        return thinking.begun(turn) if way == "begun" else thinking.skipped(turn)

    way = rng.choices(("", "words", "begun", "skipped"), _THOUGHT_SHARES)[0]
    return written if way else write_turn


def _counting(longest: int) -> Writer:
    return lambda rng, split, known: numbers.count(rng, split, known, longest)


def _ask_any(rng: random.Random, split: Split, known: Facts) -> Turn:
    stated = [skill for skill in _RECALLED if getattr(known, skill.name.lower()) is not None]
    wanted = rng.choice(stated) if stated and chance(rng, 0.8) else rng.choice(_RECALLED)
    return facts.ask_fact(rng, split, known, wanted)


_WRITERS: Mapping[Skill, Writer] = {
    Skill.SMALL_TALK: smalltalk.small_talk,
    Skill.FACT: facts.state_fact,
    Skill.UNKNOWN_FACT: _ask_any,
    Skill.SUM: numbers.add_or_subtract,
    Skill.COUNT: _counting(60),
    Skill.REPEAT: echo.repeat,
    Skill.STORY: stories.story,
    Skill.SERVICE: smalltalk.about_service,
    Skill.PHRASE: phrases.phrase,
    Skill.REFUSAL: refusals.refuse,
    Skill.JSON: json_replies.as_json,
}
_EXACT = (
    Skill.SMALL_TALK,
    Skill.UNKNOWN_FACT,
    Skill.SUM,
    Skill.REPEAT,
    Skill.SERVICE,
    Skill.PHRASE,
    Skill.COUNT,
)


def _choose(rng: random.Random, writer: "_Dialogue") -> Writer:
    """The next turn's writer: what was told is asked for often, a count that was cut may go on, tools are used."""
    mix = writer.mix
    interrupted = bool(writer.messages) and writer.messages[-1].interrupted
    if (
        mix.again
        and chance(rng, mix.again * (4 if interrupted else 1))
        and (turn := _last_reply(rng, writer))
    ):
        return lambda _rng, _split, _known: turn
    if writer.messages and writer.messages[-1].interrupted and chance(rng, mix.going_on):
        return lambda rng, split, known: numbers.go_on(rng, split, known, writer.messages)
    if chance(rng, mix.calling if writer.tools else 0.0):
        looks_up = mix.looking_up and tool_turns.can_look_up(writer.tools) and chance(rng, mix.looking_up)
        if call := tool_turns.caller(rng, writer.tools, Skill.UNSEEN_TOOL if looks_up else None):
            return call
    long_count = writer.longest_count > _SHORT_COUNTS
    shares: list[tuple[Writer, float]] = [
        (facts.state_fact, 14), (_ask_any, 28 if writer.known != Facts() else 3), (numbers.add_or_subtract, 26), (refusals.refuse, 20),
        (_counting(writer.longest_count), mix.counts + (2 if long_count else 0)), (_counting(12), mix.short_counts), (echo.repeat, 34), (stories.story, mix.stories if writer.longest_count >= _SHORT_COUNTS else 2),
        (smalltalk.small_talk, 9), (smalltalk.about_service, 8), (phrases.phrase, 12), (json_replies.as_json, 60), (tool_turns.not_offered(writer.tools), mix.not_offered_beside_tools if writer.tools else mix.not_offered),
        (lambda rng, split, known: numbers.go_on(rng, split, known, writer.messages), 2),
    ]  # fmt: skip
    return rng.choices(shares, [weight for _, weight in shares])[0][0]


class _Dialogue:
    """A dialogue being written: its tools, its messages, what is known, and how many characters it has."""

    def __init__(
        self, rng: random.Random, split: Split, *, longest_count: int, tools: tuple[Tool, ...] = ()
    ) -> None:
        self.rng = rng
        self.split = split
        self.mix = _MIXES[split]
        self.longest_count = longest_count
        self.tools = tools
        self.known = Facts()
        self.messages: list[Message] = []
        prompt = [rng.choice(SYSTEM_PROMPTS)] if chance(rng, 0.25) else []
        if system := "\n\n".join([*prompt, *([toolbox.listed(tools)] if tools else [])]):
            self.messages.append(Message("system", system))

    @property
    def characters(self) -> int:
        """How many characters were said so far."""
        return sum(len(message.content) for message in self.messages if message.role != "system")

    def take(self, writer: Writer, most_characters: int = 1 << 30, cut_chance: float | None = None) -> bool:
        """Add a turn, unless it would make the dialogue longer than `most_characters`, or a tool could do what is refused: then False."""
        turn = writer(self.rng, self.split, self.known)
        reply = self.rng.choice(turn.replies)
        called = "" if turn.called is None else turn.called.calls + turn.called.results
        if self.characters + len(turn.user) + len(called) + len(reply) > most_characters:
            return False
        if tool_turns.answerable(turn, self.tools):
            return False
        self.messages = self.messages_with(turn)
        self.known = turn.facts
        if turn.called is not None:
            self.messages += [
                Message("assistant", turn.called.calls, given=turn.given),
                Message("user", turn.called.results),
            ]
            if chance(self.rng, _LEFT):
                return True
        self._answer(turn, reply, cut_chance)
        return True

    def _answer(self, turn: Turn, reply: str, cut_chance: float | None) -> None:
        if cut_chance is None:
            cut_chance = self.mix.cut if turn.skill in {Skill.COUNT, Skill.STORY, Skill.GO_ON} else 0.06
        whole = turn.called is not None or reply.startswith("<think>")
        cut = not whole and chance(self.rng, cut_chance)
        earliest = max(0, len(reply) - _NEAR_THE_END) if chance(self.rng, 0.25) else 0
        seen = reply[: self.rng.randrange(earliest, len(reply))] if cut else reply
        is_count = turn.skill in {Skill.COUNT, Skill.GO_ON}
        if cut and is_count and self.mix.cut_at_words and chance(self.rng, self.mix.cut_at_words):
            seen = seen[: seen.rfind(",") + 1]
        if seen:
            self.messages.append(Message("assistant", seen, interrupted=cut, given=turn.given))

    def messages_with(self, turn: Turn) -> list[Message]:
        """The messages with the turn's question; where nothing was seen of the last reply, two questions become one message."""
        *earlier, last = self.messages or [Message("system", "")]
        if last.role == "user" and not last.content.endswith("</tool_response>"):
            return [*earlier, Message("user", f"{last.content}\n{turn.user}")]
        return [*self.messages, Message("user", turn.user)]
