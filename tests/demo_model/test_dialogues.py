import random
from itertools import combinations, pairwise

import pytest

from demo_model import dialogues
from demo_model.echo import NOTHING_TO_REPEAT, repeat_last
from demo_model.evaluate import is_right
from demo_model.holdout import Split, held_out
from demo_model.numbers import counted, go_on
from demo_model.turns import Dialogue, Facts, Message, Probe, Skill


def written(seed: int, amount: int) -> list[Dialogue]:
    rng = random.Random(seed)
    return [dialogues.write(rng, most_characters=900, longest_count=40) for _ in range(amount)]


@pytest.fixture(scope="module")
def many() -> list[Dialogue]:
    return written(1, 400)


def test_the_same_seed_writes_the_same_dialogues(many: list[Dialogue]) -> None:
    assert written(1, 100) == many[:100]
    assert written(2, 100) != many[:100]


def test_a_dialogue_alternates_unless_it_was_stopped_at_a_tools_result(many: list[Dialogue]) -> None:
    for dialogue in many:
        messages = [message for message in dialogue.messages if message.role != "system"]
        assert messages[0].role == "user"
        for first, second in pairwise(messages):
            assert first.role != second.role or first.content.endswith("</tool_response>")


def test_no_empty_message_is_written(many: list[Dialogue]) -> None:
    assert all(message.content for dialogue in many for message in dialogue.messages)


def test_held_out_names_and_sums_are_never_in_training(many: list[Dialogue]) -> None:
    text = "\n".join(message.content for dialogue in many for message in dialogue.messages)
    for low, high in combinations(range(101), 2):
        if not held_out(f"sum:{low}:{high}"):
            continue
        assert f"{low} + {high} = {low + high}." not in text
        assert f"{high} - {low} = {high - low}." not in text
    for name in ("Sven", "Sara", "Andrea"):
        assert held_out(f"name:{name}")
        assert f"meet you, {name}" not in text


def test_some_replies_are_interrupted_and_some_vanish(many: list[Dialogue]) -> None:
    messages = [message for dialogue in many for message in dialogue.messages]
    assert any(message.interrupted for message in messages)
    assert any("\n" in message.content for message in messages if message.role == "user")


@pytest.mark.parametrize("skill", Skill)
def test_every_skill_can_be_probed_on_both_sides_of_the_holdout(skill: Skill) -> None:
    rng = random.Random(skill)
    for split in Split:
        probe = dialogues.probe(rng, skill, split=split)
        assert probe.skill is skill
        assert probe.messages[-1].role == "user"
        assert all(probe.replies)


def test_a_count_names_every_number() -> None:
    assert counted(1, 5) == "1, 2, 3, 4, 5."


@pytest.mark.parametrize(
    ("seen", "got", "right"),
    [
        ("5, 6, 7", "7, 8, 9.", True),
        ("5, 6, 7", "8, 9.", True),
        ("5, 6, 7,", "8, 9.", True),
        ("5, 6, 7,", "9.", False),
        ("5, 6", "7, 8, 9.", True),
        ("5, 6", "8, 9.", False),
        ("98, 99, 10", "101.", False),
    ],
)
def test_a_count_may_go_on_behind_a_number_that_was_seen_whole(seen: str, got: str, *, right: bool) -> None:
    requested = Message("user", "Count from 98 to 101." if seen.startswith("98") else "Count from 5 to 9.")
    history = [requested, Message("assistant", seen, interrupted=True)]
    turn = go_on(random.Random(1), Split.TRAIN, Facts(), history)
    probe = Probe(turn.skill, (*history, Message("user", turn.user)), turn.replies)
    assert is_right(probe, got) is right


@pytest.mark.parametrize(
    ("texts", "reply"),
    [
        (["Count from 1 to 9.", "1, 2, 3, 4,"], "I said: 1, 2, 3, 4,"),
        (["Hi!", "Hello!", "Count from 1 to 3.", "1, 2, 3."], "I said: 1, 2, 3."),
        ([], NOTHING_TO_REPEAT),
        (["Hi!"], NOTHING_TO_REPEAT),
        (["Hi!", "Hello!", "And?"], None),
        (["Hi!", "<think>\nHm.\n</think>\n\nHello!"], None),
        (["Count from 100 to 500.", counted(100, 500)], None),
    ],
)
def test_what_was_said_last_is_said_again_as_far_as_it_was_seen(texts: list[str], reply: str | None) -> None:
    history = [Message("assistant" if place % 2 else "user", text) for place, text in enumerate(texts)]
    turn = repeat_last(random.Random(1), Split.TRAIN, Facts(), history)
    assert (turn and turn.replies) == (None if reply is None else (reply,))
